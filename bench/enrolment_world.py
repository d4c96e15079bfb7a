"""The world in which enrolments are measured; runs in a network namespace of its own, and is told what to run.

Each line of stdin is `ours COUNT` or `floor COUNT`, and each line of stdout the figures of that run as JSON.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.enrolment_floor import Floor
from bench.enrolment_nodes import DELAY_MS, BenchNode, Nodes, keygen
from ca.authority import Authority
from ca.keystore import KDF_FLOOR
from inventory.model import Address
from inventory.ticket import TICKET_NAMESPACE, sign_ticket
from onboard.cli import app
from tests.onboard.kit import ticket

_PASSPHRASE = b"correct horse battery staple"
_POLICY = """\
trust_domain: lab.example
names: ["{{node}}.nodes.lab.example"]
addresses: [127.0.0.0/8]
ticket_signers: {signers}
machine_uuid: optional
unattended: true
bootstrap_keys: keep
install: {{dir: {install}, owner: root, group: root}}
"""


class World:
    """Infra's key, and the holder's desk, made anew for each run."""

    def __init__(self, folder: Path, *, netem: bool) -> None:
        """Everything lies in `folder`."""
        self.folder = folder
        self.nodes = Nodes(folder, netem=netem)
        self.infra = keygen(folder / "infra")
        self.floor = Floor()
        kind, blob = self.infra.with_suffix(".pub").read_text().split()[:2]
        signers = folder / "signers"
        signers.write_text(f'infra@bench namespaces="{TICKET_NAMESPACE}" {kind} {blob}\n')
        (folder / "policy.yaml").write_text(_POLICY.format(signers=signers, install=self.nodes.install_dir))
        (folder / "passphrase").write_bytes(_PASSPHRASE)
        (folder / "passphrase").chmod(0o600)

    def run_ours(self, count: int) -> dict[str, Any]:
        """onboard-node with so many tickets, in this process; what unlocking the key takes is taken off."""
        nodes = self._fresh(count)
        desk = Path(tempfile.mkdtemp(dir=self.folder, prefix="desk-"))
        policy = self.folder / "policy.yaml"
        now = datetime.now(UTC)
        Authority.create(
            desk / "ca", policy_file=policy, passphrase=_PASSPHRASE, now=now, kdf=KDF_FLOOR
        ).close()
        unlocking = self._unlocking(desk / "ca")  # measured before and after, for a machine's speed changes
        words = ["--yes", "--no-verify", "--json", "--ca-dir", str(desk / "ca")]
        words += ["--passphrase-file", str(self.folder / "passphrase"), "--ssh-key", str(self.nodes.login)]
        words += ["--inventory", f"sqlite:///{desk / 'record.db'}"]
        for file in self._tickets(nodes, desk):
            words += ["--ticket", str(file)]
        out, err = io.StringIO(), io.StringIO()
        before = _counted(nodes)
        began, cpu = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = app(args=words, standalone_mode=False)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        if code or not json.loads(out.getvalue())["ok"]:
            raise RuntimeError(
                f"onboard-node ended with {code}: {err.getvalue()[-2000:]} {out.getvalue()[-2000:]}"
            )
        after = _counted(nodes)
        unlocking = (unlocking + self._unlocking(desk / "ca")) / 2
        shutil.rmtree(desk)
        return {
            "wall_s": wall - unlocking,
            "unlocking_s": unlocking,
            "client_cpu_s": cpu,
            "connections": (after[0] - before[0]) / count,
            "execs": (after[1] - before[1]) / count,
        }

    def run_floor(self, count: int) -> dict[str, Any]:
        """The same by hand, for one node after the other."""
        nodes = self._fresh(count)
        began = time.perf_counter()
        for node in nodes:
            self.floor.enrol(node, login=self.nodes.login, directory=self.nodes.install_dir)
        return {"wall_s": time.perf_counter() - began}

    def _fresh(self, count: int) -> Sequence[BenchNode]:
        nodes = self.nodes.first(count)
        for node in nodes:
            node.forget()
        return nodes

    def _tickets(self, nodes: Sequence[BenchNode], desk: Path) -> list[Path]:
        machine_id = Path("/etc/machine-id")
        files = []
        now = datetime.now(UTC).replace(microsecond=0)
        for number, node in enumerate(nodes, start=1):
            told = replace(
                ticket(),
                id=os.urandom(8).hex(),
                node=f"gpu-{number:02}",
                vm_uuid=_own_uuid() or f"0e1a2b3c-0000-4000-8000-{number:012x}",
                machine_id=None
                if not machine_id.exists() or len(nodes) > 1
                else machine_id.read_text().strip(),
                address=Address(node.address, 8, "static"),
                ssh_port=node.port,
                host_keys=(node.host_key,),
                user="root",
                made_by=None,
                made_at=now,
                expires=now + timedelta(hours=1),
            )
            file = desk / f"{told.node}.ticket"
            file.write_text(sign_ticket(told, key_file=self.infra))
            files.append(file)
        return files

    @staticmethod
    def _unlocking(folder: Path) -> float:
        authority = Authority.open(folder, now=datetime.now(UTC))
        began = time.perf_counter()
        authority.unlock(_PASSPHRASE)
        took = time.perf_counter() - began
        authority.close()
        return took


def _counted(nodes: Sequence[BenchNode]) -> tuple[int, int]:
    counts = [node.counted() for node in nodes]
    return sum(logins for logins, _ in counts), sum(commands for _, commands in counts)


def _own_uuid() -> str | None:
    try:
        return Path("/sys/class/dmi/id/product_uuid").read_text().strip().lower()
    except OSError:
        return None


def delayed_by_kernel() -> bool:
    """Whether netem holds back what goes over this namespace's loopback now."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=30)
    command = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", f"{DELAY_MS}ms"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except FileNotFoundError:
        return False


def main() -> None:
    """Say which delay there is; then run what is asked for until stdin ends."""
    netem = delayed_by_kernel()
    with tempfile.TemporaryDirectory(prefix="bench-enrolment-") as name:
        world = World(Path(name), netem=netem)
        try:
            print(json.dumps({"delay": "netem" if netem else "a relay of the bench's own"}), flush=True)
            for line in sys.stdin:
                which, count = line.split()
                run = world.run_ours if which == "ours" else world.run_floor
                print(json.dumps(run(int(count))), flush=True)
        finally:
            world.nodes.close()


if __name__ == "__main__":
    main()
