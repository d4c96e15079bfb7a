"""A run over several nodes in every form: the same facts, well formed, and whatever a node says is text in it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import browse, widths
from verify import events
from verify.across import AcrossReport, PathRow
from verify.across_drills import Result
from verify.across_report import rendered, write
from verify.fleet import Place
from verify.report import FORMS

from .reported import ranks
from .test_reports import EVIL, read_tap, strange, xml

ONE, TWO = "gpu-01", "gpu-02"
FRAGILE = "<script>document.title='owned';new Image().src='http://127.0.0.1:9/x'</script>"


def shown(name: str, **other: Any) -> events.IdentityFacts:
    facts: dict[str, Any] = {
        "event": "identity",
        "fault": None,
        "notes": (),
        "node_clock": "2026-11-30T12:00:00Z",
        "spiffe_id": f"spiffe://lab.example/node/{name}",
        "serial": "ab12",
        "not_after": "2026-12-30T12:00:00Z",
    }
    return events.IdentityFacts(**{**facts, **other})


def result(name: str = "assemble", *, ok: bool | None = True, **other: Any) -> Result:
    facts = {"kind": "positive", "seconds": 0.25, "expected": "all join", "found": "all joined", **other}
    return Result(name=name, ok=ok, **facts)


def row(**other: Any) -> PathRow:
    facts = {"fabric": "ib", "source": ONE, "target": TWO, "mtu": 9000, "why": "", **other}
    return PathRow(reached=True, full=not facts["why"], **facts)


def done(**other: Any) -> AcrossReport:
    """Two nodes of two ranks that passed; what varies is named."""
    names = other.pop("names", (ONE, TWO))
    probe = events.Began(
        event="probe", schema=1, pid=7, user="muster", python="3.11.2", openssl="OpenSSL 3.0.15"
    )
    facts: dict[str, Any] = {
        "run_id": "ab" * 16,
        "ranks": 2 * len(names),
        "places": tuple(
            Place(name, f"spiffe://lab.example/node/{name}", f"10.0.0.{number}", {})
            for number, name in enumerate(names, start=1)
        ),
        "identities": {name: shown(name) for name in names},
        "paths": (row(),),
        "scenarios": (result(line=ranks(2 * len(names))), result("killed-rank", kind="negative")),
        "lost": None,
        "seconds": 4.7,
        "probes": dict.fromkeys(names, probe),
    }
    return AcrossReport(**{**facts, **other})


def evil(text: str = EVIL) -> AcrossReport:
    return done(
        identities={ONE: shown(ONE, fault=text), TWO: shown(TWO, spiffe_id=text)},
        paths=(row(fabric=text, why=text),),
        scenarios=(result(text, ok=False, found=text, expected=text), result(line=ranks(4))),
    )


ALL = {
    "passed": done(),
    "failed": done(
        scenarios=(result(), result("killed-rank", ok=False, kind="negative", found="nobody knew"))
    ),
    "narrow": done(paths=(row(why="no full-size packet came back, 3 were sent"),)),
    "lost": done(
        identities={ONE: shown(ONE)},
        probes={},
        scenarios=(result(ok=None, found=f"not run: {TWO} was lost"),),
        lost=(TWO, "no answer within 20 s"),
    ),
    "nothing": done(scenarios=()),
    "stranger's identity": done(
        identities={ONE: shown(ONE), TWO: shown(TWO, fault="the certificate is for another node")},
        scenarios=(result(ok=None, found="not run: the identity does not hold"),),
    ),
}


# -- the forms of test harnesses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_junit_and_tap_are_well_formed_and_good_where_the_run_is(name: str) -> None:
    root = xml(rendered(ALL[name], ".xml"))
    points = read_tap(rendered(ALL[name], ".tap").decode())

    assert strange(root) == []
    bad = [*root.iter("failure"), *root.iter("error")]
    assert (not bad) == all(ok for ok, _, _ in points) == ALL[name].ok


def test_junit_has_one_case_for_each_scenario_and_says_which_nodes() -> None:
    root = xml(rendered(done(), ".xml"))
    cases = [
        case.get("name") for case in root.iter("testcase") if case.get("classname") == "together.scenario"
    ]

    assert cases == ["assemble", "killed-rank"]
    properties = {each.get("name"): each.get("value") for each in root.iter("property")}
    assert properties == {
        "run_id": "ab" * 16,
        "ranks": "4",
        "nodes": "gpu-01 gpu-02",
        "probe_sha256": properties["probe_sha256"],
    }


def test_junit_tells_failed_from_not_judged() -> None:
    told = {
        name: {
            (case.get("classname"), case.get("name")): [child.tag for child in case]
            for case in xml(rendered(ALL[name], ".xml")).iter("testcase")
        }
        for name in ("lost", "narrow", "stranger's identity")
    }

    assert told["lost"]["gpu-02.node", "identity"] == ["error"]
    assert told["lost"]["together.scenario", "assemble"] == ["error"]
    assert told["lost"]["together.verdict", "verdict"] == ["error"]
    assert told["narrow"]["together.network", "ib: gpu-01 to gpu-02"] == ["failure"]
    assert told["narrow"]["together.scenario", "assemble"] == ["system-out"]
    assert told["stranger's identity"]["gpu-02.node", "identity"] == ["failure"]
    assert told["stranger's identity"]["gpu-01.node", "identity"] == ["system-out"]
    assert told["narrow"]["together.not checked", "GPUs"] == ["skipped"]


def test_a_scenario_that_failed_says_what_runs_it_again() -> None:
    again = "verify-node --across gpu-01 gpu-02 --scenario killed-rank -v"

    assert f"next: {again}" in rendered(ALL["failed"], ".xml").decode()
    assert f"<code>{again}</code>" in rendered(ALL["failed"], ".html").decode()
    assert [each["next"] for each in ALL["failed"].document()["scenarios"]] == [None, again]


# -- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_the_page_needs_nothing_but_itself_and_has_a_section_for_each_node(name: str) -> None:
    page = rendered(ALL[name], ".html").decode()

    assert not re.findall(
        r"(?i)<(?:script|link|img|iframe|object)|@import|(?:src|srcset|action)=|https?:", page
    )
    assert "default-src 'none'" in page
    assert page.count("<section") == page.count("</section>") == 2


def test_the_page_tells_its_verdicts_in_words_the_run_first() -> None:
    page = rendered(ALL["lost"], ".html").decode()

    assert "<h1>verify-node: 2 nodes together not judged</h1>" in page
    assert page.index("? not judged") < page.index("gpu-02: no answer within 20 s") < page.index("<h3>Nodes")
    assert "bandwidth between nodes" in page
    assert "✗ FAILED" not in page
    assert "✗ FAILED" in rendered(ALL["stranger's identity"], ".html").decode()


def test_every_rank_has_a_row_under_its_node_in_the_one_time_line() -> None:
    page = rendered(done(), ".html").decode()
    (drawn,) = re.findall(r"<svg viewBox.+?</svg>", page, re.DOTALL)
    order = re.findall(r"gpu-\d\d(?=</text>)|<g><title>(rank \d): started", drawn)

    assert order == ["", "rank 0", "rank 1", "", "rank 2", "rank 3"]
    xml(drawn)
    (height,) = re.findall(r'viewBox="0 0 900 (\d+)"', drawn)
    bottoms = [
        float(y) + float(tall)
        for y, tall in re.findall(r' y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)
    ]
    assert max(bottoms) <= int(height)


def test_the_time_line_is_in_the_document_with_the_node_of_each_rank() -> None:
    line = json.loads(rendered(done(), ".json"))["time_line"]

    assert [(each["rank"], each["node"]) for each in line] == [(0, ONE), (1, ONE), (2, TWO), (3, TWO)]
    assert line[3] == {
        "rank": 3,
        "node": TWO,
        "start_ms": 3.0,
        "joined_ms": 13.0,
        "go_ms": 200.0,
        "end_ms": 303.0,
    }


def test_what_a_node_says_is_text_in_every_form() -> None:
    page = rendered(evil(), ".html").decode()

    assert strange(xml(rendered(evil(), ".xml"))) == []
    assert False in {ok for ok, _, _ in read_tap(rendered(evil(), ".tap").decode())}
    assert json.loads(rendered(evil(), ".json"))["scenarios"][0]["name"] == EVIL
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert "\x00" not in page


def test_the_page_renders_whole_in_a_browser_and_runs_nothing(tmp_path: Path) -> None:
    names = tuple(f"gpu-{number:02}" for number in range(1, 17))
    page, log = browse(tmp_path, rendered(done(names=names, paths=(row(why=FRAGILE),)), ".html"))

    assert "<title>verify-node: 16 nodes together failed</title>" in page
    assert page.count("<g><title>rank ") == 32
    assert page.count('<section id="node-') == 16
    assert "<script" not in page
    assert ":CONSOLE" not in log
    asked = {url for url in re.findall(r'"url":"([^"]+)"', log) if not url.startswith(("file:", "data:"))}
    assert not [url for url in asked if "127.0.0.1:9" in url], asked


def test_the_page_fits_its_window(tmp_path: Path) -> None:
    long = "spiffe://lab.example/" + "node" * 44
    page = rendered(done(paths=(row(why=long),), identities={ONE: shown(ONE, fault=long)}), ".html")

    assert all(wide <= window for window, wide in widths(tmp_path, page, 390, 1200).items())


@pytest.mark.parametrize("form", FORMS)
def test_a_report_is_written_whole(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"report{form}"
    write(done(), file)

    assert file.read_bytes() == rendered(done(), form)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
