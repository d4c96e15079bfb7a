"""One run of onboard-node: what is to be done for which nodes, and how it went for each."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ca.authority import Authority
from ca.custody import secret_of
from ca.passphrase import read_passphrase
from ca.signer import Signer
from inventory.command import ask, ca_folder
from inventory.console import Console
from inventory.errors import BadInput, ExitCode, MusterError, OtherSide, Refused, worst
from inventory.jump import Jump
from inventory.lifecycle import next_command, whose_move
from inventory.store import Store, utc_now, whoami
from inventory.ticket import Receipt
from onboard import service
from onboard.deed import Deed
from onboard.desk import Desk, Outcome
from onboard.farewell import decommission
from onboard.many import End, Work, run_many
from onboard.named import expiring, holding_older, named, tickets
from onboard.refresh import refresh
from onboard.renewal import renew
from onboard.terminal import agreement, agreement_on_many
from verify import receipts
from verify.report import NodeReport, show, verification_json
from verify.service import over_ssh, verify_node


@dataclass(frozen=True, slots=True)
class Options:
    """What was typed; see the command's help."""

    ca_dir: Path | None
    passphrase_file: Path | None
    ssh_key: Path | None
    jump: Jump | None
    inventory: str | None
    verify: bool
    replace: bool
    deed: Deed
    expiring: timedelta | None
    yes: bool
    no_input: bool
    dry_run: bool


class _Unlocked:
    """The issuing key; its passphrase is asked for once, however many nodes and threads there are."""

    def __init__(self, authority: Authority, options: Options, console: Console) -> None:
        self._authority, self._options, self._console = authority, options, console
        self._signer: Signer | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Signer:
        with self._lock:
            if self._signer is None:
                what = secret_of(self._authority.layout)
                secret = read_passphrase(
                    self._options.passphrase_file, what=what, no_input=self._options.no_input
                )
                self._console.detail("unlocking the issuing key")
                self._signer = self._authority.unlock(secret)
            return self._signer

    @property
    def unattended(self) -> bool:
        """Does the policy let --yes stand for a person?"""
        return self._authority.policy.unattended

    @property
    def at_hand(self) -> bool:
        """Can it be had without asking anybody?"""
        return self._signer is not None or self._options.passphrase_file is not None


def run(names: tuple[str, ...], files: tuple[Path, ...], options: Options, console: Console) -> ExitCode:
    """Do what was asked for every node that was named; one that fails does not stop the others.

    Raises:
        BadInput: nothing was named, or there is no authority or key to work with.
    """
    _check(names, files, options)
    chosen = named(names)
    authority = Authority.open(ca_folder(options.ca_dir), now=utc_now())
    unlocked = _Unlocked(authority, options, console)
    desk = _desk(authority, unlocked, options, console)
    works = _works(chosen, files, desk, options)
    if not works:
        console.say("nothing to do: no node needs it")
    stop: BaseException | None = None
    if len(works) == 1:
        ends: tuple[End, ...] = (_only(works[0], desk, options),)
    else:
        ends, stop = run_many(
            works,
            at_desk=partial(_at_desk, options=options),
            desk=desk,
            agree=_agree_on(unlocked, options, console),
        )
        for end in ends:
            _tell(end, desk, options, alone=False)
    _sign_lists_anew(desk, unlocked, options)
    for warning in _opened_anew(authority).warnings(desk.clock()):
        console.warn(warning)
    results = [_result(end) for end in ends]
    console.document({"ok": all(result["ok"] for result in results), "nodes": results})
    if (raised := stop or next((end.bug for end in ends if end.bug), None)) is not None:
        raise raised
    return worst(_code(end) for end in ends)


def _check(names: tuple[str, ...], files: tuple[Path, ...], options: Options) -> None:
    deed = options.deed
    if files and deed is not Deed.ONBOARD:
        raise BadInput(
            f"nothing was {deed.words[1]}",
            why=f"--{deed} takes nodes by their names; a ticket begins them",
            next_step=f"onboard-node NAME --{deed}",
        )
    if options.expiring is not None and deed is not Deed.RENEW:
        raise BadInput(
            "nothing was done",
            why="--expiring chooses the nodes that are renewed",
            next_step="onboard-node --renew --expiring 14d",
        )
    if options.replace and deed is not Deed.ONBOARD:
        raise BadInput(
            "nothing was done",
            why="--replace lets the VM of a new ticket take over a name",
            next_step="onboard-node NAME --replace",
        )
    if not names and not files and deed is not Deed.REFRESH and options.expiring is None:
        raise BadInput(
            "no node was named",
            why="neither NAME nor --ticket FILE was given"
            if deed is Deed.ONBOARD
            else f"--{deed} wants to know whom",
            next_step="onboard-node NAME, or onboard-node --ticket FILE"
            if deed is Deed.ONBOARD
            else f"onboard-node NAME --{deed}",
        )


def _works(names: tuple[str, ...], files: tuple[Path, ...], desk: Desk, options: Options) -> list[Work]:
    """What is to be done, each under the name that its row gets."""
    chosen = names
    match options.deed:
        case Deed.ONBOARD:
            return [
                Work(label, partial(_onboard, text)) for label, text in tickets(chosen, files, desk.store)
            ]
        case Deed.RENEW:
            if options.expiring is not None:
                chosen = expiring(desk, chosen, within=options.expiring)
            return [Work(name, partial(renew, name)) for name in chosen]
        case Deed.REFRESH:
            chosen = chosen if names else holding_older(desk)
            return [Work(name, partial(refresh, name)) for name in chosen]
        case Deed.DECOMMISSION:
            return [Work(name, partial(_decommission, name)) for name in chosen]


def _onboard(text_of: Callable[[], str], desk: Desk) -> Outcome:
    outcome = service.onboard(text_of(), desk)
    what = f"certificate {outcome.held.serial if outcome.held else '-'}"
    if outcome.receipt is None or desk.verify is None:
        return replace(outcome, what=what)
    report = desk.verify(outcome.receipt)
    node = desk.store.get(outcome.name)
    return replace(outcome, what=what, report=report, state=outcome.state if node is None else node.state)


def _decommission(name: str, desk: Desk) -> Outcome:
    changed = decommission(name, desk)
    node = desk.store.get(name)
    state = None if node is None else node.state
    return Outcome(name, state, changed=changed, held=None, what="identity ended")


def _only(work: Work, desk: Desk, options: Options) -> End:
    try:
        end = End(work.label, outcome=work.do(desk))
    except MusterError as error:
        end = End(work.label, error=error)
    _tell(end, desk, options, alone=True)
    return end


def _tell(end: End, desk: Desk, options: Options, *, alone: bool) -> None:
    """A node's row, and what people should know beside it."""
    console, outcome = desk.console, end.outcome
    if outcome is None:
        if end.error is not None:
            console.error(end.error)
        if not alone:
            why = end.error.what if end.error is not None else "a bug of ours"
            console.data(f"{end.label}\t{_state(end.label, desk)}\tfailed: {why}")
        return
    state = outcome.state or "-"
    if options.dry_run:
        console.data(f"{outcome.name}\t{state}\t{options.deed.words[2]}")
        return
    if not outcome.changed:
        console.say(f"{outcome.name}: nothing to change, {options.deed.words[3]}")
    console.data(f"{outcome.name}\t{state}\t{outcome.what}")
    report = outcome.report
    if report is not None:
        if alone:
            show(report, console)
        if report.error is not None:
            console.error(report.error)
            return
    if not alone:
        return
    node = desk.store.get(outcome.name)
    if node is not None and (command := next_command(node)) is not None:
        console.say(f"next, for {whose_move(node.state)}: {command}")


def _state(label: str, desk: Desk) -> str:
    try:
        node = desk.store.get(label)
    except MusterError:
        node = None
    return "-" if node is None else str(node.state)


def _result(end: End) -> dict[str, Any]:
    """As --json shows it."""
    outcome = end.outcome
    if outcome is None:
        error = end.error.to_json() if end.error is not None else {"what": "a bug of ours", "exit_code": 1}
        return {"name": end.label, "ok": False, "error": error}
    result = outcome.to_json()
    if outcome.report is not None:
        result.update(ok=outcome.report.ok, verification=verification_json(outcome.report))
    return result


def _code(end: End) -> ExitCode:
    if end.error is not None:
        return end.error.exit_code
    report = end.outcome.report if end.outcome is not None else None
    return ExitCode.DONE if report is None or report.error is None else report.error.exit_code


def _agree_on(unlocked: _Unlocked, options: Options, console: Console) -> Callable[[int], None]:
    """The holder's word for many nodes; the key is unlocked with it, for threads ask nobody."""

    def agree(count: int) -> None:
        if options.deed is Deed.REFRESH:
            _ask_to_refresh(f"refresh {count} nodes?", options, console)
            return
        to = options.deed.words[0].replace("its", "their").replace("it ", "each ")
        agreement_on_many(
            count, yes=options.yes, unattended=unlocked.unattended, no_input=options.no_input, to=to
        )
        if options.deed is not Deed.DECOMMISSION:
            unlocked()

    return agree


def _ask_to_refresh(question: str, options: Options, console: Console) -> None:
    """Nothing is signed and no identity given, so that a plain yes will do."""
    if not ask(console, question, yes=options.yes):
        raise Refused(
            "nothing was refreshed", why="you said no", next_step="run the command again when you are sure"
        )


def _sign_lists_anew(desk: Desk, unlocked: _Unlocked, options: Options) -> None:
    """Lists that were signed before must not stay without what this run revoked; once, and only if nobody is asked."""
    if options.dry_run:
        return
    authority = _opened_anew(desk.authority)
    if authority.lists is None or authority.unlisted <= 0 or not unlocked.at_hand:
        return
    try:
        signed = authority.sign_lists(signer=unlocked(), now=desk.clock(), actor=desk.actor)
    except MusterError as error:
        desk.console.warn(f"the revocation lists were not signed anew: {error.what}: {error.why}")
        return
    count = len(signed.slots)
    desk.console.say(
        f"{count} revocation list{' was' if count == 1 else 's were'} signed anew, for certificates were revoked; "
        "bring nodes the one that is due: onboard-node --refresh"
    )


def _desk(authority: Authority, unlocked: _Unlocked, options: Options, console: Console) -> Desk:
    policy = authority.policy
    key_file = options.ssh_key or (policy.ssh.key_file if policy.ssh else None)
    if key_file is None:
        raise BadInput(
            "there is no key to log in to nodes with",
            why="neither --ssh-key nor the policy's ssh.key_file names one",
            next_step="pass --ssh-key FILE",
        )

    def agree(name: str) -> None:
        if options.deed is Deed.REFRESH:
            _ask_to_refresh(f"refresh {name}?", options, console)
            return
        to, done = options.deed.words[:2]
        agreement(
            name,
            yes=options.yes,
            unattended=policy.unattended,
            no_input=options.no_input,
            to=to,
            done=done,
        )

    desk = Desk(
        authority=authority,
        store=_store(options),
        console=console,
        key_file=key_file,
        actor=whoami(),
        clock=utc_now,
        agree=agree,
        signer=unlocked,
        dry_run=options.dry_run,
        replace=options.replace,
        jump=options.jump,
    )
    return replace(desk, verify=_verifier(desk)) if options.verify else desk


def _store(options: Options) -> Store:
    try:
        return Store.open(options.inventory)
    except OtherSide as error:
        if options.deed is Deed.DECOMMISSION:  # a record that is away must not keep an identity alive
            error.next_step = f"to end the certificate at once: node-ca revoke NAME; then {error.next_step}"
        raise


@contextmanager
def _at_desk(desk: Desk, *, options: Options) -> Iterator[Desk]:
    """A thread's own: an authority opened anew, for an index serves one thread, and a console that only warns."""
    authority = _opened_anew(desk.authority)
    try:
        quiet = Console(quiet=True, json_output=desk.console.json_output, no_input=True)
        own = replace(desk, authority=authority, console=quiet)
        yield replace(own, verify=_verifier(own)) if options.verify else own
    finally:
        authority.close()


def _opened_anew(authority: Authority) -> Authority:
    """By the policy that the run began with, and the holder agreed to, for every node."""
    return Authority.open(authority.layout.folder, now=utc_now(), policy=authority.policy)


def _verifier(desk: Desk) -> Callable[[Receipt], NodeReport]:
    def hand_back(receipt: Receipt) -> str:
        folder = desk.authority.layout.folder
        return receipts.hand_back(receipt, ssh_key=desk.key_file, ca_dir=folder, now=desk.clock())

    def verify(receipt: Receipt) -> NodeReport:
        return verify_node(
            receipt,
            ssh_key=desk.key_file,
            store=desk.store,
            console=desk.console,
            reach=partial(over_ssh, jump=desk.jump),
            sign=hand_back,
        )

    return verify
