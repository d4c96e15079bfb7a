"""What the holder sees and types, at a real terminal: the screen, the word, the ways to say no."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca.keystore import DEFAULT_KDF
from ca.record import Record, Standing
from inventory.model import State
from inventory.ticket import Believed
from onboard import screen
from onboard.facts import Facts
from onboard.service import onboard
from onboard.terminal import agreement
from tests.onboard.kit import NOW, PASSPHRASE, UUID, Bench, bench, ticket
from tests.onboard.node import node
from tests.onboard.test_plan import facts, planned
from tests.sshd import Sshd, sshd

PROMPT = b"[gpu-01]: "


def shown(told: Facts, *, signer: str = "infra@lab", records: tuple[Record, ...] = ()) -> list[str]:
    """The screen for gpu-01's ticket and a machine that tells this."""
    asked = replace(ticket(), macs=("bc:24:11:00:00:02",))
    return screen.lines(
        Believed(asked, signer, "1a2b-3c4d-5e6f-7a8b"),
        told,
        planned(told),
        now=NOW + timedelta(minutes=5),
        ca_name="CN=Lab Issuing",
        validity=(NOW - timedelta(minutes=10), NOW + timedelta(days=30)),
        records=records,
    )


def test_the_screen_sets_the_ticket_against_the_machine_and_says_what_will_be_where() -> None:
    text = "\n".join(shown(facts(hostname="gpu-01")))

    for wanted in (
        r"node +gpu-01\n",
        r"asked by +infra@lab, 5 min ago, on 2026-11-30T12:00:00Z \(2026-11-30 \d\d:\d\d \w+\)\n",
        r"ticket +1a2b-3c4d-5e6f-7a8b, until 2026-12-03T12:00:00Z",
        rf"machine uuid +{UUID}, as the machine says\n",
        rf"machine-id +{'ab' * 16}, as the machine says\n",
        r"MACs +bc:24:11:00:00:02 \(eth1\)\n",
        r"SSH host key +ssh-ed25519 SHA256:\S+,",
        r"reached at +127.20.0.5 \(static\), port 22, as muster\n",
        r"clock +the node's agrees with ours\n",
        r"names +gpu-01.nodes.lab.example\n",
        r"identity +spiffe://lab.example/node/gpu-01\n",
        r"key +P-256",
        r"valid from +2026-11-30T11:50:00Z \(.+\)\n",
        r"valid until +2026-12-30T12:00:00Z \(.+\)\n",
        r"written to +/etc/muster/generations/1: key.pem, chain.pem",
        r"owned by +muster:muster,",
        r"older identity +none\n",
    ):
        assert re.search(wanted, text), wanted
    assert "!" not in text


def test_what_differs_begins_with_a_mark_and_says_so_without_colour() -> None:
    rows = shown(facts(hostname="gpu-02", interfaces={"bc:24:11:00:00:03": "eth1"}))
    marked = [row for row in rows if row.startswith("!")]

    assert [row.split() for row in marked] == [
        ["!", "host", "name", "ticket:", "gpu-01"],
        ["!", "machine:", "gpu-02", "<-", "DIFFERS"],
        ["!", "MACs", "ticket:", "bc:24:11:00:00:02"],
        ["!", "machine:", "lacks", "bc:24:11:00:00:02", "<-", "DIFFERS"],
    ]


def test_an_older_identity_is_told_by_its_serial_and_end() -> None:
    known = facts(current=3, current_sha256="ab" * 32)
    record = Record(
        serial="5eed",
        node="gpu-01",
        vm_uuid=UUID,
        standing=Standing.INSTALLED,
        names=(),
        addresses=(),
        spiffe_id="",
        not_before=NOW,
        not_after=NOW + timedelta(days=9),
        key_sha256="",
        actor="holder",
        at=NOW,
        fingerprint_sha256="ab" * 32,
    )

    assert any(
        "generation 3, certificate 5eed (installed), until 2026-12-09T12:00:00Z" in row
        for row in shown(known, records=(record,))
    )
    assert any("does not know, SHA-256 abab" in row for row in shown(known))


def test_nothing_on_the_screen_steers_a_terminal_or_makes_a_line_of_its_own() -> None:
    plain, odd = shown(facts()), shown(facts(), signer="infra\x1b[2J\n  node  gpu-99\u202e")

    assert len(odd) == len(plain)
    assert any(r"infra\x1b[2J\n  node  gpu-99\u202e" in row for row in odd)


def test_a_slow_human_does_not_lose_the_session(tmp_path: Path) -> None:
    with node(tmp_path / "node", options="ClientAliveInterval 1\nClientAliveCountMax 4") as there:
        holder = bench(tmp_path, there.server)
        ours, theirs = os.openpty()
        terminal = Path(os.ttyname(theirs))

        def ask(name: str) -> None:
            agreement(name, yes=False, unattended=False, no_input=False, terminal=terminal)

        def answer() -> None:
            _read_until(ours, PROMPT)
            time.sleep(7.0)
            os.write(ours, b"gpu-01\n")

        typing = threading.Thread(target=answer)
        typing.start()
        desk = replace(holder.desk(), agree=ask)
        try:
            outcome = onboard(holder.signed(), desk)
        finally:
            typing.join(timeout=600)
            os.close(ours)
            os.close(theirs)

        assert outcome.changed
        assert there.commands == 3


@dataclass(frozen=True, slots=True)
class Seat:
    """A holder whose authority is as real ones are, for the command itself."""

    holder: Bench

    def type(self, ticket_file: Path, answer: bytes) -> tuple[int, str]:
        """Run onboard-node with a terminal of its own and the passphrase on stdin; exit code and talk."""
        ours, theirs = os.openpty()
        holder = self.holder
        command = [
            *(str(Path(sys.executable).with_name("onboard-node")), "--ticket", str(ticket_file)),
            *(
                "--ca-dir",
                str(holder.folder / "ca"),
                "--inventory",
                f"sqlite:///{holder.folder / 'record.db'}",
            ),
            *("--ssh-key", str(holder.server.login_key), "--passphrase-file", "-", "--no-verify"),
        ]
        # The first process of a session that opens a terminal gets it as its own (tty(4)).
        shell = ["sh", "-c", f'exec 3<>{os.ttyname(theirs)}; exec "$@"', "sh", *command]
        with subprocess.Popen(
            shell,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                _read_until(ours, PROMPT)
                os.write(ours, answer)
                out, _ = process.communicate(PASSPHRASE + b"\n", timeout=600)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                os.close(ours)
                os.close(theirs)
        return process.returncode, out.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("screen")) as running:
        yield running


@pytest.fixture(scope="module")
def seat(tmp_path_factory: pytest.TempPathFactory, server: Sshd) -> Seat:
    return Seat(bench(tmp_path_factory.mktemp("holder"), server, kdf=DEFAULT_KDF))


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"gpu-02\n", 3, "'gpu-02' is not its name"),
        (b"\x04", 3, "its name was not typed"),
        (b"gpu-0\x03", 130, "interrupted"),
    ],
    ids=["wrong name", "Ctrl-D", "Ctrl-C"],
)
def test_whoever_does_not_type_the_name_changes_nothing(
    seat: Seat, tmp_path: Path, answer: bytes, code: int, said: str
) -> None:
    (tmp_path / "a.ticket").write_text(seat.holder.signed())
    status, talk = seat.type(tmp_path / "a.ticket", answer)
    found = seat.holder.store().get("gpu-01")

    assert status == code, talk
    assert said in talk
    assert "machine uuid" in talk
    assert not seat.holder.install_dir.exists()
    assert Bench.authority(seat.holder).records() == ()
    assert found is not None
    assert found.state is State.AWAITING_IDENTITY


def test_the_name_is_typed_on_the_terminal_while_the_passphrase_comes_on_stdin(
    seat: Seat, tmp_path: Path
) -> None:
    (tmp_path / "a.ticket").write_text(seat.holder.signed(id="ff01"))
    status, talk = seat.type(tmp_path / "a.ticket", b"gpu-01\n")
    (record,) = seat.holder.authority().records()
    again = onboard((tmp_path / "a.ticket").read_text(), seat.holder.desk())

    assert status == 0, talk
    assert (record.standing, record.live(datetime.now(UTC))) == (Standing.INSTALLED, True)
    assert not again.changed


def test_what_was_typed_before_the_question_is_no_answer_to_it() -> None:
    ours, theirs = os.openpty()
    try:
        os.write(ours, b"gpu-01\n")
        terminal = Path(os.ttyname(theirs))
        asked = threading.Thread(
            target=agreement,
            args=("gpu-01",),
            kwargs={"yes": False, "unattended": False, "no_input": False, "terminal": terminal},
        )
        asked.start()
        _read_until(ours, PROMPT)
        asked.join(timeout=0.5)
        waited = asked.is_alive()
        os.write(ours, b"gpu-01\n")
        asked.join(timeout=600)
        assert waited
        assert not asked.is_alive()
    finally:
        os.close(ours)
        os.close(theirs)


def _read_until(terminal: int, wanted: bytes) -> None:
    seen, until = b"", time.monotonic() + 120
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"no question came: {seen!r}"
        seen += os.read(terminal, 4096)
