"""Record and ledger against a real SSH node: what it has otherwise is found, and nothing is changed there."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ca.authority import Authority
from inventory.agent_config import AgentConfig
from inventory.checking import Disagreement, NotChecked, Offer, Outcome, Severity, run_checks
from inventory.document import load
from inventory.errors import BadInput, ExitCode
from inventory.jump import Jump
from inventory.model import Fabric, HostKey, Node, State
from inventory.signature import public_key_line
from inventory.ticket import Ticket
from onboard.desk import Desk
from onboard.facts import parse
from onboard.node_checker import NodeChecker
from onboard.node_compare import Wanted
from onboard.refresh import refresh
from onboard.renewal import renew
from onboard.upkeep import Look, known
from tests.ca.material import request
from tests.inventory.check_kit import typed
from tests.onboard.check_kit import asked, contents, copy_of, original, the_node, told
from tests.onboard.kit import CHEAP, KEY, PASSPHRASE, Bench, openssl, policy_text
from tests.onboard.upkeep_kit import with_lists
from tests.ports import free_port
from tests.sshd import ADDRESS, keygen, sshd

CHECKER = NodeChecker()
OTHER_UUID = "0e1a2b3c-0000-4000-8000-0000000000ff"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from original(tmp_path_factory.mktemp("once"))


@pytest.fixture
def holder(once: Bench, tmp_path: Path) -> Bench:
    return copy_of(once, tmp_path)


def check(holder: Bench, *nodes: Node) -> tuple[list[Disagreement], list[NotChecked]]:
    return told(CHECKER, asked(holder, nodes, key=holder.server.login_key))


def current(holder: Bench) -> Path:
    """The folder of the identity in force."""
    return (holder.install_dir / "current").resolve()


def without_identity(holder: Bench, node: Node) -> Node:
    (holder.install_dir / "current").unlink()
    return node


def another_certificate(holder: Bench, node: Node) -> Node:
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"),
        *("-keyout", os.devnull, "-out", current(holder) / "chain.pem"),
    )
    return node


def another_agent(holder: Bench, node: Node) -> Node:
    file = current(holder) / "agent.yaml"
    file.write_text(file.read_text().replace("gpu-01", "gpu-02"))
    return node


def a_new_list(holder: Bench, node: Node) -> Node:
    with_lists(holder)
    return node


def another_bundle(holder: Bench, node: Node) -> Node:
    with (current(holder) / "bundle.pem").open("a") as file:
        file.write("\n")
    return node


def unfinished(holder: Bench, node: Node) -> Node:
    (current(holder) / "pending").touch()
    return node


def an_exact_clock(holder: Bench, node: Node) -> Node:
    """The policy allows nothing, and the clock tells whole seconds only."""
    holder.set_policy(max_clock_skew_s="0")
    return node


@dataclass(frozen=True)
class Case:
    """What is otherwise on the node or on record, and what the mend has."""

    change: Callable[[Bench, Node], Node]
    mend: str


ANEW = "provision-node gpu-01 --reissue-ticket, then onboard-node gpu-01"
CASES: dict[str, Case] = {
    "node-without-identity": Case(without_identity, ANEW),
    "node-certificate": Case(another_certificate, "onboard-node gpu-01 --renew"),
    "node-machine-id": Case(lambda _, node: replace(node, machine_id="ab" * 16), ANEW),
    "node-agent-config": Case(another_agent, "current/agent.yaml"),
    "node-fabrics": Case(lambda _, node: replace(node, fabrics=(Fabric("fabric9"),)), "gpu-01 --drift"),
    "node-clock": Case(an_exact_clock, "timedatectl"),
    "node-bundle": Case(another_bundle, "onboard-node gpu-01 --refresh"),
    "node-revocation-list": Case(a_new_list, "onboard-node gpu-01 --refresh"),
    "node-refresh-unfinished": Case(unfinished, "onboard-node gpu-01 --refresh"),
}


@pytest.mark.parametrize("about", CASES)
def test_each_kind_is_found_and_nothing_else(holder: Bench, about: str) -> None:
    case, node = CASES[about], the_node(holder)

    found, untold = check(holder, case.change(holder, node))

    assert [(each.node, each.about, each.source) for each in found][:1] == [("gpu-01", about, "nodes")]
    assert {each.about for each in found} <= {about, *ALSO.get(about, ())}
    assert case.mend in found[0].mend
    assert untold == []


@pytest.mark.parametrize(
    ("about", "mend"),
    [
        ("node-certificate", renew),
        ("node-bundle", refresh),
        ("node-revocation-list", refresh),
        ("node-refresh-unfinished", refresh),
    ],
    ids=["certificate", "bundle", "list", "unfinished"],
)
def test_a_mend_that_is_a_command_mends(
    holder: Bench, about: str, mend: Callable[[str, Desk], object]
) -> None:
    CASES[about].change(holder, the_node(holder))
    (told_of,), _ = check(holder, the_node(holder))
    assert told_of.mend == f"onboard-node gpu-01 --{mend.__name__}"

    mend("gpu-01", holder.desk())

    assert check(holder, the_node(holder)) == ([], [])


ALSO = {"node-without-identity": ("node-revocation-list",)}
"""What is lost together with it."""


def test_every_kind_has_its_case() -> None:
    """But for the uuid and the host key, which need another machine: see below."""
    assert {kind.about for kind in CHECKER.kinds} == {*CASES, "node-machine-uuid", "node-host-key"}


def test_another_uuid_than_the_records_is_found_where_the_node_tells_it(holder: Bench) -> None:
    node, authority = the_node(holder), holder.authority()
    of, wanted = known(authority, "gpu-01"), Wanted(authority, None)

    def found(uuid: str) -> list[str]:
        clock = datetime.now(UTC)
        answer = f"uid=0\nclock={clock.timestamp():.0f}\nmachine_uuid={uuid}\nend=facts\n"
        facts = replace(parse(answer.encode()), current_sha256=of.record.fingerprint_sha256)
        look = Look(facts, agent, bundle=None, crl=None, pending=False)
        return [
            each.about for each in wanted.against(node, of, look, clock) if isinstance(each, Disagreement)
        ]

    agent = load(current(holder) / "agent.yaml", AgentConfig)
    authority.close()

    assert found(str(node.uuid)) == []
    assert found(OTHER_UUID) == ["node-machine-uuid"]


def test_what_a_refresh_mends_is_only_a_notice() -> None:
    for kind in CHECKER.kinds:
        assert (kind.severity is Severity.NOTICE) == kind.mend.endswith("--refresh")


def test_a_node_as_it_should_be_agrees_and_is_not_changed(holder: Bench) -> None:
    before, audit = contents(holder.install_dir), (holder.folder / "ca" / "audit.jsonl").read_bytes()

    assert check(holder, the_node(holder)) == ([], [])

    assert contents(holder.install_dir) == before
    assert (holder.folder / "ca" / "audit.jsonl").read_bytes() == audit


def test_the_command_compares_ledger_and_node_and_writes_nowhere(holder: Bench) -> None:
    arguments = ["--ca-dir", str(holder.folder / "ca"), "--ssh-key", str(holder.server.login_key)]
    arguments += ["--inventory", f"sqlite:///{holder.folder / 'record.db'}"]
    holder.authority().close()  # the index is brought up to date by whoever opens it
    before = contents(holder.folder, but="index")

    done = typed(*arguments)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.splitlines()[-1] == "all agree: compared with record, ledger, nodes; not with proxmox"
    assert contents(holder.folder, but="index") == before


def test_a_node_without_agent_config_is_told_so(holder: Bench) -> None:
    (current(holder) / "agent.yaml").write_text("node: [")

    (told_of,), _ = check(holder, the_node(holder))

    assert (told_of.about, told_of.found) == ("node-agent-config", "absent or faulty")


def test_only_nodes_that_serve_are_asked(holder: Bench) -> None:
    another_certificate(holder, the_node(holder))

    assert check(holder, replace(the_node(holder), state=State.RETIRED)) == ([], [])


def test_a_node_of_which_the_ledger_knows_nothing_is_not_asked(holder: Bench) -> None:
    found, (untold,) = check(holder, replace(the_node(holder), name="gpu-02"))

    assert found == []
    assert (untold.node, untold.exit_code) == ("gpu-02", 3)
    assert "onboard-node gpu-02" in untold.how


def pinned(holder: Bench, *, jump: Jump | None = None, **facts: Any) -> Outcome:
    """What becomes of gpu-01 where an authority has this port, or these host keys, for it."""
    shutil.rmtree(holder.folder / "ca")
    pin(holder, replace(holder.ticket(), **facts))
    run = replace(asked(holder, [the_node(holder)], key=holder.server.login_key), jump=jump)
    return run_checks([Offer("nodes", lambda: NodeChecker)], run)


def told_of_pinned(holder: Bench, *, jump: Jump | None = None, **facts: Any) -> NotChecked:
    """The same where nothing but that it was not checked may come of it."""
    outcome = pinned(holder, jump=jump, **facts)
    (untold,) = outcome.not_checked
    assert outcome.exit_code is ExitCode.OTHER_SIDE
    assert outcome.checked == ["nodes"]
    assert outcome.disagreements == []
    assert (untold.node, untold.source) == ("gpu-01", "nodes")
    return untold


def pin(holder: Bench, ticket: Ticket) -> None:
    """A new authority, whose ledger has the machine of a ticket."""
    file, now = holder.folder / "policy.yaml", datetime.now(UTC)
    file.write_text(policy_text(holder))
    authority = Authority.create(
        holder.folder / "ca", policy_file=file, passphrase=PASSPHRASE, now=now, kdf=CHEAP
    )
    issued = authority.issue(
        request(),
        node=ticket.node,
        vm_uuid=ticket.vm_uuid,
        static_address=None,
        signer=authority.unlock(PASSPHRASE),
        now=now,
        actor="holder",
        ticket_id=ticket.id,
        host_keys=ticket.host_keys,
        pin={"address": ticket.address.ip, "ssh_port": ticket.ssh_port, "user": ticket.user},
    )
    authority.installed(issued.serial, now=now, actor="holder")
    authority.close()


def test_a_node_out_of_reach_is_not_checked_and_the_run_ends_with_4(holder: Bench) -> None:
    assert "refused" in told_of_pinned(holder, ssh_port=free_port()).why


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_another_machine_at_its_address_is_wrong_and_is_not_asked(
    holder: Bench, tmp_path: Path, kind: str
) -> None:
    pins = (
        (KEY,)
        if kind == "ed25519"
        else (HostKey.from_line(public_key_line(keygen(tmp_path / "k", kind=kind))),)
    )
    outcome = pinned(holder, host_keys=pins)

    (told_of,) = outcome.disagreements
    assert (outcome.not_checked, outcome.exit_code) == ([], ExitCode.REFUSED)
    assert (told_of.node, told_of.about, told_of.recorded) == (
        "gpu-01",
        "node-host-key",
        pins[0].fingerprint,
    )
    shown = holder.server.host_key.fingerprint
    assert told_of.found == (
        f"host key {shown}" if kind == "ed25519" else "no host key of the pinned type (ssh-rsa)"
    )
    assert f"see which VM answers at {holder.ticket().address.ip}" in told_of.mend
    assert told_of.mend.endswith("provision-node gpu-01 --reissue-ticket, then onboard-node gpu-01 --replace")


def test_another_machine_in_place_of_the_jump_host_says_nothing_of_the_node(
    holder: Bench, tmp_path: Path
) -> None:
    with sshd(tmp_path / "jump") as between:
        jump = Jump(ADDRESS, between.port, "root", (KEY,))
        untold = told_of_pinned(holder, jump=jump)

    assert f"{ADDRESS} is not the machine it should be" in untold.why


def test_without_a_key_or_an_authority_nobody_is_asked(holder: Bench, tmp_path: Path) -> None:
    node, key = the_node(holder), holder.server.login_key
    with pytest.raises(BadInput, match="neither --ssh-key"):
        told(CHECKER, asked(holder, [node]))
    with pytest.raises(BadInput, match="there is no authority"):
        told(CHECKER, replace(asked(holder, [node], key=key), ca_dir=tmp_path / "nowhere"))

    assert CHECKER.was_asked(asked(holder, [node], key=key))
    assert not CHECKER.was_asked(asked(holder, [node]))
    assert not CHECKER.was_asked(replace(asked(holder, [node], key=key), ca_dir=None))
