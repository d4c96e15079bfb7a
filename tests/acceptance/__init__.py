"""The acceptance run: provision-node's whole road on the Proxmox that a site file names, with VMs of its own alone."""
