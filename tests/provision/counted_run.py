"""One run of provision-node and the same again, counted; pytest lends the Proxmox API (see api_requests)."""

import json
import os
from pathlib import Path
from typing import Any

from tests.provision.kit import Place, furnish


def test_requests_are_counted(fakepve: Any, fakepve_cafile: str, tmp_path: Path) -> None:
    place = furnish(fakepve, tmp_path, Path(fakepve_cafile))
    nodes = f"gpu-[01-{int(os.environ['BENCH_NODES']):02}]"
    counts = {
        "plan": requests_of(place, nodes, "--plan"),
        "make": requests_of(place, nodes, "--yes"),
        "again": requests_of(place, nodes),
    }
    Path(os.environ["BENCH_OUT"]).write_text(json.dumps(counts))


def requests_of(place: Place, nodes: str, *flags: str) -> int:
    place.requests.clear()
    done = place.run(nodes, *flags)
    assert done.returncode == 0, done.stderr
    return len(place.requests)
