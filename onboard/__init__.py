"""Identity for a node, over one pinned SSH session; the node's private key never leaves the node."""
