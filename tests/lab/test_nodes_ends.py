"""However a lab ends, nothing of its nodes stays; and what it can make depends on the machine, which it tells."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import BadInput, OtherSide
from inventory.model import HostKey
from inventory.reach import Session, open_session
from lab.hidden import hidden_directories, outermost
from lab.nodes import choose
from tests.lab.nodes_kit import (
    REPOSITORY,
    claimed_prefix,
    make_backend,
    make_login,
    node_spec,
    processes_with,
    said,
)
from tests.lab.others import as_nobody, own_home, shared_python
from tests.require import need_command, need_root

START_TIMEOUT_S = 180.0


class Lab:
    """A lab in a child process."""

    def __init__(
        self, kind: str, folder: Path, prefix: str, *, before: Sequence[str], python: Sequence[str]
    ) -> None:
        self.folder = folder
        self.child = subprocess.Popen(
            [*before, *python, "-m", "tests.lab.nodes_child", kind, str(folder), prefix],
            cwd=REPOSITORY,
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told = self.listen()

    def listen(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, f"the lab ended with {self.child.wait(START_TIMEOUT_S)}"
        told: dict[str, Any] = json.loads(line)
        return told

    def boot_again(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("again\n")
        self.child.stdin.flush()
        self.told = self.listen()

    def log_in(self) -> Session:
        return open_session(
            host=self.told["address"],
            port=self.told["port"],
            user=self.told["user"],
            host_keys=[HostKey.from_line(line) for line in self.told["host_keys"]],
            key_file=self.folder / "id",
        )

    def end(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.child.wait(START_TIMEOUT_S)
        finally:
            self.child.kill()


@contextmanager
def lab(
    kind: str, folder: Path, *, before: Sequence[str] = (), python: Sequence[str] = (sys.executable,)
) -> Iterator[Lab]:
    with claimed_prefix() as prefix:
        made = Lab(kind, folder, prefix, before=before, python=python)
        try:
            yield made
        finally:
            made.end()


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        ("sshd", signal.SIGKILL),
        ("no sshd", signal.SIGKILL),
        ("bwrap", signal.SIGKILL),
        ("unshare", signal.SIGKILL),
        ("plain", signal.SIGKILL),
        ("bwrap with sshd", signal.SIGKILL),
        ("plain with sshd", signal.SIGKILL),
        ("sshd", signal.SIGINT),
        ("plain", signal.SIGINT),
    ],
)
def test_nothing_is_left_of_a_node_whose_lab_was_ended(
    kind: str, sign: signal.Signals, tmp_path: Path
) -> None:
    with claimed_prefix() as prefix:  # skips by name what this machine cannot make
        make_backend(kind, tmp_path / "unused", prefix).close()
    word = f"3{os.getpid()}"
    with lab(kind, tmp_path) as ended, ended.log_in() as session:
        said(session, f"setsid sleep {word} >/dev/null 2>&1 </dev/null & echo up")
        remote = session.start(f"echo up; sleep {word} & exec sleep {word}")
        next(remote.lines(timeout_s=120.0))
        assert processes_with(f"sleep {word}")
        family = descendants(ended.child.pid)

        ended.child.send_signal(sign)
        ended.child.wait(START_TIMEOUT_S)

        assert soon(lambda: not living(family))
        assert soon(lambda: not processes_with(f"sleep {word}"))
    assert str(tmp_path) not in every_mount()


def test_disks_lie_in_memory_where_the_state_directory_cannot_hold_them(tmp_path: Path) -> None:
    need_root()
    need_command("unshare", "sshd")
    for name in ("upper", "work", "state"):
        (tmp_path / name).mkdir()
    # An overlay can be no upper directory of another one, which is how it is in a container.
    mount = (
        f"cd {tmp_path} && mount -t overlay overlay -o lowerdir={tmp_path}/state,upperdir=upper,workdir=work state "
        f'&& cd {REPOSITORY} && exec "$@"'
    )
    before = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")
    with lab("sshd", tmp_path / "state", before=before) as made:
        made.folder = Path(f"/proc/{made.child.pid}/root{tmp_path}/state")
        first = made.told
        with made.log_in() as session:
            said(session, "echo kept >~/note")
        made.boot_again()
        with made.log_in() as session:
            assert said(session, "cat ~/note") == "kept"

        assert any("in memory" in sentence for sentence in made.told["not_real"])
        assert made.told["host_keys"] == first["host_keys"]
    assert str(tmp_path) not in every_mount()


@pytest.mark.parametrize(("kind", "where"), [("sshd", "/var/lib"), ("bwrap", "/usr/local")])
def test_a_lab_that_lies_where_nodes_can_look_is_hidden_from_them(kind: str, where: str) -> None:
    need_root()
    with (
        claimed_prefix() as prefix,
        tempfile.TemporaryDirectory(prefix="muster-test-", dir=where) as folder,
    ):
        secret = Path(folder, "secret")
        secret.write_text("secret")
        login = make_login(Path(folder))
        backend = make_backend(kind, Path(folder, "nodes"), prefix)
        try:
            node = backend.boot(node_spec(backend, login, prefix))

            assert node.read_file("/etc/hostname")
            for place in (secret, login.key_file):
                with pytest.raises(FileNotFoundError):
                    node.read_file(str(place))
        finally:
            backend.close()


@pytest.mark.parametrize("kind", ["best", "plain"])
def test_anyone_can_have_a_node(kind: str) -> None:
    """As nobody, with nothing but a home of its own; as the user who runs the tests where that is not root."""
    with own_home() as home, lab(kind, home, before=as_nobody(), python=shared_python()) as made:
        with made.log_in() as session:
            said(session, f"install -d -o {made.told['owner']} {made.told['dir']}/generations/1")
            found = said(
                session, "id -un; openssl version >/dev/null && python3 -I -S -c 'import ssl; print(1)'"
            )
        first = made.told
        made.boot_again()
        with made.log_in() as session:
            said(session, f"test -d {made.told['dir']}/generations/1")

    assert made.told["backend"] == "directory"
    assert found.split()[-1] == "1"
    assert made.told == first
    assert not living(descendants(made.child.pid))


def test_a_backend_that_cannot_start_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.spawner.SANE_PATH", str(tmp_path))
    with claimed_prefix() as prefix, pytest.raises(OtherSide) as refused:
        choose(tmp_path / "nodes", wanted="namespaces", trial_address=f"{prefix}.250")

    assert "openssl" in refused.value.why or "root" in refused.value.why


def test_the_best_backend_is_taken_and_leaves_no_trial_behind(tmp_path: Path) -> None:
    before = descendants(os.getpid())  # servers that tests share, say
    with claimed_prefix() as prefix:
        backend = choose(tmp_path / "nodes", trial_address=f"{prefix}.250")
        backend.close()

    assert backend.name == ("namespaces" if os.geteuid() == 0 else "directory")
    assert not [path for path in (tmp_path / "nodes").rglob("*") if path.name.startswith("0")]
    assert not living(descendants(os.getpid()) - before)


def test_a_backend_that_does_not_exist_is_a_fault_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="paper"):
        choose(tmp_path, wanted="paper")


def test_the_labs_directory_the_homes_and_the_work_tree_are_hidden(tmp_path: Path) -> None:
    environment = {"HOME": "/home/someone", "MUSTER_CA_DIR": "/vault/ca", "MUSTER_SSH_KEY": "/keys/id"}
    hidden = hidden_directories(tmp_path / "lab/nodes", environ=environment, cwd=REPOSITORY / "tests")

    for place in (tmp_path / "lab", Path("/home/someone"), Path("/vault/ca"), Path("/keys"), REPOSITORY):
        assert any(place.is_relative_to(mask) for mask in hidden), place
    assert not {Path("/"), Path("/usr"), Path("/etc")} & set(hidden)
    assert outermost([Path("/a/b"), Path("/a"), Path("/ab")]) == (Path("/a"), Path("/ab"))


def descendants(pid: int) -> set[int]:
    """The processes below one, zombies left out."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def living(family: set[int]) -> set[int]:
    return {pid for pid in family if pid in descendants(0)}


def soon(holds: Any, *, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(holds())


def every_mount() -> str:
    """What any process of this machine has mounted."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found.add((entry / "mountinfo").read_text())
        except OSError:
            continue
    return "\n".join(found)
