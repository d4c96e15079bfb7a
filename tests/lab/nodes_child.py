"""A lab in a process of its own, for tests that end it: `python -m tests.lab.nodes_child KIND STATE_DIR PREFIX`.

Boots one node, tells of it in one line of JSON, and boots it again for each line on stdin; KIND `best` chooses.
"""

import json
import sys
from pathlib import Path

from lab.nodes import Backend, LiveNode, choose
from tests.lab.nodes_kit import host_keys_of, machine_id_of, make_backend, make_login, node_spec


def main() -> None:
    kind, state_dir, prefix = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    backend = (
        choose(state_dir / "nodes", trial_address=f"{prefix}.250")
        if kind == "best"
        else make_backend(kind, state_dir / "nodes", prefix)
    )
    try:
        login = make_login(state_dir)
        spec = node_spec(backend, login, prefix)
        node = backend.boot(spec)
        tell(backend, node)
        for _ in sys.stdin:
            node.stop()
            node = backend.boot(spec)
            tell(backend, node)
    finally:
        backend.close()


def tell(backend: Backend, node: LiveNode) -> None:
    sys.stdout.write(
        json.dumps(
            {
                "backend": backend.name,
                "not_real": backend.not_real,
                "address": node.spec.address,
                "port": node.ssh_port,
                "user": node.spec.user,
                "owner": backend.install.owner,
                "dir": backend.install.dir,
                "host_keys": [key.line for key in host_keys_of(node)],
                "machine_id": machine_id_of(node),
            }
        )
        + "\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
