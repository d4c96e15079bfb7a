"""The passport: one signed document of a node's whole road, made on the holder's host and checked anywhere, offline."""
