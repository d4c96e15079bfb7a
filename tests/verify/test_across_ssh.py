"""`verify-node --across` as a person types it, over real SSH servers: one connection and one command for each node."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inventory.errors import BadInput
from inventory.model import Address, Fabric, Node, State
from inventory.store import Store
from inventory.ticket import Receipt, sign_receipt
from tests.sshd import ADDRESS, Sshd, sshd
from verify.across_drills import NAMES as SCENARIOS
from verify.cli import app

from .identities import Authority, identity, leaf_of, root_fingerprint
from .test_cli import Done, verify_node
from .test_reports import read_tap, strange, xml

NAMES = ("gpu-01", "gpu-02")


@dataclass(frozen=True, slots=True)
class Site:
    """Two nodes that are reached over SSH, with fabric addresses of their own on record."""

    folder: Path
    servers: tuple[Sshd, ...]

    @property
    def record(self) -> str:
        return f"sqlite:///{self.folder / 'inventory.db'}"

    def across(self, *words: str | Path) -> Done:
        environment = {
            "MUSTER_CA_DIR": str(self.folder / "ca"),
            "MUSTER_SSH_KEY": str(self.servers[0].login_key),
            "MUSTER_INVENTORY": self.record,
        }
        return verify_node("--across", "gpu-[01-02]", *words, **environment)

    def said(self, index: int, words: str) -> int:
        """How often a server wrote that in its log."""
        return (self.folder / f"sshd-{index}" / "log").read_text().count(words)


@pytest.fixture(scope="module")
def site(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    tmp_path = tmp_path_factory.mktemp("across")
    (tmp_path / "ca" / "receipts").mkdir(parents=True)
    with ExitStack() as stack:
        servers = tuple(
            stack.enter_context(sshd(tmp_path / f"sshd-{index}", options="LogLevel VERBOSE"))
            for index, _ in enumerate(NAMES)
        )
        key = servers[0].login_key
        made = Site(tmp_path, servers)
        store = Store.open(made.record)
        for index, (name, server) in enumerate(zip(NAMES, servers, strict=True)):
            server.authorized_keys.write_text(key.with_suffix(".pub").read_text())
            uuid = f"11111111-2222-3333-4444-55555555555{index}"
            fabric = Fabric("ib", interface="lo", mtu=9000, address=f"127.0.0.{21 + index}/24")
            store.add(
                Node(name, State.IN_SERVICE, uuid=uuid, fabrics=(fabric,)),
                why="a test",
            )
            receipt = receipt_of(name, uuid, server, lab, tmp_path / name)
            text = sign_receipt(receipt, key_file=key)
            (tmp_path / "ca" / "receipts" / f"{name}.receipt").write_text(text)
        yield made


def receipt_of(name: str, uuid: str, server: Sshd, lab: Authority, install: Path) -> Receipt:
    spiffe_id = f"spiffe://lab.example/node/{name}"
    files = identity(install / "current", by=lab, uris=(spiffe_id,))
    return Receipt(
        kind="onboarded",
        node=name,
        vm_uuid=uuid,
        ticket_id="ab12",
        serial=f"{leaf_of(files).serial_number:x}",
        spiffe_id=spiffe_id,
        not_after=datetime(2027, 1, 1, tzinfo=UTC),
        host_keys=(server.host_key,),
        address=Address(ADDRESS, None, "static"),
        ssh_port=server.port,
        user=server.user,
        ca_fingerprint=root_fingerprint(lab),
        install_dir=str(install),
        owner=server.user,
        made_by="holder",
        made_at=datetime(2026, 11, 30, tzinfo=UTC),
    )


def test_two_nodes_pass_together_over_one_connection_and_one_command_each(site: Site) -> None:
    report = site.folder / "report.json"
    others = [site.folder / f"report{form}" for form in (".html", ".xml", ".tap")]
    before = [site.said(index, "Accepted publickey") for index in (0, 1)]
    done = site.across(
        "--json", "--report", report, *(word for file in others for word in ("--report", file))
    )

    assert done.status == 0, done.err
    assert done.document == json.loads(report.read_text())
    assert {each["ok"] for each in done.document["scenarios"]} == {True}
    assert [(each["node"], each["rank"]) for each in done.document["time_line"]] == [
        ("gpu-01", 0),
        ("gpu-01", 1),
        ("gpu-02", 2),
        ("gpu-02", 3),
    ]
    page, cases, lines = (file.read_text() for file in others)
    assert "<title>verify-node: 2 nodes together passed</title>" in page
    assert page.count("<g><title>rank ") == 4
    assert strange(xml(cases)) == []
    assert {ok for ok, _, _ in read_tap(lines)} == {True}
    for scenario in SCENARIOS:
        assert f'name="{scenario}"' in cases
        assert f"together: scenario: {scenario}" in lines
    assert tuple(each["name"] for each in done.document["scenarios"]) == SCENARIOS
    assert [each["address"] for each in done.document["nodes"]] == ["127.0.0.21", "127.0.0.22"]
    assert [(each["name"], each["mtu"], each["ok"]) for each in done.document["fabrics"]] == [
        ("ib", 9000, True),
        ("management", 1500, True),
    ]
    history = Store.open(site.record).history("gpu-02")
    assert "gpu-01, gpu-02 passed together: 4 ranks" in history[-1].why
    for index in (0, 1):
        assert site.said(index, "Accepted publickey") - before[index] == 1
        assert site.said(index, "Starting session: command") - before[index] == 1


def test_a_plan_names_the_addresses_and_reaches_nobody(site: Site) -> None:
    before = site.said(0, "Accepted publickey")
    done = site.across("--dry-run", "--ranks", "6")

    assert done.status == 0, done.err
    assert "gpu-02\t127.0.0.22\t3 ranks\tib management" in done.out.splitlines()
    assert site.said(0, "Accepted publickey") == before


def test_a_node_of_which_an_address_is_not_its_own_fails_with_the_network_named(site: Site) -> None:
    store = Store.open(site.record)
    node = store.get("gpu-02")
    assert node is not None
    store.save(replace(node, fabrics=(Fabric("ib", address="192.0.2.9/24"),)))
    done = site.across("--scenario", "assemble")
    after = store.get("gpu-02")
    assert after is not None
    store.save(replace(after, fabrics=node.fabrics))

    assert done.status == 5, done.err
    assert done.out.splitlines()[0].startswith("gpu-01, gpu-02 did not pass together: ib: gpu-01 to gpu-02")
    assert "192.0.2.9 is no address of this node" in done.err
    assert after.state is State.IN_SERVICE


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--ranks", "3"), "3 ranks cannot be placed on 2 nodes"),
        (
            ("--scenario", "wrong-identity-expired"),
            "there is no scenario 'wrong-identity-expired' across nodes",
        ),
        (("--local",), "nothing was verified across nodes: --local cannot be given with --across"),
        (("--report", "a.pdf"), "must be one of .json, .xml, .tap, .html"),
        (("--spawn", "exec", "--emit-probe", "f"), "--emit-probe, --spawn cannot be given with --across"),
        ((), "which key logs in is not known"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_asked(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        app(["--across", "gpu-[01-02]", *words], standalone_mode=False)


def test_the_engines_commands_use_the_fabrics_of_the_record(site: Site) -> None:
    server = site.folder / "server.yaml"
    server.write_text(
        'models:\n  - {name: m, source: "hf://a/b", engine: sglang, nnodes: 2, tensor_parallel: 4}\n'
    )
    words = ("gpu-[01-02]", "--show-engine", "--server", server, "--model", "m", "--json")
    done = verify_node(*words, MUSTER_INVENTORY=site.record)
    commands = [each["command"] for each in done.document["commands"]]

    assert done.status == 0, done.err
    assert done.document["world_size"] == 4
    assert commands[1] == (
        "GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo python3 -m sglang.launch_server --model-path a/b"
        " --served-model-name m --tp-size 4 --pp-size 1 --nnodes 2 --node-rank 1"
        " --dist-init-addr 127.0.0.21:20000 --host 127.0.0.22 --port 30000"
    )
