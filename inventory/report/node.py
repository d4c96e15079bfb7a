"""One node's section: its road, its machine, its identity, and its last verification."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from inventory.errors import MusterError
from inventory.lifecycle import next_command, whose_turn
from inventory.model import Event, KeptReceipt, Node
from inventory.report import bars, markup, timeline
from inventory.report.facts import Whole
from inventory.report.markup import code, count, facts, left_off, span, table, when
from inventory.report.reading import MAX_ITEMS, Check, Verification, read
from inventory.report.road import KINDS, Stay, kind, moving, stand, stays
from inventory.ticket import Receipt, peek_receipt

LINES = 100
_VERDICTS = {
    "pass": ("service", "✓"),
    "info": ("ended", "i"),
    "warning": ("warn", "!"),
    "critical": ("failed", "✗"),
}

_IDENTITY = {
    "spiffe_id": "SPIFFE ID",
    "serial": "Serial",
    "not_before": "Valid from",
    "not_after": "Valid until",
    "key_owner": "Key's owner",
    "key_mode": "Key's mode",
}


def section(whole: Whole, now: datetime) -> str:
    """The section of one node."""
    node = whole.node
    walked = stays(whole.events)
    parts = [
        f'<section class="node" id="{markup.anchor(node.name)}"><h2>{markup.text(node.name)}</h2>',
        _now(node, walked, now),
        *_road(walked, now),
        "<h3>Machine</h3>",
        _machine(node),
        "<h3>Identity</h3>",
        *_identity(whole.receipts, node, now),
        *_verification(whole, now),
        '<p class="top"><a href="#top">Back to the top</a></p></section>',
    ]
    return "".join(parts)


def _now(node: Node, walked: Sequence[Stay], now: datetime) -> str:
    of = stand(node)
    lines = [f"<p>{markup.stands(node)}"]
    if walked:
        lines.append(f" since {when(walked[-1].entry.at)} UTC, for <b>{span(walked[-1].lasted(now))}</b>")
    party = whose_turn(node)
    command = next_command(node)
    lines.append("</p>")
    if node.reason:
        lines.append(f"<p>Why: {markup.text(node.reason)}</p>")
    if command is not None:
        at_work = "A command is at work, or was cut short. " if moving(node.state) else ""
        lines.append(f"<p>{at_work}Next: {party}, {code(command)}</p>")
    return f'<div class="verdict {of}">{"".join(lines)}</div>'


def _road(walked: Sequence[Stay], now: datetime) -> Iterator[str]:
    yield "<h3>Road</h3>"
    if not walked:
        yield '<p class="none">No event is on record.</p>'
        return
    yield markup.picture(timeline.road(walked, now))
    yield bars.key((each, f"{KINDS[each][0]} {KINDS[each][1]}") for each in KINDS if _on_it(walked, each))
    over = len(walked) - timeline.STAYS_DRAWN
    if over > 0:
        yield f'<p class="note">The drawing shows the last {timeline.STAYS_DRAWN} of {len(walked)} states.</p>'
    body = [line for number, stay in enumerate(walked, 1) for line in _stay(number, stay, now)]
    if len(body) > LINES:
        yield f'<p class="note">The last {LINES} of {len(body)} events.</p>'
    yield table(("#", "State", "From (UTC)", "Stayed", "Who", "Role", "Why"), body[-LINES:])


def _on_it(walked: Sequence[Stay], of: str) -> bool:
    return any(kind(stay.state) == of for stay in walked[-timeline.STAYS_DRAWN :])


def _stay(number: int, stay: Stay, now: datetime) -> Iterator[tuple[str, ...]]:
    lasted = span(stay.lasted(now))
    entry = stay.entry
    so_far = f"<b>{markup.word(lasted)}</b> so far" if stay.until is None else lasted
    yield (str(number), markup.state(stay.state), when(entry.at, exact=True), so_far, *_who(entry))
    for note in stay.notes:
        yield ("", '<span class="dim">stays so</span>', when(note.at, exact=True), "", *_who(note))


def _who(event: Event) -> tuple[str, str, str]:
    """A role and a login are vouched for by the database; a name and a host are what the command gave."""
    role = markup.text(event.role or "")
    if event.db_user:
        role = f"{role or '-'} ({markup.text(event.db_user)})"
    return markup.word(f"{event.actor} on {event.host}"), role, markup.text(event.why)


def _machine(node: Node) -> str:
    address = node.address
    place = "" if address is None else address.ip + ("" if address.prefix is None else f"/{address.prefix}")
    fabrics = (
        ", ".join(
            filter(
                None,
                (
                    each.name,
                    each.interface,
                    each.address,
                    f"MTU {each.mtu}" if each.mtu else None,
                    f"{each.rate_gbps:g} Gbit/s" if each.rate_gbps else None,
                ),
            )
        )
        for each in node.fabrics
    )
    return facts(
        (
            (
                "VM",
                "" if node.vmid is None else f"{node.vmid} on {markup.text(node.proxmox_node or 'unknown')}",
            ),
            ("UUID", code(node.uuid or "")),
            ("Profile", markup.text(" at ".join(filter(None, (node.profile, node.site))))),
            ("Address", f"{markup.text(place)} ({address.source})" if address else ""),
            ("Login", "" if node.user is None else f"{markup.text(node.user)}, port {node.ssh_port}"),
            ("MAC", "<br>".join(code(each) for each in node.macs)),
            ("Machine id", code(node.machine_id or "")),
            ("Fabrics", "<br>".join(map(markup.text, fabrics))),
            (
                "Host keys",
                "<br>".join(f"{markup.text(key.type)} {code(key.fingerprint)}" for key in node.host_keys),
            ),
        )
    )


def _identity(kept: Sequence[KeptReceipt], node: Node, now: datetime) -> Iterator[str]:
    texts = [each.text for each in kept] or ([node.receipt] if node.receipt else [])
    known = [receipt for each in texts[-LINES:] if (receipt := _peek(each)) is not None]
    if len(known) < len(texts[-LINES:]):
        yield f'<p class="note">{count(len(texts[-LINES:]) - len(known), "receipt")} could not be read.</p>'
    if not known:
        yield '<p class="none">No receipt of an identity is on record.</p>'
        return
    last = known[-1]
    over = last.not_after <= now
    left = f"ended {span(now - last.not_after)} ago" if over else f"{span(last.not_after - now)} left"
    yield facts(
        (
            ("Certificate", f"serial {code(last.serial)}"),
            ("SPIFFE ID", code(last.spiffe_id)),
            ("Ends (UTC)", f"{when(last.not_after)}, {markup.marked('failed' if over else 'service', left)}"),
            ("Installed in", f"{code(last.install_dir)}, owner {markup.text(last.owner)}"),
            ("CA's root", code(f"sha256 {last.ca_fingerprint}")),
            ("Pinned host keys", "<br>".join(code(key.fingerprint) for key in last.host_keys)),
        )
    )
    body = [
        (each.kind, when(each.made_at), markup.text(each.made_by), code(each.serial), when(each.not_after))
        for each in reversed(known)
    ]
    yield table(("Receipt", "Made (UTC)", "By", "Serial", "Certificate ends (UTC)"), body)
    yield left_off(len(texts) - LINES, "older ones are in the record")
    yield '<p class="note">As the receipts say; this page does not check their signatures.</p>'


def _peek(text: str) -> Receipt | None:
    try:
        return peek_receipt(text)
    except MusterError:
        return None


def _verification(whole: Whole, now: datetime) -> Iterator[str]:
    yield "<h3>Last verification</h3>"
    if not whole.reports:
        yield '<p class="none">No verification is on record.</p>'
        return
    told = read(whole.reports[0])
    yield _verdict(told, now)
    if told.unread:
        yield '<p class="none">It ran nothing, so there is nothing else to tell.</p>'
    else:
        yield from _run(told)
    if len(whole.reports) > 1:
        body = [
            (
                when(each.at),
                markup.outcome(each.outcome, passed=each.passed),
                markup.seconds(each.seconds),
                markup.text(", ".join(each.failed) or each.why),
            )
            for each in map(read, whole.reports[1:])
        ]
        earlier = table(("At (UTC)", "Outcome", "Took", "What failed"), body)
        yield markup.folded(count(len(body), "earlier verification"), earlier)


def _verdict(told: Verification, now: datetime) -> str:
    of = "service" if told.passed else "warn" if told.outcome == "not judged" else "failed"
    ago = span(max(timedelta(0), now - told.at))
    took = "" if told.seconds is None else f", took {markup.seconds(told.seconds)}"
    why = "" if told.passed or not told.why else f"<p>Why: {markup.text(told.why)}</p>"
    covers = ", ".join(told.not_checked)
    left = f"<p><b>Not checked:</b> {markup.text(covers)}</p>" if covers else ""
    return (
        f'<div class="verdict {of}"><p>{markup.outcome(told.outcome, passed=told.passed)}'
        f" at {when(told.at)} UTC, {ago} ago{took}</p>{why}{left}</div>"
    )


def _run(told: Verification) -> Iterator[str]:
    yield facts(
        (
            ("Ranks", "" if told.ranks is None else str(told.ranks)),
            ("Probe", code(f"sha256 {told.probe_sha256}" if told.probe_sha256 else "")),
            *((_IDENTITY.get(title, title), code(text)) for title, text in told.identity),
            ("Phases", markup.text(", ".join(f"{name} {ms:.0f} ms" for name, ms in told.phases))),
        )
    )
    drawn = timeline.ranks(told.time_line)
    if drawn:
        yield "<h3>What every rank did when</h3>"
        yield bars.key(timeline.RANK_KEY)
        yield markup.picture(drawn)
        body = [
            (str(rank.rank), *map(_ms, (rank.start_ms, rank.joined_ms, rank.go_ms, rank.end_ms)))
            for rank in told.time_line[: timeline.RANKS_DRAWN]
        ]
        titles = ("Rank", "Started (ms)", "Joined (ms)", "GO (ms)", "Ended (ms)")
        yield markup.folded("The same as a table", table(titles, body, numbers=(1, 2, 3, 4)))
        yield left_off(len(told.time_line) - timeline.RANKS_DRAWN, "the kept report has them")
    yield "<h3>Scenarios</h3>"
    yield table(
        ("Verdict", "Scenario", "Must", "Took", "Found"),
        [
            (
                _ok(each.ok),
                markup.word(each.name),
                {"positive": markup.word("succeed"), "negative": markup.word("fail, and say so")}.get(
                    each.kind, markup.text(each.kind)
                ),
                markup.seconds(each.seconds),
                markup.text(each.detail)
                + ("" if each.ok or not each.expected else f"<br>expected: {markup.text(each.expected)}"),
            )
            for each in told.scenarios
        ],
        numbers=(3,),
    )
    asking = [each for each in told.checks if each.verdict not in ("pass", "info")]
    fine = [each for each in told.checks if each not in asking]
    yield f"<h3>Checks: {count(len(fine), 'passed', 'passed')}, {len(asking)} to look at</h3>"
    if asking:
        yield _checks(asking)
    if fine:
        yield markup.folded("What passed", _checks(fine))
    if max(len(told.scenarios), len(told.checks), len(told.time_line)) >= MAX_ITEMS:
        yield f'<p class="note">Of each list the first {MAX_ITEMS} are shown.</p>'


def _checks(checks: Sequence[Check]) -> str:
    rows = []
    for each in checks:
        of, sign = _VERDICTS.get(each.verdict, ("warn", "?"))
        mark = markup.signed(of, sign, each.verdict or "no verdict")
        rows.append((mark, markup.word(each.name), markup.text(each.found), code(each.next)))
    return table(("Verdict", "Check", "Found", "Next"), rows)


def _ok(ok: bool | None) -> str:  # noqa: FBT001 - a verdict, not a switch
    if ok is None:
        return markup.signed("warn", "?", "unknown")
    return markup.marked("service", "ok") if ok else markup.marked("failed", "FAILED")


def _ms(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"
