"""The tests; their folders mirror the packages, and e2e walks the whole road."""
