"""Proxmox VM creation: from a site file to a node that awaits its identity, which others give it."""
