"""The embedded default: a Proxmox API on loopback whose VMs are real machines; it never leaves this machine."""
