"""A private CA: values in, certificates out; it never touches the network."""
