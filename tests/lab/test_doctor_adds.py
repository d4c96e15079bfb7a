"""What the doctor says would make the nodes of a directory more real."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from lab import doctor
from lab.bubblewrap import Bubblewrap
from lab.directory import DirectoryBackend
from lab.nodes import TRIAL_ADDRESS
from lab.walled import Walls

INSTALL = f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install --no-install-recommends "


def lacking(*absent: str) -> Callable[[Iterable[str]], list[str]]:
    """A machine without some programs."""
    return lambda programs: [program for program in programs if program in absent]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Callable[[Walls | None], DirectoryBackend]]:
    """Makes a backend with some walls, or none."""
    made: list[DirectoryBackend] = []

    def make(walls: Walls | None) -> DirectoryBackend:
        made.append(DirectoryBackend(tmp_path, walls=walls, trial_address=TRIAL_ADDRESS))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.mark.parametrize(
    ("absent", "add"),
    [((), None), (("sshd",), f"{INSTALL}openssh-server"), (("bwrap",), None)],
)
def test_walls_that_stand_lack_at_most_a_real_ssh_server(
    absent: tuple[str, ...],
    add: str | None,
    behind: Callable[[Walls | None], DirectoryBackend],
    tmp_path: Path,
) -> None:
    found = doctor.improvement(behind(Bubblewrap("bwrap")), absent=lacking(*absent), settings=tmp_path)

    assert found == add


@pytest.mark.parametrize(
    ("absent", "add"),
    [
        (("bwrap", "unshare"), f"{INSTALL}bubblewrap"),
        (("bwrap", "sshd"), f"{INSTALL}bubblewrap openssh-server"),
        (("unshare",), f"{INSTALL}util-linux"),
    ],
)
def test_without_walls_one_line_adds_them_and_what_else_is_missing(
    absent: tuple[str, ...],
    add: str,
    behind: Callable[[Walls | None], DirectoryBackend],
    tmp_path: Path,
) -> None:
    found = doctor.improvement(behind(None), absent=lacking(*absent), settings=tmp_path)

    assert found == add


def test_a_switch_that_forbids_user_namespaces_comes_first(
    behind: Callable[[Walls | None], DirectoryBackend], tmp_path: Path
) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    found = doctor.improvement(behind(None), absent=lacking("bwrap", "sshd"), settings=tmp_path)

    assert found is not None
    assert found.removeprefix("sudo ") == "sysctl -w user.max_user_namespaces=10000"
