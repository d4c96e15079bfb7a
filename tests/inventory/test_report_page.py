"""The page as text: nothing hostile becomes markup, every link leads somewhere, the same values make the same page."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inventory.model import Event, KeptReport, State
from inventory.report.facts import Row, Whole, chosen, last_run
from inventory.report.markup import text
from inventory.report.page import page
from tests.verify import reported

from . import fleets
from .fleets import NOW
from .test_report_values import DOCUMENT

TAGS = (
    "html head meta title style body header main footer nav section h1 h2 h3 p a b span small ul li br time code div"
    " table caption thead tbody tr th td dl dt dd details summary svg rect line path text g"
)
ATTRIBUTES = (
    "lang charset http-equiv content name id class href aria-label aria-hidden role scope data-t datetime tabindex"
    " width height style viewbox x x1 x2 y y1 y2 rx d fill stroke stroke-width stroke-dasharray stroke-dashoffset"
    " text-anchor font-size font-weight"
)
HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg/onload=document.title=1>",
    "</style><script>1</script>",
    "</title><script>1</script>",
    "javascript:alert(1)",
    "--><!--",
    "&lt;script&gt;",
    "\x1b]0;owned\x07\x00\u202e\ud800",
    "]]><script>1</script>",
)


class Seen(HTMLParser):
    """Tags, attributes, ids, links and text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        told = dict(attrs)
        if told.get("id"):
            self.ids[str(told["id"])] += 1
        if "href" in told:
            self.links.append(str(told["href"]))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def seen(told: bytes) -> Seen:
    reader = Seen()
    reader.feed(told.decode())
    reader.close()
    assert reader.open == []
    return reader


def written(wholes: tuple[Whole, ...], **more: Any) -> bytes:
    rows = tuple(map(fleets.row, wholes))
    return page(rows, wholes, sections=chosen(rows, ()), now=NOW, **more)


def hostile(evil: str, document: Any) -> Whole:
    """A node whose every free text is `evil`."""
    one = fleets.whole(1, State.VERIFY_FAILED, waited=timedelta(days=2), left=timedelta(days=5))
    node = replace(
        one.node,
        name=evil,
        reason=evil,
        proxmox_node=evil,
        profile=evil,
        site=evil,
        uuid=evil,
        user=evil,
        machine_id=evil,
        macs=(evil,),
        fabrics=(replace(one.node.fabrics[0], name=evil, interface=evil, address=evil),),
    )
    events = tuple(
        Event(each.at, evil, evil, each.before, each.after, evil, evil, evil) for each in one.events
    )
    return Whole(
        node, events, (KeptReport(evil, NOW, passed=False, document=document), *one.reports), one.receipts
    )


def evil_document(evil: str) -> dict[str, Any]:
    item = {
        "name": evil,
        "kind": evil,
        "ok": False,
        "seconds": 1.0,
        "detail": evil,
        "expected": evil,
        "ms": 1,
    }
    return {
        "outcome": evil,
        "probe_sha256": evil,
        "identity": {"spiffe_id": evil, "serial": evil},
        "error": {"why": evil},
        "verification": {
            "ranks": evil,
            "phases": [item],
            "time_line": [
                {"rank": 0, "start_ms": 1, "joined_ms": 2, "go_ms": 3, "end_ms": 4},
                {"rank": evil},
            ],
            "checks": [{"name": evil, "verdict": evil, "found": evil, "next": evil}],
            "scenarios": [item],
            "not_checked": [evil],
        },
    }


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_text_stays_text(evil: str) -> None:
    told = written((hostile(evil, evil_document(evil)),), title=evil, record=evil)
    found = seen(told)

    assert found.tags <= set(TAGS.split())
    assert found.attributes <= set(ATTRIBUTES.split())
    assert all(each.startswith("#") for each in found.links)
    assert b"\x1b" not in told
    if evil.isprintable():
        assert "".join(found.words).count(evil) >= 20


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), DOCUMENT)
def test_no_text_and_no_document_becomes_markup(evil: str, document: Any) -> None:
    found = seen(written((hostile(evil, document),), title=evil))

    assert found.tags <= set(TAGS.split())
    assert found.attributes <= set(ATTRIBUTES.split())


def test_every_link_leads_to_one_place_on_the_page() -> None:
    found = seen(written((*fleets.fleet(), hostile("a b<", {}))))

    assert {each[1:] for each in found.links} <= set(found.ids)
    assert found.ids.most_common(1)[0][1] == 1
    assert {f"#node-gpu-{number:02}" for number in range(1, 45)} <= set(found.links)


def test_the_page_says_how_it_is_to_be_read_and_that_it_runs_nothing() -> None:
    told = written(fleets.fleet()).decode()

    assert told.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in told
    assert told.count("<h1>") == 1
    assert "<script" not in told
    assert not re.search(r"(?:src|href)=\"(?!#)|@import|url\((?!#)", told)
    for svg in re.findall(r"<svg[^>]*>.{0,40}", told):
        assert 'role="img"' not in svg or "<title>" in svg
        assert 'role="img"' in svg or 'aria-hidden="true"' in svg


def test_the_same_values_make_the_same_page() -> None:
    assert written(fleets.fleet()) == written(fleets.fleet())


def test_an_empty_record_makes_a_page_too() -> None:
    told = written(()).decode()

    assert "0 nodes as they stood at" in told
    seen(told.encode())


def test_who_waits_longest_comes_first_for_each_role() -> None:
    told = written(fleets.fleet()).decode()
    waits = told[told.index('id="waits"') : told.index('id="failures"')]
    infra, security = waits.split("<h3>")[1:]

    for part in (infra, security):
        since = re.findall(r'datetime="([^"]+)"', part)
        assert since == sorted(since)
        assert len(since) >= 6
    assert '<span class="set">onboard-node</span> <span class="set">gpu-28</span>' in security
    assert "For infra: 6 nodes" in infra


def test_outliers_failures_and_reasons_are_named() -> None:
    told = written(fleets.fleet()).decode()
    timings = told[told.index('id="timings"') : told.index('id="nodes"')]
    failures = told[told.index('id="failures"') : told.index('id="certificates"')]

    assert "modified z-score" in timings
    row = next(each for each in timings.split("<tr>") if "scenario killed-leader" in each)
    assert re.findall(r"#node-(gpu-\d+)", row) == ["gpu-07", "gpu-19"]
    assert "is full (4.1 GiB free, 32 GiB wanted)" in failures
    assert "killed-leader, fabric ib0 MTU" in failures


def test_a_section_tells_the_road_the_identity_and_what_was_not_checked() -> None:
    told = written(fleets.fleet()).decode()
    part = told[told.index('id="node-gpu-36"') : told.index('id="node-gpu-37"')]

    for state in fleets.ROADS[State.VERIFY_FAILED]:
        assert f"</span> {state}</span>" in part
    assert '<span class="set">mira on ops-1</span>' in part
    assert "holder (jonas_db)" in part
    assert "SHA256:" in part
    assert "spiffe://example/node/gpu-36" in part
    assert "<b>Not checked:</b> between nodes, GPU kernels" in part
    assert "<title>rank 7: started " in part
    assert "2 earlier verifications" in part


def test_three_thousand_nodes_make_a_page_that_can_be_opened() -> None:
    rows = tuple(_many(3000))
    sections = chosen(rows, ())
    told = page(rows, (), sections=sections, now=NOW)
    found = seen(told)

    assert len(told) < 4_000_000
    assert len(sections) == 500
    assert "500 nodes of 3,000 have a section of their own" in "".join(found.words)


def _many(count: int) -> Iterator[Row]:
    few = tuple(map(fleets.row, fleets.fleet()))
    for number in range(count):
        row = few[number % len(few)]
        yield replace(row, summary=replace(row.summary, name=f"n-{number:05}"))


@given(st.text())
def test_a_text_can_stand_between_tags_and_in_quotes(told: str) -> None:
    assert not set(text(told)) & set("<>\"'\x00\x1b\u202e")


def test_nodes_that_make_up_measures_do_not_fill_the_page() -> None:
    def made_up(number: int) -> KeptReport:
        scenarios = [{"name": f"s{number}-{each}", "ok": True, "seconds": 1.0} for each in range(500)]
        return KeptReport(
            f"n-{number}",
            NOW,
            passed=True,
            document={"verification": {"ranks": number, "scenarios": scenarios}},
        )

    plain = fleets.row(fleets.fleet()[0])
    rows = [
        replace(plain, summary=replace(plain.summary, name=f"n-{number}"), last=last_run(made_up(number)))
        for number in range(100)
    ]
    told = page(rows, (), sections=(), now=NOW)

    assert len(told) < 1_500_000
    assert b"and 88 more: numbers of ranks" in told
    assert b"and 440 more: measures" in told


def test_a_node_in_service_that_could_not_be_judged_is_told_apart_from_one_that_failed() -> None:
    serving = fleets.whole(1, State.IN_SERVICE, waited=timedelta(days=9), left=timedelta(days=5))
    lost = KeptReport(
        serving.node.name, NOW, passed=False, document=reported.report(error=reported.LOST).to_json()
    )
    told = written((replace(serving, reports=(lost, *serving.reports)),)).decode()
    failures = told[told.index('id="failures"') : told.index('id="nodes"')]

    assert "did not pass" in failures
    assert "no answer within 20 s" in failures
    assert failures.count('class="mark warn set"') == 1
    assert 'class="mark failed' not in failures
    assert "did not pass</h3>" not in written((serving,)).decode()


def test_the_record_has_the_last_word_on_whether_a_node_passed() -> None:
    boasts = KeptReport("gpu-01", NOW, passed=False, document={"outcome": "passed"})

    assert last_run(boasts).outcome == "failed"
    assert last_run(replace(boasts, passed=True, document={"outcome": "failed"})).outcome == "passed"


def test_a_node_that_was_only_told_of_waits_for_infra() -> None:
    told_of = fleets.whole(1, State.AWAITING_IDENTITY, waited=timedelta(days=9), left=None)
    row = fleets.row(told_of)
    row = replace(row, summary=replace(row.summary, unadopted=True))
    whole = replace(told_of, node=replace(told_of.node, spec_hash=None))
    told = page((row,), (whole,), sections=("gpu-01",), now=NOW).decode()

    assert "For infra: 1 node<" in told
    assert "For security: 0 nodes<" in told
    assert told.count("--adopt</span>") == 2
    assert "Next: infra, " in told
