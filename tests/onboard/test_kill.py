"""Whatever is killed, and wherever: the same command again ends well, and in between nothing is foreign."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ca.record import Standing
from ca.request import read_request
from inventory.errors import OtherSide
from inventory.model import State
from onboard.service import onboard
from tests.onboard.killing import Killing, killing
from tests.onboard.kit import Bench, bench, openssl
from tests.onboard.node import Node, Step, node

WHOLE = os.environ.get("MUSTER_KILL_MATRIX") == "whole"
"""Every step of the node's scripts; else every ninth, and those that move what is in force."""
_EVERY = 1 if WHOLE else 9
_ALWAYS = ("ln -s", "mv -T")


@dataclass(slots=True)
class Table:
    """What is printed."""

    rows: list[tuple[str, str, str, str]]

    def show(self) -> None:
        """To the terminal, also where the test succeeds."""
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        sys.stdout.write("\n")
        for side, step, after, end in self.rows:
            sys.stdout.write(f"{side:<{widths[0]}}  {step:<{widths[1]}}  {after:<{widths[2]}}  {end}\n")


@dataclass(slots=True)
class Place:
    """All that the cases share: each has a ticket of its own; every other one finds an older identity."""

    holder: Bench
    there: Node
    killing: Killing
    cases: int = 0
    ticket_id: str = ""

    def begin(self) -> str:
        """The ticket of the next case."""
        self.cases += 1
        self.ticket_id = f"{self.cases:04x}"
        if self.cases % 2:
            shutil.rmtree(self.holder.install_dir, ignore_errors=True)
        return self.holder.signed(id=self.ticket_id)

    def look(self) -> str:
        """What holds at any instant; then the state of things in a few words."""
        records = [one for one in self.holder.authority().records() if one.ticket_id == self.ticket_id]
        live = [one for one in records if one.standing in {Standing.ISSUED, Standing.INSTALLED}]
        assert len(live) <= 1
        assert all(one.node == "gpu-01" for one in records)
        keys = []
        for folder in self._generations():
            key, chain = folder / "key.pem", folder / "chain.pem"
            if chain.exists():
                assert _public("x509", chain) == _public("pkey", key), f"foreign certificate in {folder}"
            if key.exists() and self.mine(folder):
                keys.append(_key_hash(key, self.holder.folder))
        if live:
            assert live[0].key_sha256 in keys, "a certificate whose key is not there"
        link = self.holder.current(".")
        if link.is_symlink():
            chain, bundle = (self.holder.current(name) for name in ("chain.pem", "bundle.pem"))
            assert "OK" in openssl("verify", "-CAfile", bundle, "-untrusted", chain, chain)
        standing = str(records[-1].standing) if records else "no certificate"
        in_force = link.is_symlink() and self.mine(link.resolve())
        return f"{standing}, {'in force' if in_force else 'key made' if keys else 'no key'}"

    def end(self, text: str) -> str:
        """The same command again, and what must hold then; now and then once more, which changes nothing."""
        outcome = onboard(text, self.holder.desk())
        records = [one for one in self.holder.authority().records() if one.ticket_id == self.ticket_id]
        assert self.look() == "installed, in force"
        assert [one.standing for one in self.holder.authority().records() if one.live(datetime.now(UTC))] == [
            Standing.INSTALLED
        ]
        assert {one.standing for one in records} <= {Standing.INSTALLED, Standing.FAILED}
        assert self.holder.authority().open_intents == ()
        assert outcome.held is not None
        kept = {
            self.holder.current(".").resolve().name,
            self.holder.current("before").read_text().rpartition("/")[2],
        }
        assert {folder.name for folder in self._generations()} <= kept
        assert not [*self.holder.install_dir.rglob("*.new"), *self.holder.install_dir.glob(".current*")]
        found = self.holder.store().get("gpu-01")
        assert found is not None
        assert found.state is State.AWAITING_VERIFICATION
        assert outcome.held.serial in (found.receipt or "")
        if WHOLE or self.cases % 4 == 0:
            assert not onboard(text, self.holder.desk()).changed
        return "in force" if outcome.changed else "in force already"

    def mine(self, folder: Path) -> bool:
        """Was it made for this case's ticket?"""
        ticket = folder / "ticket"
        return ticket.exists() and ticket.read_text().strip() == self.ticket_id

    def _generations(self) -> list[Path]:
        return [*self.holder.install_dir.glob("generations/*")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kill")
    with node(folder / "sshd") as there, killing() as program:
        yield Place(bench(folder, there.server), there, program)


def test_our_side_may_be_killed_anywhere(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.there.forget()
    status, names = place.killing.enrol(place.holder, place.begin(), kill_at=0)
    assert status == 0
    assert {"logged in", "command run", "audit written", "record moved", "file written"} <= set(names)
    table = Table([("side", "killed after", "then", "the same command again")])
    for at in range(1, len(names) + 1):
        text = place.begin()
        place.there.forget()
        killed, passed = place.killing.enrol(place.holder, text, kill_at=at)
        assert killed == -9
        after = place.look()
        table.rows.append(("ours", f"{at:>2} {passed[-1]}", after, place.end(text)))
    with capsys.disabled():
        table.show()


@pytest.mark.parametrize("end", ["shell", "link"])
def test_the_nodes_side_may_be_cut_off_anywhere(
    place: Place, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place.there.step()
    onboard(place.begin(), place.holder.desk())
    steps = [step for step in place.there.steps if _chosen(step)]
    assert {step.run for step in steps} == {2, 3}
    table = Table([("side", "cut before", "then", "the same command again")])
    for step in steps:
        text = place.begin()
        place.there.step(end, step)
        with pytest.raises(OtherSide):
            onboard(text, place.holder.desk())
        place.there.quiet()
        after = place.look()
        if end == "link" and step.run == 3:
            assert after == "issued, in force", "a script that nobody listens to runs to its end"
        place.there.forget()
        table.rows.append((end, f"{step.run}.{step.at:<2} {step.command[:60]}", after, place.end(text)))
    with capsys.disabled():
        table.show()


def _chosen(step: Step) -> bool:
    return step.at % _EVERY == 1 % _EVERY or step.command.startswith(_ALWAYS)


def _public(kind: str, file: Path) -> str:
    return openssl(
        *((kind, "-in", file, "-noout", "-pubkey") if kind == "x509" else (kind, "-in", file, "-pubout"))
    )


def _key_hash(key: Path, folder: Path) -> str:
    request = folder / "request.pem"
    openssl("req", "-new", "-key", key, "-subj", "/CN=x", "-out", request)
    return read_request(request.read_bytes()).sha256
