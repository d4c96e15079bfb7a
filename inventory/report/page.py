"""The page as a whole: one file that needs nothing else, for eyes, screen readers, phones and paper."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from inventory.report import fleet, markup, node
from inventory.report.facts import Row, Whole
from inventory.report.style import STYLE

TITLE = "The fleet"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PARTS = (
    ("waits", "Waits"),
    ("failures", "Failures"),
    ("certificates", "Certificates"),
    ("states", "States"),
    ("timings", "Timings"),
    ("nodes", "All nodes"),
)


def page(
    rows: Sequence[Row],
    wholes: Iterable[Whole],
    *,
    sections: Sequence[str],
    now: datetime,
    title: str = TITLE,
    record: str = "",
) -> bytes:
    """The report.

    rows: every node, by name. wholes: what gets a section, taken one after the other; sections: their names.
    record: where the values came from, in words that may be shown.
    """
    linked = frozenset(sections)
    links = "".join(f'<a href="#{to}">{words}</a>' for to, words in _PARTS)
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        # the file's own word that it needs nothing and runs nothing
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{markup.text(title)}</title><style>{STYLE}</style></head>",
        f'<body id="top"><header><h1>{markup.text(title)}</h1>',
        (
            f'<p class="dim">{markup.count(len(rows), "node")} as they stood at {markup.when(now)} UTC'
            f"{', in ' + markup.text(record) if record else ''}</p>"
        ),
        f'<nav aria-label="Parts of this page">{links}</nav></header><main>',
        ""
        if rows
        else f"<p>Nothing is on record yet: {markup.code('provision-node NAME')} puts a node there.</p>",
        fleet.tiles(rows, now),
        # what somebody must do comes first, and what is only good to know after it
        fleet.waits(rows, now, linked),
        fleet.failures(rows, now, linked),
        fleet.certificates(rows, now, linked),
        fleet.states(rows),
        fleet.timings(rows, linked),
        fleet.everyone(rows, now, linked),
        *(node.section(whole, now) for whole in wholes),
        f"</main><footer><p>{_bounds(len(rows), len(linked))}</p>",
        "<p>Made by node-inventory report. It holds no script and loads nothing.</p></footer></body></html>\n",
    ]
    return "\n".join(parts).encode("utf-8", "xmlcharrefreplace")


def _bounds(nodes: int, sections: int) -> str:
    if sections >= nodes:
        return "Every node has a section of its own."
    return (
        f"{markup.count(sections, 'node')} of {nodes:,} have a section of their own. Name others to see theirs:"
        f" {markup.code('node-inventory report --html FILE NODES')}"
    )
