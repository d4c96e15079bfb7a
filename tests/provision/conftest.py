"""Each test's own Proxmox, served over TLS on loopback."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.provision.kit import Place, furnish
from tests.provision.seed_kit import with_seed


@pytest.fixture
def place(fakepve: Any, fakepve_cafile: str, tmp_path: Path) -> Iterator[Place]:
    """A Proxmox with one template, and the infra team's files for it."""
    site = furnish(fakepve, tmp_path, Path(fakepve_cafile))
    yield site
    for adapter in site.adapters:
        adapter.close()
    # The server's thread must see that its clients have gone, or it leaves their sockets to the collector.
    until = time.monotonic() + 60
    while fakepve.runner.server.connections and time.monotonic() < until:
        time.sleep(0.005)


@pytest.fixture
def seeded(place: Place) -> Place:
    """A site whose profile has user-data; the storage `local` takes ISO images."""
    return with_seed(place)
