"""The ground floor: what a node is, the life it leads, how it is recorded, reached and handed over."""
