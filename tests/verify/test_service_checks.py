"""What a node's checks do to its verdict, its record and the exit code; and what they are measured against."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventory.agent_config import AgentConfig
from inventory.document import load
from inventory.errors import ExitCode
from inventory.model import State
from inventory.store import Store
from inventory.ticket import Receipt
from verify import about
from verify.service import Wish, stand_alone

from .identities import Authority, identity
from .names import NODE
from .saying import AGENT, KNOWN, Node, check
from .test_cli import Site, agent_yaml, server, site, verify_node
from .test_service import here, installed, moves, on_record, receipt, store, verify

__all__ = ["installed", "receipt", "server", "site", "store"]
CRITICAL = check("fabric f0 MTU", "critical")
BLIND = check("gpus", "unknown", essential=True)
HARMLESS = (check("open-files", "warning"), check("clock-kept", "unknown"), check("numa-nodes", "info"))


def test_a_critical_check_fails_the_node_with_its_own_advice(receipt: Receipt, store: Store) -> None:
    on_record(store, State.IN_SERVICE)
    done = verify(receipt, store, checks=(BLIND, CRITICAL, *HARMLESS))
    node = store.get(NODE)

    assert (done.exit_code, done.outcome, done.state) == (
        ExitCode.VERIFICATION,
        "failed",
        State.VERIFY_FAILED,
    )
    assert done.verdict.startswith("gpu-01 did not pass: critical: fabric f0 MTU (")
    assert done.error is not None
    assert done.error.next_step == "mend fabric f0 MTU; then run verify-node gpu-01 again"
    assert node is not None
    assert node.reason == "fabric f0 MTU: fabric f0 MTU is critical"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.AWAITING_VERIFICATION, [State.VERIFYING, State.VERIFY_FAILED]),
        (State.IN_SERVICE, [State.IN_SERVICE]),
    ],
)
def test_an_essential_check_without_an_answer_cannot_be_judged(
    receipt: Receipt, store: Store, before: State, after: list[State]
) -> None:
    on_record(store, before)
    done = verify(receipt, store, checks=(BLIND,))

    assert (done.exit_code, done.outcome) == (ExitCode.OTHER_SIDE, "not judged")
    assert done.verdict.startswith("gpu-01 could not be judged: gpus: gpus is unknown (")
    assert done.findings is not None
    assert moves(store) == after
    assert "gpus is unknown" in store.history(NODE)[-1].why


def test_warnings_and_other_unknown_checks_fail_nobody(receipt: Receipt, store: Store) -> None:
    on_record(store, State.AWAITING_VERIFICATION)

    assert verify(receipt, store, checks=HARMLESS).state == State.IN_SERVICE


def test_a_failed_scenario_outweighs_what_could_not_be_judged(receipt: Receipt) -> None:
    assert verify(receipt, None, failing=("gate",), checks=(BLIND,)).exit_code == ExitCode.VERIFICATION


# -- what they are measured against ----------------------------------------------------------------------------------


def test_a_node_is_asked_for_its_own_agent_file_and_machine(receipt: Receipt) -> None:
    folder = Path(receipt.install_dir) / "current"
    with here(receipt, Path()) as place:
        found, config = about.of_node(place, receipt, str(folder), clock=lambda: 7.0)

    assert config is not None
    assert config.identity.key_file == folder / "key.pem"
    assert (found["certified_uuid"], found["controller_clock"], found["fabrics"]) == (
        receipt.vm_uuid,
        7.0,
        [],
    )


AGENT_FABRICS = b"fabrics: [{name: f0, interface: eth1, rate_gbps: 400, mtu: 9000}]"


@pytest.mark.parametrize(
    ("lines", "status", "text", "key"),
    [
        ([], 255, "the node did not tell: sorry", "config_unread"),
        (KNOWN[:3], 1, "current/agent.yaml: sorry", "config_unread"),
        ([*KNOWN, b"fabrcs: []"], 0, "fabrcs: unknown key", "config_fault"),
        ([*KNOWN[:3], *AGENT.replace(b"gpu-01", b"gpu-02").splitlines()], 0, "is for gpu-02", "config_fault"),
        ([*KNOWN, *[b"#" * 1000] * 200], 0, "it is too long", "config_unread"),
    ],
    ids=["silent", "no file", "faulty", "another's", "babbling"],
)
def test_an_agent_file_that_cannot_be_used_is_told_and_not_raised(
    receipt: Receipt, lines: list[bytes], status: int, text: str, key: str
) -> None:
    node = Node(lines, status=status, stderr=b"sorry\n")
    found, config = about.of_node(_Says(node), receipt, "/etc/muster/current")

    assert text in found[key]
    assert config is None


class _Says:
    """Answers the first question."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def start(self, command: str) -> Node:  # noqa: ARG002 - a port's signature
        return self._node


def test_fabrics_reach_the_probe_as_they_are_declared(receipt: Receipt) -> None:
    found, _ = about.of_node(_Says(Node([*KNOWN, AGENT_FABRICS])), receipt, "/etc/muster/current")

    assert found["fabrics"] == [{"name": "f0", "interface": "eth1", "rate_gbps": 400.0, "mtu": 9000}]


def test_the_question_is_asked_as_the_owner_where_the_login_is_another(receipt: Receipt) -> None:
    own = about.command(receipt, "/etc/muster/current")
    other = about.command(replace(receipt, user="debian", owner="muster"), "/etc/muster/current")

    assert "sudo -n -u" not in own
    assert "sudo -n -u muster -- cat /etc/muster/current/agent.yaml" in other


def test_the_node_is_verified_with_the_files_that_its_agent_file_names(
    receipt: Receipt, store: Store
) -> None:
    """A real run: the checks come back with the scenarios, and the certified machine is the receipt's."""
    done = verify(receipt, store, reach=here, wish=Wish(3, ("assemble",)))
    assert done.findings is not None
    verdicts = {each.name: each.verdict for each in done.findings.checks}

    assert verdicts["agent-config"] == verdicts["certificate-chain"] == verdicts["clock"] == "pass"
    assert "machine-uuid" in verdicts
    assert [rank.rank for rank in done.findings.ranks] == [0, 1, 2]


# -- this machine, as a person meets it: 0, 5 and 4 ------------------------------------------------------------------


def machine(folder: Path, lab: Authority, *, fabric: str = "", uuid: str | None = None) -> Path:
    files = identity(folder / "id", by=lab)
    if uuid:
        (folder / "id" / "uuid").write_text(f"{uuid}\n")
    file = agent_yaml(folder, files)
    file.write_text(file.read_text() + fabric)
    return file


def run(config: Path, *words: str) -> Any:
    return verify_node(
        "--local", "--config", config, "--ranks", "2", "--scenario", "assemble", "--json", *words
    )


def test_a_machine_as_declared_exits_0(lab: Authority, tmp_path: Path) -> None:
    done = run(machine(tmp_path, lab, fabric="fabrics: [{name: f0, interface: lo}]\n"))

    assert done.status == 0, done.err
    assert done.document["nodes"][0]["outcome"] == "passed"


def test_a_machine_without_its_declared_fabric_exits_5(lab: Authority, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    config = machine(tmp_path, lab, fabric="fabrics: [{name: f0, interface: nope0, mtu: 9000}]\n")
    done = run(config, "--report", str(report), "--report", str(tmp_path / "r.xml"))
    (fabric,) = [each for each in done.document["checks"] if each["name"].startswith("fabric")]

    assert (done.status, fabric["verdict"]) == (5, "critical")
    assert "fabric f0 interface" in done.err
    assert "nope0" in report.read_text()
    assert (tmp_path / "r.xml").exists()


def test_a_machine_without_the_gpus_that_are_asked_exits_5(lab: Authority, tmp_path: Path) -> None:
    done = run(machine(tmp_path, lab), "--gpus", "4096")

    assert done.status == 5, done.err
    assert "gpus: " in done.err


def test_a_node_whose_agent_file_cannot_be_read_exits_4(site: Site) -> None:
    """Its ranks meet, but what it must have is not known."""
    (Path(site.receipt.install_dir) / "current" / "agent.yaml").unlink()
    words = (NODE, "--ranks", "2", "--scenario", "assemble", "--json")
    done = verify_node(*words, **site.environment())

    assert done.status == 4, done.err
    assert "agent-config: " in done.err
    assert [each["ok"] for each in done.document["scenarios"]] == [True]
    assert done.document["nodes"][0]["outcome"] == "not judged"


def test_the_emitted_file_exits_5_where_a_check_is_critical(lab: Authority, tmp_path: Path) -> None:
    config = load(machine(tmp_path, lab, fabric="fabrics: [{name: f0, interface: nope0}]\n"), AgentConfig)
    file = tmp_path / "verify-me"
    file.write_bytes(stand_alone(config, Wish(2, ("assemble",))))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=90, check=False)
    document = json.loads(done.stdout)

    assert (done.returncode, document["ok"]) == (5, False), done.stderr
    assert [each["ok"] for each in document["scenarios"]] == [True]
