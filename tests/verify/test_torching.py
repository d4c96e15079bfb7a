"""A real torch.distributed all-reduce, and every way in which it must not be taken for a pass."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inventory.errors import BadInput
from tests.require import need
from verify.probe.tls import Identity
from verify.probe.torching import free_port, torch_check
from verify.service import Wish

from .probing import probe
from .test_cli import agent_yaml, verify_node

DEADLINE_S = 600.0


@pytest.fixture(scope="module")
def torch_python() -> str:
    """An interpreter that has torch: CI's is Debian's CPU build."""
    for name in (os.environ.get("MUSTER_TORCH_PYTHON"), sys.executable, "/usr/bin/python3"):
        if name and shutil.which(name):
            look = [
                name,
                "-I",
                "-c",
                "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)",
            ]
            if subprocess.run(look, check=False, timeout=600).returncode == 0:
                return name
    need(None, "torch", "apt-get install --no-install-recommends python3-torch, or MUSTER_TORCH_PYTHON=FILE")
    raise AssertionError


def fake(folder: Path, script: str) -> str:
    """An interpreter that says it has torch, then does what `script` says for each rank ($4)."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n[ $# -lt 4 ] && exit 0\nrank=$4; world=$5\n{script}\n")
    file.chmod(0o755)
    return str(file)


def says(rank: str, wrong: str) -> str:
    """A script that prints a rank's result."""
    facts = {"rank": rank, "torch": '"2"', "backend": '"gloo"', "gpus": "0", "wrong": wrong}
    text = ", ".join(f'"{name}": {value}' for name, value in facts.items()).replace('"', '\\"')
    return f'echo "{{{text}}}"'


def test_a_port_that_somebody_took_meanwhile_is_no_fault_of_the_node(torch_python: str) -> None:
    with socket.create_server(("", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        check = torch_check(2, python=[torch_python], within_s=DEADLINE_S, port_for=lambda: next(ports))
        always = torch_check(
            2, python=[torch_python], within_s=DEADLINE_S, port_for=lambda: int(taken.getsockname()[1])
        )

    assert check["verdict"] == "pass", check
    assert always["verdict"] == "critical"
    assert "already in use" in always["found"]


def children() -> set[int]:
    """This process's children that are still there, zombies too."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_the_all_reduce_of_a_real_torch_passes_with_its_sums_checked(torch_python: str) -> None:
    before = children()
    check = torch_check(2, python=[torch_python], within_s=DEADLINE_S)

    assert check["verdict"] == "pass", check
    assert "2 ranks, every sum right" in check["found"]
    assert "gloo" in check["found"] or "nccl" in check["found"]
    assert children() == before


def test_no_torch_is_no_pass_and_no_failure_but_no_judgement() -> None:
    check = torch_check(2, python=["/nonexistent/python3"], within_s=120)

    assert check["verdict"] == "unknown"
    assert check["essential"] is True
    assert "/nonexistent/python3: no such file or directory" in check["found"]
    assert "install torch" in check["next"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (says("$rank", "$rank"), "the sums are wrong, by rank: {1: 1}"),
        (says("0", "0"), "the sums are wrong"),
        ('[ "$rank" = 1 ] && { echo "E: no way" >&2; exit 1; }; sleep 900', "rank 1: E: no way"),
        ("exit 0", "ranks [0, 1] had no result"),
        ("echo '[1]'; echo nonsense", "ranks [0, 1] had no result"),
    ],
    ids=["one wrong", "one rank twice", "one dies", "silent", "nonsense"],
)
def test_what_is_not_a_right_sum_of_every_rank_fails(tmp_path: Path, script: str, said: str) -> None:
    began = time.monotonic()
    check = torch_check(2, python=[fake(tmp_path, script)], within_s=600)

    assert check["verdict"] == "critical", check
    assert said in check["found"]
    assert time.monotonic() - began < 300


def test_a_torch_that_cannot_be_imported_is_no_judgement(tmp_path: Path) -> None:
    script = "echo 'no torch: libcudart.so.12 is missing' >&2; exit 77"
    check = torch_check(2, python=[fake(tmp_path, script)], within_s=120)

    assert (check["verdict"], "libcudart.so.12" in check["found"]) == ("unknown", True)


def test_a_rank_that_has_no_torch_is_heard_though_the_first_says_nothing(tmp_path: Path) -> None:
    script = "[ $rank = 0 ] && sleep 900; echo 'no torch: libcudart.so.12 is missing' >&2; exit 77"
    check = torch_check(2, python=[fake(tmp_path, script)], within_s=120)

    assert (check["verdict"], "libcudart.so.12" in check["found"]) == ("unknown", True)


def test_ranks_that_hang_end_by_the_deadline_with_all_that_they_started(tmp_path: Path) -> None:
    began, before = time.monotonic(), children()
    marker = 3600 + os.getpid() % 1000
    check = torch_check(2, python=[fake(tmp_path, f"sleep {marker} & wait")], within_s=1.5)

    assert check["verdict"] == "critical"
    assert "ranks [0, 1] had no result" in check["found"]
    assert time.monotonic() - began < 120
    assert children() == before
    until = time.monotonic() + 60  # a killed process needs a moment
    while _running(marker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _running(marker)


def _running(marker: int) -> list[Path]:
    return [folder for folder in Path("/proc").glob("[0-9]*") if f"sleep\0{marker}" in _command(folder)]


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""


def test_what_the_shell_has_set_does_not_reach_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nonsense0")
    monkeypatch.setenv("LD_PRELOAD", "")
    check = torch_check(
        2, python=[fake(tmp_path, 'env >&2; echo "NCCL is ${NCCL_SOCKET_IFNAME-clean}" >&2')], within_s=120
    )

    assert "NCCL is clean" in check["found"]


# -- in the probe, and as it is typed ------------------------------------------------------------------------------


def test_the_probe_runs_it_only_where_it_may_disturb(good: Identity) -> None:
    about = {"engine": "torch", "engine_python": ["/nonexistent/python3"]}
    serving = probe(good, "assemble", ranks=2, about=about)
    idle = probe(good, "assemble", ranks=2, about=about, disruptive=True)

    assert "torch-all-reduce" not in {check.name for check in serving.checks}
    assert "torch all-reduce: the node is in service (--disruptive)" in serving.not_checked
    assert {check.name: check.verdict for check in idle.checks}["torch-all-reduce"] == "unknown"


@pytest.mark.parametrize("wish", [{"engine": "vllm"}, {"engine_python": Path("/usr/bin/python3")}])
def test_an_engine_that_cannot_be_run_is_refused(wish: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="cannot be run"):
        Wish(**wish)  # type: ignore[arg-type]  # one fact varied


def test_a_missing_torch_is_told_as_could_not_judge(good: Identity, tmp_path: Path) -> None:
    words = ("--engine", "torch", "--engine-python", "/nonexistent/python3", "--disruptive", "--ranks", "2")
    done = verify_node("--local", "--config", agent_yaml(tmp_path, good), *words, "--scenario", "assemble")

    assert done.status == 4, done.err
    assert "torch-all-reduce" in done.err
