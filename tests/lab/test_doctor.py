"""node-lab doctor tries each backend: what starts, what does not and why, and the line that would add it."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import BadInput
from lab import doctor
from lab.nodes import BACKENDS
from tests.lab.nodes_kit import REPOSITORY
from tests.lab.others import as_nobody, own_home, shared_python
from tests.lab.processes import mounts, with_text
from tests.require import need_command, need_root

FIELDS = ["name", "starts", "why", "add", "not_real", "seconds"]
WALLS = ["bwrap", "hostname"]  # what each kind of walls cannot do without
BWRAP = "sudo apt-get install --no-install-recommends bubblewrap"


def run(folder: Path, command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run a command that ends in the doctor's JSON: its exit code, and its findings by backend."""
    done = subprocess.run(
        command,
        env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "backends"]
    assert document["schema"] == 1
    assert all(list(finding) == FIELDS for finding in document["backends"])
    return done.returncode, {finding["name"]: finding for finding in document["backends"]}


def test_the_doctor_starts_a_node_of_each_backend_and_leaves_nothing(tmp_path: Path) -> None:
    before = mounts(tmp_path)
    names = [name for name in BACKENDS if name != "qemu"]  # which takes as long as a machine takes to boot
    done = [
        run(tmp_path, [sys.executable, "-m", "lab.cli", "doctor", "--json", "--backend", n]) for n in names
    ]

    assert [list(findings) for _, findings in done] == [[name] for name in names]
    for code, findings in done:
        for finding in findings.values():
            assert code == (0 if finding["starts"] else 4)
            assert bool(finding["why"]) is not finding["starts"]
            assert bool(finding["not_real"]) is finding["starts"]
    assert done[-1][0] == 0  # a directory starts everywhere
    assert (list(tmp_path.iterdir()), with_text(str(tmp_path)), mounts(tmp_path)) == ([], [], before)


def examined(
    home: Path, *, hidden: Sequence[str] = (), first: str = "", words: Sequence[str] = ()
) -> tuple[int, dict[str, Any]]:
    """What the doctor tells another user, on a machine without some programs, or after a shell command."""
    need_root()
    need_command("unshare")
    doctor_of_his = shlex.join([*shared_python(), "-m", "lab.cli", "doctor", "--json", *words])
    inside = shlex.join(["unshare", "-Ur", "sh", "-c", f"{first}; exec {doctor_of_his}"])
    hide = [f'p=$(command -v {program}) && mount --bind /dev/null "$p"' for program in hidden]
    become = f"exec {shlex.join(as_nobody())} {inside if first else doctor_of_his}"
    return run(home, ["unshare", "--mount", "sh", "-ec", "; ".join([*hide, become])])


@pytest.mark.parametrize(
    ("hidden", "word", "add"),
    [
        (["bwrap"], "unshare shuts each command in", None),
        (WALLS, "nothing shuts it in", BWRAP),
    ],
)
def test_without_root_there_are_walls_as_long_as_anything_can_make_them(
    hidden: list[str], word: str, add: str | None
) -> None:
    need_command(*hidden)
    with own_home() as home:
        code, found = examined(home, hidden=hidden, words=["--backend", "directory"])
        left = list(home.iterdir())

    assert (code, found["directory"]["starts"]) == (0, True)
    assert any(word in sentence for sentence in found["directory"]["not_real"]), found
    assert found["directory"]["add"] == add
    assert left == []


def test_where_none_starts_the_doctor_says_what_is_missing_and_exits_with_4() -> None:
    need_command("openssl", *WALLS)
    with own_home() as home:
        done = [
            examined(home, hidden=["openssl", *WALLS], words=["--backend", name])
            for name in ("namespaces", "directory")
        ]
    found = {name: finding for _, findings in done for name, finding in findings.items()}

    assert [code for code, _ in done] == [4, 4]
    assert "it needs root" in found["namespaces"]["why"]
    assert found["namespaces"]["add"] == 'sudo "$(command -v node-lab)" up'
    assert "openssl" in found["directory"]["why"]
    assert found["directory"]["add"] == "sudo apt-get install --no-install-recommends openssl"


def test_a_switch_that_forbids_user_namespaces_is_named() -> None:
    with own_home() as home:
        code, found = examined(
            home,
            hidden=WALLS[1:],
            first="echo 0 >/proc/sys/user/max_user_namespaces",
            words=["--backend", "directory"],
        )

    assert code == 0
    assert any("nothing shuts it in" in sentence for sentence in found["directory"]["not_real"])
    assert found["directory"]["add"] == "sysctl -w user.max_user_namespaces=10000"


def test_a_line_that_a_backend_names_itself_is_handed_on() -> None:
    why = "this machine has no qemu-system-x86_64 (apt-get install --no-install-recommends qemu-system-x86)"
    line = "apt-get install --no-install-recommends qemu-system-x86"

    assert doctor.remedy("qemu", why, root=True) == line
    assert doctor.remedy("qemu", why, root=False) == f"sudo {line}"
    assert doctor.remedy("qemu", "it is too slow", root=True) is None


def test_an_unknown_backend_is_refused_and_not_called_unable() -> None:
    with pytest.raises(BadInput, match="there is no backend 'paper'"):
        doctor.examine("paper")
