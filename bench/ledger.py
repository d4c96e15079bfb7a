"""Whether a command gets slower with what was issued before: at 100,000 certificates, against at 1,000."""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from bench.row import Contest
from ca.authority import Authority
from ca.index import Which
from ca.signer import Signer
from tests.ca.filled import fill
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, new_authority, reopened

MANY, FEW = 100_000, 1_000
TIMES = 10
_kept: list[tempfile.TemporaryDirectory[str]] = []


def contests() -> list[Contest]:
    """Each command's work in this process, opening included; a process' start would only hide the growth."""
    return [
        Contest(f"{name} at {MANY}", took(work, MANY), took(work, FEW), f"the same at {FEW}", "s")
        for name, work in (("issue", issuing), ("list --expiring", listing), ("revoke", revoking))
    ]


@functools.cache
def filled(count: int) -> tuple[Path, Iterator[str], Signer]:
    """An authority's folder with that many certificates in its audit, serial numbers of them, and its key."""
    folder = tempfile.TemporaryDirectory(prefix="bench-ledger-")
    _kept.append(folder)
    made = new_authority(Path(folder.name))
    serials = iter(fill(made, count))
    signer = made.unlock(PASSPHRASE)
    made.close()
    reopened(made).close()  # the index takes the lines up
    return made.layout.folder, serials, signer


def took(work: Callable[[Authority, Iterator[str], Signer], None], count: int) -> Callable[[], float]:
    """A run that gives the seconds of opening and working, once over."""

    def run() -> float:
        folder, serials, signer = filled(count)
        began = time.perf_counter()
        for _ in range(TIMES):
            authority = Authority.open(folder, now=NOW, kdf_floor=CHEAP)
            work(authority, serials, signer)
            authority.close()
        return (time.perf_counter() - began) / TIMES

    return run


def issuing(authority: Authority, _serials: Iterator[str], signer: Signer) -> None:
    """One more certificate for one node."""
    issue(authority, node="gpu-01", signer=signer)


def listing(authority: Authority, _serials: Iterator[str], _signer: Signer) -> None:
    """What ends within 30 days, the first hundred of them: as many at either size."""
    found = authority.select(Which(ends_by=NOW + timedelta(days=30)), now=NOW)
    for _ in zip(range(100), found, strict=False):
        pass


def revoking(authority: Authority, serials: Iterator[str], _signer: Signer) -> None:
    """One certificate that was not revoked before."""
    authority.revoke(next(serials), reason="superseded", now=NOW, actor="bench")
