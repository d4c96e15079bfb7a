"""What runs on the node: standard library of Python 3.9 only; it writes nothing to the node's disk."""
