"""Who the tests' node is."""

NODE = "gpu-01"
SPIFFE_ID = f"spiffe://lab.example/node/{NODE}"
