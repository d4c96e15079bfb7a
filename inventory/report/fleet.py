"""The fleet's part of the page: states, waits, certificates, timings, failures, and every node in one table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from inventory.lifecycle import next_command, whose_move, whose_turn
from inventory.model import State
from inventory.report import bars, markup, timeline
from inventory.report.facts import Row
from inventory.report.markup import code, count, left_off, link, span, table, when
from inventory.report.road import KINDS, Fill, kind, stand
from inventory.report.robust import HOW, Outlier, Spread, median, spread

LISTED = 50
SHOWN = 10
"""Of a list so many lines stand open, so that what comes after it is not screens away; the others are folded."""
ROWS = 5000
NAMED = 6
MEASURES = 60
GROUPS = 12
_DAY = timedelta(days=1)
_AHEAD = timedelta(minutes=5)
BUCKETS: tuple[tuple[str, Fill], ...] = (
    ("ended", "failed"),
    ("within 7 days", "soon"),
    ("within 30 days", "later"),
    ("later", "service"),
)
_ROLES = (
    ("infra", "For infra", "makes and retires the machines"),
    ("security", "For security", "gives identities, takes them back, and verifies"),
)


def bucket(end: datetime, now: datetime) -> int:
    """Which of `BUCKETS` a certificate's end is in."""
    left = end - now
    return 0 if left <= timedelta(0) else 1 if left <= 7 * _DAY else 2 if left <= 30 * _DAY else 3


def tiles(rows: Sequence[Row], now: datetime) -> str:
    """The page in five numbers, each with the node to begin with, and each leads to its section."""
    by_party = Counter(whose_turn(row.summary) for row in rows)
    failed = [row for row in rows if stand(row.summary) == "failed"]
    serving = sum(row.summary.state is State.IN_SERVICE for row in rows)
    ends = [end for row in rows if (end := row.certified) is not None]
    soon = sum(bucket(end, now) < 2 for end in ends)
    living = sum(row.summary.state is not State.RETIRED for row in rows)
    share = f"of {living:,} that are not retired" if rows else "the record is empty"
    told = (
        ("service", "✓", serving, "in service", share, "states"),
        ("infra", "◆", by_party["infra"], "wait for infra", _longest(rows, "infra", now), "waits"),
        (
            *("security", "●", by_party["security"], "wait for security"),
            *(_longest(rows, "security", now), "waits"),
        ),
        ("failed", "✗", len(failed), "failed", _newest(failed, now), "failures"),
        ("warn", "!", soon, "certificates to renew", _first_end(rows, now), "certificates"),
    )
    items = (
        f'<li><a class="{of}" href="#{to}"><b>{number:,}</b><span><span class="mark {of}" aria-hidden="true">{sign}'
        f"</span> {words}</span><small>{more}</small></a></li>"
        for of, sign, number, words, more, to in told
    )
    return f'<ul class="tiles">{"".join(items)}</ul>'


def _longest(rows: Sequence[Row], party: str, now: datetime) -> str:
    waiting = [row for row in rows if whose_turn(row.summary) == party]
    if not waiting:
        return "nobody waits"
    down = sum(stand(row.summary) == "failed" for row in waiting)
    known = [(wait, row.summary.name) for row in waiting if (wait := row.waited(now)) is not None]
    wait, name = max(known, default=(None, ""))
    told = "since when is not known" if wait is None else f"longest: {markup.text(name)}, {span(wait)}"
    return f"{told}{f'; {down} failed' if down else ''}"


def _newest(failed: Sequence[Row], now: datetime) -> str:
    if not failed:
        return "none"
    known = [(wait, row.summary.name) for row in failed if (wait := row.waited(now)) is not None]
    wait, name = min(known, default=(None, ""))
    return "since when is not known" if wait is None else f"newest: {markup.text(name)}, {span(wait)} ago"


def _first_end(rows: Sequence[Row], now: datetime) -> str:
    end, name = min(
        ((end, row.summary.name) for row in rows if (end := row.certified) is not None), default=(None, "")
    )
    if end is None:
        return "no end is known"
    told = f"ended {span(now - end)} ago" if end <= now else f"in {span(end - now)}"
    return f"first: {markup.text(name)}, {told}"


def states(rows: Sequence[Row]) -> str:
    """How many nodes are in each state."""
    found = Counter(row.summary.state for row in rows)
    kinds = Counter(stand(row.summary) for row in rows)
    most = max(found.values(), default=1)
    parts = [(of, kinds[of]) for of in KINDS]
    body = [
        (
            markup.state(each),
            f"{found[each]:,}",
            bars.bar(kind(each), found[each] / most, f"{each}: {found[each]} of {len(rows)}"),
            markup.text(whose_move(each)),
        )
        for each in State
        if found[each]
    ]
    drawn = bars.stacked(parts) if rows else ""
    told = bars.key((of, f"{KINDS[of][0]} {KINDS[of][1]}: {number:,}") for of, number in parts if number)
    listed = table(("State", "Nodes", "Share", "Whose move"), body, numbers=(1,))
    return f'<section id="states"><h2>States</h2>{drawn}{told}<div class="states">{listed}</div></section>'


def waits(rows: Sequence[Row], now: datetime, sections: frozenset[str]) -> str:
    """Whose move it is, and since when: who has waited longest comes first."""
    parts = ['<section id="waits"><h2>Whose move it is, and since when</h2>']
    for party, title, does in _ROLES:
        waiting = [row for row in rows if whose_turn(row.summary) == party]
        waiting.sort(key=lambda row: (-(row.waited(now) or timedelta(0)), row.summary.name))
        known = [wait.total_seconds() for row in waiting if (wait := row.waited(now)) is not None]
        half = median(known)
        parts.append(
            f'<h3>{title}: {count(len(waiting), "node")}</h3><p class="dim">{title[4:].capitalize()} {does}.'
        )
        if half is not None:
            parts.append(
                f" The longest wait is <b>{span(timedelta(seconds=max(known)))}</b>, the median"
                f" <b>{span(timedelta(seconds=half))}</b>."
            )
        parts.append("</p>")
        longest = max(known, default=0.0) or 1.0
        body = [_wait(row, now, longest, sections) for row in waiting[:LISTED]]
        titles = ("Node", "State", "Since (UTC)", "", "Waits", "Next")
        parts.append(f'<div class="waits">{_listed(titles, body, numbers=(4,))}</div>')
        parts.append(left_off(len(waiting) - LISTED, "they are in the table of all nodes"))
    return "".join([*parts, "</section>"])


def _wait(row: Row, now: datetime, longest: float, sections: frozenset[str]) -> tuple[str, ...]:
    waited = row.waited(now)
    part = (waited or timedelta(0)).total_seconds() / longest
    return (
        link(row.summary.name, sections),
        markup.stands(row.summary),
        _since(row, now),
        ""
        if waited is None
        else bars.bar(stand(row.summary), part, f"{span(waited)}, beside the longest here"),
        f"<b>{span(waited)}</b>",
        code(command(row)),
    )


def _since(row: Row, now: datetime) -> str:
    """When it came to its state; a clock that was ahead of this one is told, for nothing waits 0 s for days."""
    ahead = row.since is not None and row.since > now + _AHEAD
    return f"{when(row.since)}{'<br>' + markup.signed('warn', '!', 'is yet to come') if ahead else ''}"


def _listed(titles: Sequence[str], body: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table whose lines after the first ones are folded, where that saves more than a few."""
    if len(body) <= SHOWN + SHOWN // 2:
        return table(titles, body, numbers=numbers)
    rest = table(titles, body[SHOWN:], numbers=numbers)
    more = markup.folded(f"{len(body) - SHOWN} more in this list", rest)
    return table(titles, body[:SHOWN], numbers=numbers) + more


def certificates(rows: Sequence[Row], now: datetime, sections: frozenset[str]) -> str:
    """When certificates end."""
    found = sorted((end, row.summary.name) for row in rows if (end := row.certified) is not None)
    by_bucket: list[list[tuple[datetime, str]]] = [[] for _ in BUCKETS]
    for end, name in found:
        by_bucket[bucket(end, now)].append((end, name))
    parts = ['<section id="certificates"><h2>When certificates end</h2>']
    parts.append(
        f"<p>{count(len(found), 'certificate')} as the newest receipt of each node tells of it; identities that were"
        " ended on purpose are not counted. Each bar is one day.</p>"
    )
    drawn = timeline.ends(((name, end) for end, name in found), now)
    if drawn:
        parts.append(markup.picture(drawn))
    parts.append(
        bars.key(
            (of, f"{words}: {len(nodes):,}") for (words, of), nodes in zip(BUCKETS, by_bucket, strict=True)
        )
    )
    asking = [*by_bucket[0], *by_bucket[1]]
    body = [
        (link(name, sections), when(end), _left(end, now), code(f"onboard-node {name} --renew"))
        for end, name in asking[:LISTED]
    ]
    if body:
        parts.append("<h3>Ended, or to end within 7 days</h3>")
        parts.append(_listed(("Node", "Ends (UTC)", "Left", "Next"), body))
        parts.append(left_off(len(asking) - LISTED, "node-ca list --expiring 7d has them all"))
    days = Counter(
        (end.date(), words) for (words, _), nodes in zip(BUCKETS, by_bucket, strict=True) for end, _ in nodes
    )
    listed = [(f"<time>{day}</time>", words, f"{number:,}") for (day, words), number in sorted(days.items())]
    if listed:
        parts.append(
            markup.folded(
                "The same as a table, day by day (UTC)",
                table(("Day", "Ends", "Certificates"), listed, numbers=(2,)),
            )
        )
    return "".join([*parts, "</section>"])


def _left(end: datetime, now: datetime) -> str:
    if end <= now:
        return markup.marked("failed", f"ended {span(now - end)} ago")
    return f"in {span(end - now)}"


def timings(rows: Sequence[Row], sections: frozenset[str]) -> str:
    """How long verifications took, and which nodes stand out."""
    parts = [
        (
            '<section id="timings"><h2>How long verification took</h2><p>The last verification of each node, compared'
            " among nodes with the same number of ranks. Totals and phases are of runs that passed, scenarios of those"
            f' that passed.</p><p class="note">{markup.text(HOW)}</p>'
        )
    ]
    groups: dict[int | None, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.last is not None:
            for measure, value in row.last.times:
                groups.setdefault(row.last.ranks, {}).setdefault(measure, {})[row.summary.name] = value
    # what nodes say makes groups and measures, so there may be any number of them: the commonest are shown
    common = sorted(groups, key=lambda ranks: -_most(groups[ranks]))[:GROUPS]
    for ranks in sorted(common, key=lambda number: -1 if number is None else number):
        parts += _group(ranks, groups[ranks], sections)
    parts.append(left_off(len(groups) - GROUPS, "numbers of ranks that fewer nodes were verified with"))
    if not groups:
        parts.append('<p class="none">No verification that passed is on record.</p>')
    return "".join([*parts, "</section>"])


def _most(measures: dict[str, dict[str, float]]) -> int:
    return max(map(len, measures.values()))


def _group(
    ranks: int | None, measures: dict[str, dict[str, float]], sections: frozenset[str]
) -> Iterator[str]:
    common = set(sorted(measures, key=lambda name: -len(measures[name]))[:MEASURES])
    found = [
        (name, told)
        for name, values in measures.items()
        if name in common and (told := spread(values)) is not None
    ]
    # phases and scenarios in the order of the run, as the documents have them; the total before all
    found.sort(key=lambda pair: pair[0] != "all")
    yield f"<h3>{'Ranks unknown' if ranks is None else count(ranks, 'rank')}</h3>"
    shown = [pair for pair in found if pair[0] == "all" or pair[1].outliers]
    quiet = [pair for pair in found if pair not in shown]
    yield _measures(shown, sections)
    if quiet:
        judged = any(told.judged for _, told in quiet)
        words = "where no node stands out" if judged else "of too few nodes to judge"
        yield markup.folded(f"{count(len(quiet), 'more measure')} {words}", _measures(quiet, sections))
    yield left_off(len(measures) - MEASURES, "measures that fewer nodes have")


def _measures(found: Sequence[tuple[str, Spread]], sections: frozenset[str]) -> str:
    body = [
        (
            markup.text("the whole run" if name == "all" else name),
            f"{told.count:,}",
            f"<b>{markup.seconds(told.median)}</b>",
            markup.seconds(told.mad),
            bars.box(told),
            _outliers(told, sections),
        )
        for name, told in found
    ]
    if not body:
        return ""
    titles = ("Measure", "Nodes", "Median", "MAD", "Spread, from 0", "Stand out")
    return f'<div class="timing">{table(titles, body, numbers=(1, 2, 3))}</div>'


def _outliers(told: Spread, sections: frozenset[str]) -> str:
    if not told.judged:
        return '<span class="dim">too few to judge</span>'

    def words(each: Outlier) -> str:
        times = f", {each.value / told.median:.1f} times the median" if told.median > 0 else ""
        return f"{link(each.name, sections)} {markup.seconds(each.value)}{times}"

    named = "<br>".join(words(each) for each in told.outliers[:NAMED])
    over = len(told.outliers) - NAMED
    return (named + (f"<br>and {over:,} more" if over > 0 else "")) or "nobody"


def failures(rows: Sequence[Row], now: datetime, sections: frozenset[str]) -> str:
    """Which nodes failed, and why."""
    failed = [row for row in rows if stand(row.summary) == "failed"]
    failed.sort(key=lambda row: (-(row.waited(now) or timedelta(0)), row.summary.name))
    body = [
        (
            link(row.summary.name, sections),
            markup.stands(row.summary),
            f"{_since(row, now)}<br>{span(row.waited(now))} ago" if row.since else "",
            markup.text(row.summary.reason or "no reason is on record"),
            markup.text(", ".join(row.last.failed)) if row.last is not None and not row.last.passed else "",
            code(command(row)),
        )
        for row in failed[:LISTED]
    ]
    listed = _listed(("Node", "State", "Since (UTC)", "Why", "Failed in it", "Next"), body)
    more = left_off(len(failed) - LISTED, "they are in the table of all nodes")
    return f'<section id="failures"><h2>Failures</h2>{listed}{more}{_doubts(rows, sections)}</section>'


def _doubts(rows: Sequence[Row], sections: frozenset[str]) -> str:
    """Nodes in service whose last verification did not pass: it could not judge them, or the state is yet to follow."""
    found = [
        row for row in rows if row.summary.state is State.IN_SERVICE and row.last and not row.last.passed
    ]
    body = [
        (
            link(row.summary.name, sections),
            markup.outcome(row.last.outcome, passed=False),
            when(row.last.at),
            markup.text(row.last.why or ", ".join(row.last.failed)),
            code(f"verify-node {row.summary.name}"),
        )
        for row in found[:LISTED]
        if row.last is not None
    ]
    if not body:
        return ""
    listed = _listed(("Node", "Outcome", "At (UTC)", "Why", "Next"), body)
    more = left_off(len(found) - LISTED, "they are in the table of all nodes")
    return f"<h3>In service, though the last verification did not pass</h3>{listed}{more}"


def everyone(rows: Sequence[Row], now: datetime, sections: frozenset[str]) -> str:
    """Every node in one line."""
    body = []
    for row in rows[:ROWS]:
        known = row.summary
        end = row.certified
        body.append(
            (
                link(known.name, sections),
                markup.stands(known),
                markup.word(whose_turn(known)),
                markup.word(known.address or ""),
                f"{when(end)}<br>{_left(end, now)}" if end is not None else "",
                _verified(row, now),
            )
        )
    titles = ("Node", "State", "Next", "Address", "Certificate ends (UTC)", "Last verified (UTC)")
    more = left_off(len(rows) - ROWS, "node-inventory list has them all")
    return f'<section id="nodes"><h2>All nodes</h2>{table(titles, body)}{more}</section>'


def _verified(row: Row, now: datetime) -> str:
    if row.last is None:
        told = row.summary.verified_at
        return "" if told is None else f"{when(told)}<br>{markup.marked('service', 'passed')}"
    ago = span(max(timedelta(0), now - row.last.at))
    return f"{when(row.last.at)}<br>{markup.outcome(row.last.outcome, passed=row.last.passed)} {ago} ago"


def command(row: Row) -> str:
    """What whoever acts next types."""
    return next_command(row.summary) or ""
