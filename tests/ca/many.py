"""Run as a program: issue many certificates for one node, beside others that do the same."""

import os
import sys
from pathlib import Path

from ca.authority import Authority
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue


def main() -> None:
    """Arguments: the authority's folder, the node, its uuid, how many."""
    folder, node, uuid, count = sys.argv[1:]
    os.environ["PATH"] = (
        "/nowhere"  # without openssl the judges are quick, and the two meet at the lock more often
    )
    authority = Authority.open(Path(folder), now=NOW, kdf_floor=CHEAP)
    signer = authority.unlock(PASSPHRASE)
    for _ in range(int(count)):
        sys.stdout.write(issue(authority, node=node, vm_uuid=uuid, signer=signer).serial + "\n")


if __name__ == "__main__":
    main()
