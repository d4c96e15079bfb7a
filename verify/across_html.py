"""A run over several nodes as one HTML file: the verdict, the ranks of all nodes on one line of time, each node."""

from collections.abc import Iterable, Sequence

from verify.across import AcrossReport, PathRow
from verify.artefact import artefact
from verify.fleet import Place
from verify.report_page import facts, marked, ms, table, text, whole
from verify.report_svg import time_line

_WORDS = {True: "ok", False: "FAILED", None: "unknown"}


def page(done: AcrossReport) -> bytes:
    """The whole page."""
    return whole(f"verify-node: {len(done.places)} nodes together {done.outcome}", _body(done))


def _body(done: AcrossReport) -> Iterable[str]:
    kind = done.outcome.replace(" ", "-")
    yield f'<div class="verdict {kind}">{marked(done.outcome)}<p>{text(done.verdict)}</p>'
    if done.error is not None:
        yield facts((("Why", done.error.why), ("Next", done.error.next_step)))
    yield f"<p><strong>Not checked:</strong> {text(', '.join(done.not_checked))}</p></div>"
    yield facts(
        (
            ("Run", done.run_id),
            ("Ranks", f"{done.ranks}, {done.ranks // len(done.places)} on each node"),
            ("Probe", f"sha256 {artefact().sha256}"),
        )
    )
    yield f"<h3>Nodes</h3>{_nodes(done)}"
    line = done.time_line
    if line:
        drawn = time_line([row for _, row in line], nodes=[name for name, _ in line])
        yield f'<h3>Time line of every rank</h3><div class="scroll">{drawn}</div>'
        yield "<p>Each node's times are by its own clock, since it was told to begin; all were told at once.</p>"
    yield f"<h3>Networks</h3>{_networks(done.paths)}"
    yield f"<h3>Scenarios</h3>{_scenarios(done)}"
    for number, place in enumerate(done.places):
        yield from _node(done, number, place)


def _nodes(done: AcrossReport) -> str:
    rows = [
        (
            marked(_standing(done, place)),
            f'<a href="#node-{number}">{text(place.name)}</a>',
            text(place.address),
            text(done.fault(place) or place.spiffe_id),
        )
        for number, place in enumerate(done.places)
    ]
    return table(("Verdict", "Node", "Address", "Found"), rows)


def _networks(paths: Sequence[PathRow]) -> str:
    rows = [
        (
            marked(_WORDS[row.ok]),
            text(row.fabric),
            text(row.source),
            text(row.target),
            str(row.mtu),
            text(row.why or "full size, there and back"),
        )
        for row in paths
    ]
    return table(("Verdict", "Network", "From", "To", "MTU", "Found"), rows, numbers=(4,))


def _scenarios(done: AcrossReport) -> str:
    rows = [
        (
            marked(_WORDS[result.ok]),
            text(result.name),
            text(f"{result.kind}: must {'succeed' if result.kind == 'positive' else 'fail'}"),
            f"{result.seconds:.2f}",
            text(result.expected),
            text(result.found),
            "" if result.ok else f"<code>{text(done.again(result.name))}</code>",
        )
        for result in done.scenarios
    ]
    return table(("Verdict", "Scenario", "Kind", "Seconds", "Expected", "Found", "Next"), rows, numbers=(3,))


def _node(done: AcrossReport, number: int, place: Place) -> Iterable[str]:
    standing, shown, probe = (
        _standing(done, place),
        done.identities.get(place.name),
        done.probes.get(place.name),
    )
    yield f'<section id="node-{number}"><h2>{text(place.name)}</h2>'
    yield f'<div class="verdict {standing}">{marked(standing)}'
    yield f"<p>{text(done.fault(place) or 'its identity holds, and it answered to the end')}</p></div>"
    per_node = done.ranks // len(done.places)
    first = per_node * number
    told = [
        ("Address of its ranks", place.address),
        ("Ranks", str(first) if per_node == 1 else f"{first} to {first + per_node - 1}"),
        ("Identity due", place.spiffe_id),
        ("Identity shown", (shown.spiffe_id if shown else None) or "none that holds"),
    ]
    if shown:
        told += [
            ("Serial", shown.serial or "-"),
            ("Valid until", shown.not_after or "-"),
            ("At", f"{shown.node_clock} (the node's clock)"),
        ]
    if probe:
        told.append(("Run as", f"{probe.user}, Python {probe.python}, {probe.openssl}"))
    yield facts(told)
    yield f"<h3>Its networks</h3>{_networks([row for row in done.paths if place.name in (row.source, row.target)])}"
    times = [row for name, row in done.time_line if name == place.name]
    if times:
        yield "<h3>Its ranks</h3>"
        yield table(
            ("Rank", "Started, ms", "Joined, ms", "GO, ms", "Ended, ms"),
            [
                (str(row.rank), ms(row.start_ms), ms(row.joined_ms), ms(row.go_ms), ms(row.end_ms))
                for row in times
            ],
            numbers=(1, 2, 3, 4),
        )
    yield "</section>"


def _standing(done: AcrossReport, place: Place) -> str:
    """A node by itself: one that is gone is not known to be bad."""
    if done.fault(place) is None:
        return "ok"
    shown = done.identities.get(place.name)
    return "FAILED" if shown and shown.fault else "unknown"
