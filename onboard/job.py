"""One run of onboard-node: its tickets one after the other, and how it went for each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from ca.authority import Authority
from ca.passphrase import read_passphrase
from ca.signer import Signer
from inventory.command import ca_folder
from inventory.console import Console
from inventory.errors import BadInput, ExitCode, MusterError, worst
from inventory.lifecycle import next_command, whose_move
from inventory.model import check_node_name
from inventory.signature import MAX_BYTES
from inventory.store import Store, utc_now, whoami
from inventory.ticket import peek_ticket
from onboard import service
from onboard.farewell import decommission
from onboard.terminal import agreement
from verify.report import show, verification_json
from verify.service import verify_node


@dataclass(frozen=True, slots=True)
class Options:
    """What was typed; see the command's help."""

    ca_dir: Path | None
    passphrase_file: Path | None
    ssh_key: Path | None
    inventory: str | None
    verify: bool
    replace: bool
    decommission: bool
    yes: bool
    no_input: bool
    dry_run: bool


def run(names: tuple[str, ...], files: tuple[Path, ...], options: Options, console: Console) -> ExitCode:
    """Onboard every named node and every ticket file; one that fails does not stop the others.

    Raises:
        BadInput: nothing was named, or there is no authority or key to work with.
    """
    if not names and not files:
        raise BadInput(
            "no node was named",
            why="neither NAME nor --ticket FILE was given",
            next_step="onboard-node NAME, or onboard-node --ticket FILE",
        )
    if options.decommission and files:
        raise BadInput(
            "nothing was decommissioned",
            why="--decommission ends nodes by their names; a ticket begins them",
            next_step="onboard-node NAME --decommission",
        )
    desk = _desk(options, console)
    results: list[dict[str, Any]] = []
    codes: list[ExitCode] = []
    for label, work in _works(names, files, desk, options):
        try:
            result, code = work()
        except MusterError as error:
            console.error(error)
            result, code = {"name": label, "ok": False, "error": error.to_json()}, error.exit_code
        results.append(result)
        codes.append(code)
    for warning in desk.authority.warnings(desk.clock()):
        console.warn(warning)
    console.document({"ok": all(result["ok"] for result in results), "nodes": results})
    return worst(codes)


Work: TypeAlias = Callable[[], tuple[dict[str, Any], ExitCode]]


def _works(
    names: tuple[str, ...], files: tuple[Path, ...], desk: service.Desk, options: Options
) -> list[tuple[str, Work]]:
    """What is to be done, each under the name that its result gets."""
    if options.decommission:
        return [(name, partial(_ended, name, desk)) for name in dict.fromkeys(names)]
    tickets = _tickets(names, files, desk.store)
    return [(label, partial(_told, text_of, desk, options)) for label, text_of in tickets]


def _told(
    text_of: Callable[[], str], desk: service.Desk, options: Options
) -> tuple[dict[str, Any], ExitCode]:
    return _one(text_of(), desk, options)


def _ended(name: str, desk: service.Desk) -> tuple[dict[str, Any], ExitCode]:
    changed = decommission(check_node_name(name), desk)
    node = desk.store.get(name)
    state = None if node is None else str(node.state)
    if not changed:
        desk.console.say(f"{name}: nothing to change, its identity has ended")
    desk.console.data(f"{name}\t{state or '-'}\t{'would end' if desk.dry_run else 'identity ended'}")
    if node is not None and not desk.dry_run and (command := next_command(node)) is not None:
        desk.console.say(f"next, for {whose_move(node.state)}: {command}")
    return {"name": name, "ok": True, "state": state, "changed": changed, "identity": None}, ExitCode.DONE


def _one(text: str, desk: service.Desk, options: Options) -> tuple[dict[str, Any], ExitCode]:
    console = desk.console
    outcome = service.onboard(text, desk)
    result = outcome.to_json()
    if options.dry_run:
        console.data(f"{outcome.name}\t{outcome.state}\twould be onboarded")
        return result, ExitCode.DONE
    if not outcome.changed:
        console.say(f"{outcome.name}: nothing to change, it has its identity")
    report = None
    if options.verify and outcome.receipt is not None:
        report = verify_node(outcome.receipt, ssh_key=desk.key_file, store=desk.store, console=console)
    node = desk.store.get(outcome.name)
    state = outcome.state if node is None else node.state
    result["state"] = str(state)
    serial = outcome.held.serial if outcome.held else "-"
    console.data(f"{outcome.name}\t{state}\tcertificate {serial}")
    if report is not None:
        result.update(ok=report.ok, verification=verification_json(report))
        show(report, console)
        if report.error is not None:
            console.error(report.error)
            return result, report.error.exit_code
    if node is not None and (command := next_command(node)) is not None:
        console.say(f"next: {command}")
    return result, ExitCode.DONE


def _desk(options: Options, console: Console) -> service.Desk:
    authority = Authority.open(ca_folder(options.ca_dir), now=utc_now())
    key_file = options.ssh_key or (authority.policy.ssh.key_file if authority.policy.ssh else None)
    if key_file is None:
        raise BadInput(
            "there is no key to log in to nodes with",
            why="neither --ssh-key nor the policy's ssh.key_file names one",
            next_step="pass --ssh-key FILE",
        )

    def agree(name: str) -> None:
        agreement(name, yes=options.yes, unattended=authority.policy.unattended, no_input=options.no_input)

    return service.Desk(
        authority=authority,
        store=Store.open(options.inventory),
        console=console,
        key_file=key_file,
        actor=whoami(),
        clock=utc_now,
        agree=agree,
        signer=_once(authority, options, console),
        dry_run=options.dry_run,
        replace=options.replace,
    )


def _once(authority: Authority, options: Options, console: Console) -> Callable[[], Signer]:
    """The unlocked key; the passphrase is asked for once, however many nodes there are."""
    unlocked: list[Signer] = []

    def signer() -> Signer:
        if not unlocked:
            secret = read_passphrase(
                options.passphrase_file, what="the issuing key", no_input=options.no_input
            )
            console.detail("unlocking the issuing key")
            unlocked.append(authority.unlock(secret))
        return unlocked[0]

    return signer


def _tickets(
    names: tuple[str, ...], files: tuple[Path, ...], store: Store
) -> list[tuple[str, Callable[[], str]]]:
    by_name = [(name, partial(_named, store, name)) for name in dict.fromkeys(names)]
    return [*by_name, *((str(file), partial(_read, file)) for file in dict.fromkeys(files))]


def _named(store: Store, name: str) -> str:
    """The record is not believed: a ticket for another node under this one's name is a mistake or worse."""
    text = service.ticket_of(store, name)
    told = peek_ticket(text).node
    if told != name:
        raise BadInput(
            f"the ticket on record for {name} is not its own",
            why=f"it is for {told}",
            next_step=f"ask infra for: provision-node {name} --reissue-ticket",
        )
    return text


def _read(file: Path) -> str:
    try:
        with file.open("rb") as source:
            return source.read(MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(
            f"{file} is no ticket", why="it is not text", next_step="pass the file that infra handed over"
        ) from None
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read",
            why=error.strerror or str(error),
            next_step="pass the file that infra handed over",
        ) from error
