"""Measurements: ratios of ours against a floor or a peer, taken in one interleaved run, never bare seconds."""
