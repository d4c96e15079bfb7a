import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ca.authority import Authority
from ca.keystore import KDF_FLOOR
from ca.record import Standing
from inventory.console import Console
from inventory.errors import BadInput
from inventory.ticket import sign_ticket
from onboard import job
from onboard.deed import Deed, deed
from onboard.named import parse_time
from tests.onboard.kit import PASSPHRASE, Bench, bench
from tests.require import need_command
from tests.sshd import Sshd, sshd

COMMAND = Path(sys.executable).with_name("onboard-node")
COUNT = 3
GO = 'exec bwrap --dev-bind / / --bind {own} {shared} --die-with-parent sh -c "$SSH_ORIGINAL_COMMAND"'


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes whose identities lie in one place for the policy, and in a folder of each one's own in truth."""

    holder: Bench
    servers: tuple[Sshd, ...]
    folder: Path

    def tickets(self, *, but: str = "") -> list[str]:
        """A ticket for each node, as --ticket FILE; that of `but` leads nowhere."""
        files = []
        for number, server in enumerate(self.servers, 1):
            name = f"gpu-0{number}"
            host_keys = self.servers[0].host_key if name == but else server.host_key
            ticket = self.holder.ticket(
                id=f"{number:04x}{os.getpid():08x}",
                node=name,
                vm_uuid=f"0e1a2b3c-0000-4000-8000-00000000000{number}",
                machine_id=None,
                ssh_port=server.port,
                host_keys=(host_keys,),
            )
            file = self.folder / f"{name}.ticket"
            file.write_text(sign_ticket(ticket, key_file=self.holder.infra))
            files += ["--ticket", str(file)]
        return files

    def run(self, *arguments: str, timeout_s: float = 240) -> "subprocess.CompletedProcess[str]":
        """onboard-node, as it is typed; nothing is verified."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def command(self, *arguments: str) -> list[str]:
        """What is typed."""
        settings = {
            "--ca-dir": self.holder.folder / "ca",
            "--ssh-key": self.holder.server.login_key,
            "--inventory": f"sqlite:///{self.holder.folder / 'record.db'}",
            "--passphrase-file": self.holder.folder / "pass",
        }
        options = [str(part) for pair in settings.items() for part in pair]
        return [str(COMMAND), *arguments, *options]

    def standings(self) -> list[Standing]:
        """Of every certificate, by node and age."""
        records = Authority.open(self.holder.folder / "ca", now=datetime.now(UTC)).records()
        return [record.standing for record in sorted(records, key=lambda one: one.node)]


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    need_command("bwrap")
    shared = folder / "node"
    shared.mkdir()
    with ExitStack() as stack:
        servers = []
        for number in range(COUNT):
            own = folder / f"node{number}"
            own.mkdir()
            go = folder / f"go{number}"
            go.write_text(f"#!/bin/sh\n{GO.format(own=own, shared=shared)}\n")
            go.chmod(0o700)
            servers.append(stack.enter_context(sshd(folder / f"sshd{number}", options=f"ForceCommand {go}")))
        login = servers[0].login_key.with_suffix(".pub").read_text()
        for server in servers:
            server.authorized_keys.write_text(login)
        yield Fleet(bench(folder, servers[0]), tuple(servers), folder)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        holder = made.holder
        passphrase = holder.folder / "pass"
        passphrase.touch(mode=0o600)
        passphrase.write_bytes(PASSPHRASE + b"\n")
        # The command takes no key that is as cheap as those of other tests.
        subprocess.run(["rm", "-rf", str(holder.folder / "ca")], check=True, timeout=600)
        Authority.create(
            holder.folder / "ca",
            policy_file=holder.folder / "policy.yaml",
            passphrase=PASSPHRASE,
            now=datetime.now(UTC),
            kdf=KDF_FLOOR,
        )
        holder.set_policy(unattended="true")
        yield made


def test_many_nodes_are_onboarded_renewed_and_refreshed_with_one_word_and_one_row_each(
    nodes: Fleet,
) -> None:
    first = nodes.run(*nodes.tickets(), "--yes", "--no-verify", "--json")
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert [node["state"] for node in told["nodes"]] == ["awaiting-verification"] * COUNT
    assert nodes.standings() == [Standing.INSTALLED] * COUNT
    table = [line for line in first.stderr.splitlines() if line.startswith("gpu-") and "infra@lab" in line]
    assert len(table) == COUNT

    signed_before = with_real_lists(nodes)
    second = nodes.run("gpu-[01-03]", "--renew", "--yes", "--no-verify")
    assert second.returncode == 0, second.stderr
    rows = second.stdout.splitlines()
    assert [row.split("\t")[0] for row in rows] == ["gpu-01", "gpu-02", "gpu-03"]
    assert nodes.standings() == [Standing.REVOKED, Standing.INSTALLED] * COUNT
    # The key was unlocked anyway: the lists name what this run revoked, and were signed once.
    assert second.stderr.count("signed anew") == 1
    authority = Authority.open(nodes.holder.folder / "ca", now=datetime.now(UTC))
    assert authority.unlisted == 0
    assert authority.lists is not None
    assert authority.lists.due(datetime.now(UTC)).number > signed_before

    third = nodes.run("--refresh", "--yes")
    assert third.returncode == 0, third.stderr
    assert len(third.stdout.splitlines()) == COUNT
    assert holding_older(nodes) == ()
    fourth = nodes.run("--refresh", "--yes")
    assert (fourth.returncode, fourth.stdout) == (0, "")
    assert "no node needs it" in fourth.stderr


def test_one_that_fails_stops_no_other_and_the_worst_is_the_exit_code(nodes: Fleet) -> None:
    done = nodes.run(*nodes.tickets(but="gpu-02"), "--yes", "--no-verify")

    assert done.returncode == 4
    rows = [row.split("\t") for row in done.stdout.splitlines()]
    assert [row[1] for row in rows] == ["awaiting-verification", "-", "awaiting-verification"]
    assert "failed" in rows[1][2]
    assert re.search(r"gpu-02\.ticket .* NO: .*not the machine it should be", done.stderr)
    assert nodes.standings() == [Standing.INSTALLED] * (COUNT - 1)


def test_the_holder_types_how_many_nodes_there_are(nodes: Fleet) -> None:
    nodes.holder.set_policy()
    arguments = (*nodes.tickets(), "--no-verify")
    code, said = on_a_terminal(nodes.command(*arguments), b"2\n")
    assert code == 3, said
    assert nodes.standings() == []
    code, said = on_a_terminal(nodes.command(*arguments), b"3\n")
    assert code == 0, said
    assert said.count("type the number") == 1
    assert nodes.standings() == [Standing.INSTALLED] * COUNT


def test_a_jump_host_leads_to_every_node_and_one_with_another_key_to_none(nodes: Fleet) -> None:
    login = nodes.holder.server.login_key.with_suffix(".pub").read_text()
    with sshd(nodes.folder / "bastion", options="LogLevel VERBOSE") as bastion:
        bastion.authorized_keys.write_text(login)
        pin = nodes.folder / "bastion.pub"
        way = ["--jump", f"{bastion.user}@127.0.0.1:{bastion.port}", "--jump-host-key", str(pin)]
        pin.write_text(nodes.servers[0].host_key.line + "\n")
        refused = nodes.run(*nodes.tickets(), *way, "--yes", "--no-verify")
        assert refused.returncode == 4, refused.stderr
        assert "not the machine it should be" in refused.stderr
        assert nodes.standings() == []

        pin.write_text(bastion.host_key.line + "\n")
        done = nodes.run(*nodes.tickets(), *way, "--yes", "--no-verify")

    assert done.returncode == 0, done.stderr
    assert nodes.standings() == [Standing.INSTALLED] * COUNT


def test_an_interruption_while_the_holder_reads_changes_nothing(nodes: Fleet) -> None:
    nodes.holder.set_policy()
    code, said = on_a_terminal(nodes.command(*nodes.tickets(), "--no-verify"), None)

    assert code == 130, said
    assert nodes.standings() == []
    assert not list(nodes.folder.glob("node?/generations"))


def test_many_are_decommissioned_and_the_lists_say_so_where_the_passphrase_is_at_hand(nodes: Fleet) -> None:
    assert nodes.run(*nodes.tickets(), "--yes", "--no-verify").returncode == 0
    with_real_lists(nodes)
    done = nodes.run("gpu-[01-03]", "--decommission", "--yes")

    assert done.returncode == 0, done.stderr
    assert [row.split("\t")[1:] for row in done.stdout.splitlines()] == [
        ["awaiting-retirement", "identity ended"]
    ] * COUNT
    assert Authority.open(nodes.holder.folder / "ca", now=datetime.now(UTC)).unlisted == 0
    assert not list(nodes.folder.glob("node?/generations/*/key.pem"))


@pytest.mark.parametrize(
    ("names", "files", "other", "why"),
    [
        (("gpu-01",), ("t",), {"deed": Deed.RENEW}, "a ticket begins them"),
        (("gpu-01",), (), {"expiring": timedelta(days=14)}, "chooses the nodes that are renewed"),
        (("gpu-[01-",), (), {}, "not a node set"),
        ((), (), {"deed": Deed.RENEW}, "wants to know whom"),
        ((), (), {"deed": Deed.REFRESH, "replace": True}, "the VM of a new ticket"),
        ((), (), {}, "neither NAME nor --ticket"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_opened(
    tmp_path: Path, names: tuple[str, ...], files: tuple[str, ...], other: dict[str, Any], why: str
) -> None:
    typed: dict[str, Any] = {
        **dict.fromkeys(("passphrase_file", "ssh_key", "jump", "inventory", "expiring")),
        **dict.fromkeys(("verify", "replace", "yes", "no_input", "dry_run"), False),
        "ca_dir": tmp_path / "none",
        "deed": Deed.ONBOARD,
    }
    with pytest.raises(BadInput, match=why):
        job.run(names, tuple(map(Path, files)), job.Options(**{**typed, **other}), Console(quiet=True))


def test_one_run_does_one_thing_and_a_time_is_written_plainly() -> None:
    assert deed(renew=True, refresh=False, decommission=False) is Deed.RENEW
    with pytest.raises(BadInput, match="--renew and --refresh do not go together"):
        deed(renew=True, refresh=True, decommission=False)
    assert (parse_time("14d"), parse_time("36h")) == (timedelta(days=14), timedelta(hours=36))
    assert parse_time("2w") == timedelta(weeks=2)
    for text in ("2m", "0d", "14", "-1d", "1.5d"):
        with pytest.raises(BadInput, match="like 14d, 36h or 4w"):
            parse_time(text)


def with_real_lists(nodes: Fleet) -> int:
    """As `with_lists`, for an authority with a key derivation that the command takes."""
    authority, now = Authority.open(nodes.holder.folder / "ca", now=datetime.now(UTC)), datetime.now(UTC)
    signed = authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=now, actor="holder")
    return signed.due(now).number


def holding_older(nodes: Fleet) -> tuple[object, ...]:
    authority = Authority.open(nodes.holder.folder / "ca", now=datetime.now(UTC))
    return authority.holding_older_crl(datetime.now(UTC))


def on_a_terminal(command: list[str], answer: bytes | None) -> tuple[int, str]:
    """Run it on a terminal of its own; answer its question, or press Ctrl-C there. Exit code, and what was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    shown, asked, until = b"", False, time.monotonic() + 200
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
        if not asked and b"type the number" in shown:
            asked = True
            os.write(terminal, b"\x03" if answer is None else answer)
    os.close(terminal)  # one that still asks is hung up on
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode("utf-8", "replace")
