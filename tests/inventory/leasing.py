"""A run of its own that takes a lease: `python -m tests.inventory.leasing URL NAME LEASE_S`; it says "held", and waits.

Each line on its stdin is a command: `save` writes to the node and tells how that went; `end` lets go.
"""

import sys
from dataclasses import replace

from inventory.errors import MusterError
from inventory.store import Store


def main(url: str, name: str, lease_s: str) -> None:
    record = Store.open(url, host="another-host", lease_s=float(lease_s))
    with record.lease(name, "provision-node", say=tell):
        tell("held")
        for line in sys.stdin:
            if line.strip() == "end":
                break
            try:
                found = record.get(name)
                assert found is not None
                record.save(replace(found, vmid=666))
                tell("saved")
            except MusterError as error:
                tell(f"{error.what}: {error.why}")


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
