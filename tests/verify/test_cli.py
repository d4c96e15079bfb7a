"""verify-node as a person meets it: a process, its exit code, its two streams; over a real SSH server too."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from inventory.console import Console
from inventory.errors import BadInput, Refused
from inventory.model import Address, HostKey, Node, State
from inventory.reach import open_session
from inventory.store import Store
from inventory.ticket import Receipt, peek_receipt, sign_receipt
from tests.sshd import ADDRESS, Sshd, keygen, sshd
from verify import events, receipts, service
from verify.artefact import command, stdin_for
from verify.cli import app
from verify.probe.tls import Identity
from verify.scenarios import NAMES

from .identities import Authority, authority, identity, leaf_of, root_fingerprint
from .names import NODE, SPIFFE_ID
from .probing import left_of, order

UUID = "11111111-2222-3333-4444-555555555555"
COMMAND = Path(sys.executable).with_name("verify-node")


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def verify_node(*words: str | Path, **environment: str) -> Done:
    done = subprocess.run(
        [COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def agent_yaml(folder: Path, files: Identity, node: str = NODE) -> Path:
    file = folder / "agent.yaml"
    file.write_text(
        f"node: {node}\nidentity:\n  cert_file: {files.cert_file}\n  key_file: {files.key_file}\n"
        f"  ca_file: {files.ca_file}\n"
    )
    return file


# -- this machine itself ---------------------------------------------------------------------------------------------


def test_this_machine_passes_and_the_report_is_written_too(good: Identity, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = verify_node(
        *("--local", "--config", agent_yaml(tmp_path, good), "--json", "--report", report),
        *("--ranks", "3", "--scenario", "gate", "--scenario", "assemble"),
    )

    assert done.status == 0, done.err
    assert [each["name"] for each in done.document["scenarios"]] == ["assemble", "gate"]
    assert done.document == json.loads(report.read_text())
    assert done.document["nodes"][0]["state"] is None


def test_this_machine_fails_with_an_identity_of_another_authority(lab: Authority, tmp_path: Path) -> None:
    config = agent_yaml(tmp_path, identity(tmp_path / "id", by=lab, trusts=authority("other")))
    done = verify_node("--local", "--config", config, "--scenario", "assemble")

    assert done.status == 5
    assert done.out.startswith("gpu-01 did not pass: assemble failed")
    assert "error: gpu-01 did not pass muster" in done.err
    assert " next: " in done.err


def test_a_faulty_agent_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("node: gpu-01\nidentiti: {}\n")
    done = verify_node("--local", "--config", tmp_path / "agent.yaml")

    assert (done.status, done.out) == (2, "")
    assert "agent.yaml:2:1" in done.err


@pytest.mark.parametrize(("model", "ranks"), [("big", 6), ("one", 2)])
def test_the_shape_of_a_replica_comes_from_the_servers_file(
    good: Identity, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, ranks: int
) -> None:
    server = tmp_path / "server.yaml"
    server.write_text(
        "models:\n"
        '  - {name: big, source: "hf://a/b", engine: sim, nnodes: 2, tensor_parallel: 2, pipeline_parallel: 3}\n'
        '  - {name: one, source: "hf://a/b", engine: sim}\n'
    )
    config = agent_yaml(tmp_path, good)
    words = ["--local", "--config", config, "--dry-run", "--json", "--server", server, "--model", model]
    app([str(word) for word in words], standalone_mode=False)
    seen = capsys.readouterr()

    assert json.loads(seen.out)["ranks"] == ranks
    assert ("one has nobody to meet" in seen.err) is (model == "one")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no node was named"),
        (("--local",), "--config agent.yaml"),
        (("gpu-01", "--local", "--config", "a"), "verifies this machine alone"),
        (("gpu-01", "--config", "a"), "--config is for --local"),
        (("gpu-01",), "--ssh-key or MUSTER_SSH_KEY"),
        (("gpu-01", "gpu-02", "--receipt", "r", "--ssh-key", "k"), "2 were named"),
        (("gpu-01", "--scenario", "asemble"), "did you mean --scenario assemble"),
        (("gpu-01", "--ranks", "1"), "one rank alone has nobody to meet"),
        (("gpu-01", "--server", "s"), "--server and --model belong together"),
        (("gpu-01", "--report", "r.pdf"), "r.html"),
        (("gpu-01", "--ssh-key", "k"), "there is no receipt of gpu-01"),
        (("GPU_01", "--ssh-key", "k"), "GPU_01"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage_is_told_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], text: str
) -> None:
    monkeypatch.setenv("MUSTER_CA_DIR", str(tmp_path))
    with pytest.raises(BadInput) as refused:
        app(list(words), standalone_mode=False)

    assert text in f"{refused.value} {refused.value.next_step}"


def test_wrong_usage_exits_2_with_an_empty_stdout() -> None:
    done = verify_node(NODE, "--ranks", "1")

    assert (done.status, done.out) == (2, "")
    assert "one rank alone has nobody to meet" in done.err


# -- over SSH --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Site:
    """A node behind a real SSH server, and the security holder's side of it."""

    server: Sshd
    files: Identity
    receipt: Receipt
    ca_dir: Path
    record: str

    def environment(self) -> dict[str, str]:
        return {
            "MUSTER_CA_DIR": str(self.ca_dir),
            "MUSTER_SSH_KEY": str(self.server.login_key),
            "MUSTER_INVENTORY": self.record,
        }

    def sign(self, receipt: Receipt, *, key: Path | None = None) -> Path:
        """Put a receipt where onboard-node leaves it."""
        file = self.ca_dir / "receipts" / f"{receipt.node}.receipt"
        file.write_text(sign_receipt(receipt, key_file=key or self.server.login_key))
        return file


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def site(server: Sshd, lab: Authority, tmp_path: Path) -> Site:
    files = identity(tmp_path / "install" / "current", by=lab)
    receipt = Receipt(
        kind="onboarded",
        node=NODE,
        vm_uuid=UUID,
        ticket_id="ab12",
        serial=f"{leaf_of(files).serial_number:x}",
        spiffe_id=SPIFFE_ID,
        not_after=datetime(2027, 1, 1, tzinfo=UTC),
        host_keys=(server.host_key,),
        address=Address(ADDRESS, None, "static"),
        ssh_port=server.port,
        user=server.user,
        ca_fingerprint=root_fingerprint(lab),
        install_dir=str(tmp_path / "install"),
        owner=server.user,
        made_by="holder",
        made_at=datetime(2026, 11, 30, tzinfo=UTC),
    )
    (tmp_path / "ca" / "receipts").mkdir(parents=True)
    made = Site(server, files, receipt, tmp_path / "ca", f"sqlite:///{tmp_path / 'inventory.db'}")
    made.sign(receipt)
    return made


def test_a_node_is_verified_over_ssh_and_goes_into_service(site: Site) -> None:
    store = Store.open(site.record)
    store.add(Node(NODE, State.AWAITING_VERIFICATION, uuid=UUID), why="a test")
    done = verify_node(NODE, "--json", "-v", **site.environment())
    (node,) = done.document["nodes"]

    assert done.status == 0, done.err
    assert node["state"] == "in-service"
    assert [each["ok"] for each in node["verification"]["scenarios"]] == [True] * len(NAMES)
    assert node["verification"]["ranks"] == 8
    assert [event.after for event in store.history(NODE)][1:] == [State.VERIFYING, State.IN_SERVICE]
    assert "waiting for gpu-01" in done.err
    assert "missing-rank: ok" in done.err
    text = (site.ca_dir / "receipts" / f"{NODE}.receipt").read_text()
    assert peek_receipt(text).kind == "verified"
    assert (read := store.get(NODE)) is not None
    assert read.receipt == text


def test_a_node_with_another_host_key_gets_nothing(site: Site, tmp_path: Path) -> None:
    other = HostKey.from_line(keygen(tmp_path / "other").with_suffix(".pub").read_text())
    done = service.verify_node(
        replace(site.receipt, host_keys=(other,)),
        ssh_key=site.server.login_key,
        store=None,
        console=Console(quiet=True, stdout=StringIO(), stderr=StringIO()),
    )

    assert done.exit_code == 4
    assert done.error is not None
    assert "not the machine it should be" in done.error.what


def found(site: Site, **other: Any) -> Receipt:
    facts: dict[str, Any] = {
        "file": None,
        "ca_dir": site.ca_dir,
        "signers": None,
        "ssh_key": site.server.login_key,
    }
    return receipts.find(NODE, **{**facts, **other})


def test_a_receipt_that_the_holder_signed_is_believed(site: Site) -> None:
    assert found(site) == site.receipt


def test_a_receipt_that_somebody_else_signed_is_refused(site: Site, tmp_path: Path) -> None:
    site.sign(site.receipt, key=keygen(tmp_path / "mallory"))

    with pytest.raises(Refused, match="the receipt is not believed"):
        found(site)


def test_a_receipt_with_one_byte_changed_is_refused(site: Site) -> None:
    file = site.sign(site.receipt)
    file.write_text(file.read_text().replace('"ssh_port":', '"ssh_port": ', 1))

    with pytest.raises(Refused, match="the receipt is not believed"):
        found(site)


def test_the_receipt_of_another_node_is_refused(site: Site) -> None:
    file = site.sign(replace(site.receipt, node="gpu-02"))

    with pytest.raises(Refused, match="it is for gpu-02"):
        found(site, file=file)


def test_whose_receipts_count_can_be_said(site: Site, tmp_path: Path) -> None:
    holder = keygen(tmp_path / "holder")
    site.sign(site.receipt, key=holder)
    signers = tmp_path / "signers"
    signers.write_text(f"holder {holder.with_suffix('.pub').read_text()}")

    assert found(site, signers=signers) == site.receipt


def test_the_public_key_need_not_lie_beside_the_private_one(site: Site, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.write_bytes(site.server.login_key.read_bytes())
    alone.chmod(0o600)

    assert found(site, ssh_key=alone) == site.receipt


def test_a_refused_receipt_exits_3_before_any_connection(site: Site, tmp_path: Path) -> None:
    site.sign(site.receipt, key=keygen(tmp_path / "mallory"))
    done = verify_node(NODE, **site.environment())

    assert (done.status, done.out) == (3, "")


def test_of_several_nodes_each_is_told_and_the_worst_decides(site: Site) -> None:
    done = verify_node(
        NODE, "gpu-02", "--scenario", "assemble", "--ranks", "2", "--json", **site.environment()
    )
    first, second = done.document["nodes"]

    assert done.status == 2
    assert (first["ok"], second["ok"]) == (True, False)
    assert "there is no receipt of gpu-02" in done.err


def test_a_cut_ssh_session_leaves_no_rank_on_the_node(site: Site) -> None:
    session = open_session(
        host=ADDRESS,
        port=site.server.port,
        user=site.server.user,
        host_keys=[site.server.host_key],
        key_file=site.server.login_key,
    )
    remote = session.start(command())
    remote.send(stdin_for(order(site.files, "missing-rank").settings()))
    for line in remote.lines(timeout_s=20):
        event = events.read(line)
        if isinstance(event, events.Began):
            # sshd gives each command a session of its own
            of = int(Path(f"/proc/{event.pid}/stat").read_text().rpartition(")")[2].split()[3])
        if isinstance(event, events.Started):
            break
    session.close()

    assert left_of(of) == []
