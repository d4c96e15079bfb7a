"""The smoke test: shows on the node itself that a multi-rank replica can assemble, and that it can fail."""
