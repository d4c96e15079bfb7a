"""The report in every form: the same facts, well formed, and whatever a node says is text in it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from inventory.errors import BadInput
from verify import report as reports
from verify.report import NodeReport, rendered
from verify.report_phases import percentile, phase_rows

from .names import NODE
from .probing import ROOT
from .reported import ERROR, LOST, check, findings, ranks, report, scenario

EVIL = "<script>alert(1)</script>\x1b[31m ]]> & \" ' # \\ \u2028\x00"
DOC = ROOT / "docs" / "verify-report.md"


def evil() -> NodeReport:
    return report(
        error=ERROR,
        checks=(check(EVIL, "critical", found=EVIL, next=EVIL, why=EVIL, expected=EVIL),),
        scenarios=(scenario(EVIL, ok=False, detail=EVIL, expected=EVIL),),
        not_checked=(EVIL,),
    )


ALL = {
    "passed": [report()],
    "failed": [report(error=ERROR, scenarios=(scenario("killed-rank", ok=False, kind="negative"),))],
    "out of reach": [report(error=LOST)],
    "none": [],
    "several": [report(), report(name="gpu-02", error=LOST), report(name="gpu-03", error=ERROR)],
}


# -- JSON, against the schema that the document publishes ------------------------------------------------------------


def schema() -> dict[str, Any]:
    (block,) = re.findall(r"```json\n(.+?)```", DOC.read_text(), re.DOTALL)
    loaded: dict[str, Any] = json.loads(block)
    return loaded


def faults(value: Any, rule: Mapping[str, Any], whole: Mapping[str, Any], at: str = "$") -> list[str]:
    """What of JSON Schema our document uses: a type, required and known properties, items, enum, const, $ref."""
    if "$ref" in rule:
        return faults(value, whole["$defs"][rule["$ref"].rpartition("/")[2]], whole, at)
    if "const" in rule and value != rule["const"]:
        return [f"{at}: {value!r} is not {rule['const']!r}"]
    if "enum" in rule and value not in rule["enum"]:
        return [f"{at}: {value!r} is none of {rule['enum']}"]
    named = rule.get("type", [])
    types = [named] if isinstance(named, str) else [*named]
    types += ["integer"] if "number" in types else []
    if named and _type(value) not in types:
        return [f"{at}: {value!r} is no {named}"]
    found = []
    if isinstance(value, dict):
        known = rule.get("properties", {})
        found += [f"{at}: {key} is missing" for key in rule.get("required", ()) if key not in value]
        found += [f"{at}: {key} is unknown" for key in value if key not in known]
        for key in value.keys() & known.keys():
            found += faults(value[key], known[key], whole, f"{at}.{key}")
    if isinstance(value, list):
        for number, item in enumerate(value):
            found += faults(item, rule.get("items", {}), whole, f"{at}[{number}]")
    return found


def _type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


@pytest.mark.parametrize("name", ALL)
def test_the_json_document_obeys_the_schema_that_is_published(name: str) -> None:
    document = json.loads(rendered(ALL[name], ".json"))

    assert faults(document, schema(), schema()) == []


def test_the_schema_would_notice_another_document() -> None:
    document = json.loads(rendered([report()], ".json"))
    document["nodes"][0]["verification"]["checks"][0]["verdict"] = "fine"
    document["phases"][0]["ms"] = "99"
    del document["schema"]

    assert len(faults(document, schema(), schema())) == 3


def test_one_nodes_facts_stand_at_the_top_as_agreed() -> None:
    document = json.loads(rendered([report()], ".json"))

    assert {"ok": True, "node": NODE, "ranks": 8, "seconds": 1.5}.items() <= document.items()
    assert document["scenarios"] == document["nodes"][0]["verification"]["scenarios"]
    assert "node" not in json.loads(rendered(ALL["several"], ".json"))


def test_every_check_is_documented() -> None:
    text = DOC.read_text()
    sources = "".join(file.read_text() for file in sorted((ROOT / "verify/probe").glob("*check*.py")))
    names = re.findall(r'check\(\s*f?"([\w {}-]+)",', sources)

    assert len(names) >= 18
    for name in names:
        assert f"`{name.replace('{name}', 'NAME')}`" in text, name


# -- JUnit -----------------------------------------------------------------------------------------------------------

# what CI servers read (the Jenkins plugin's junit-10.xsd): element, its attributes, which are required, its children
JUNIT = {
    "testsuites": (("name", "time", "tests", "failures", "errors", "skipped"), ("name",), ("testsuite",)),
    "testsuite": (
        ("name", "tests", "failures", "errors", "skipped", "time", "hostname"),
        ("name", "tests"),
        ("properties", "testcase"),
    ),
    "properties": ((), (), ("property",)),
    "property": (("name", "value"), ("name", "value"), ()),
    "testcase": (
        ("name", "classname", "time"),
        ("name", "classname"),
        ("failure", "error", "skipped", "system-out"),
    ),
    "failure": (("message", "type"), ("message",), ()),
    "error": (("message", "type"), ("message",), ()),
    "skipped": (("message",), (), ()),
    "system-out": ((), (), ()),
}


def xml(text: str | bytes) -> ET.Element:
    """Our own text, read by another's parser."""
    return ET.fromstring(text)  # noqa: S314 - it is our own


def strange(element: ET.Element) -> list[str]:
    known, required, children = JUNIT[element.tag]
    found = [f"{element.tag} has {key}" for key in element.attrib if key not in known]
    found += [f"{element.tag} lacks {key}" for key in required if key not in element.attrib]
    found += [f"{element.tag} holds {child.tag}" for child in element if child.tag not in children]
    if element.tag in ("testsuites", "testsuite"):
        for count, tag in {"tests": "testcase", "failures": "failure", "errors": "error"}.items():
            if int(element.attrib[count]) != len(list(element.iter(tag))):
                found.append(f"{element.tag} miscounts {tag}")
    return found + [fault for child in element for fault in strange(child)]


@pytest.mark.parametrize("name", ALL)
def test_the_junit_report_is_one(name: str) -> None:
    assert strange(xml(rendered(ALL[name], ".xml"))) == []


def test_junit_tells_failed_from_not_judged_from_not_looked_at() -> None:
    blind = check("gpus", "unknown", essential=True, found="nvidia-smi did not answer in 10 s")
    checks = (blind, check("clock-kept", "unknown"), check("clock", "critical", next="ntp"), check())
    root = xml(rendered([report(error=ERROR, checks=checks)], ".xml"))
    by_name = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}

    assert by_name["gpus"] == ["error"]
    assert by_name["clock-kept"] == by_name["between nodes"] == ["skipped"]
    assert by_name["clock"] == by_name["verdict"] == ["failure"]
    assert by_name["expiry"] == by_name["assemble"] == ["system-out"]
    (failure,) = root.iterfind(".//testcase[@name='clock']/failure")
    assert failure.get("message") == "critical: it"
    assert "next: ntp" in (failure.text or "")


def test_a_node_out_of_reach_is_an_error_in_junit_and_not_ok_in_tap() -> None:
    root = xml(rendered([report(error=LOST)], ".xml"))

    assert [child.tag for child in root.iterfind(".//testcase/*")] == ["error"]
    assert "not ok 1 - gpu-01: verdict: verdict\n" in rendered([report(error=LOST)], ".tap").decode()


# -- TAP -------------------------------------------------------------------------------------------------------------


def read_tap(text: str) -> list[tuple[bool, str, str | None]]:
    """A reader of its own: ok, description, directive; anything that TAP 14 does not know is an error."""
    version, plan, *lines = text.splitlines()
    assert version == "TAP version 14"
    points: list[tuple[bool, str, str | None]] = []
    in_yaml = False
    for line in lines:
        if in_yaml:
            in_yaml = line != "  ..."
            assert not in_yaml or re.fullmatch(r'  \w+: ("(\\.|[^"\\])*"|[\d.]+)', line), line
            continue
        if line == "  ---":
            in_yaml = True
            continue
        found = re.fullmatch(r"(not )?ok (\d+) - ((?:\\.|[^#\\])*?)(?: # (SKIP|TODO) .*)?", line)
        assert found, line
        assert int(found[2]) == len(points) + 1
        points.append((not found[1], found[3], found[4]))
    assert not in_yaml
    assert plan == f"1..{len(points)}"
    return points


@pytest.mark.parametrize("name", ALL)
def test_the_tap_report_is_one(name: str) -> None:
    points = read_tap(rendered(ALL[name], ".tap").decode())

    assert all(ok for ok, _, _ in points) == all(each.ok for each in ALL[name])


def test_what_was_not_checked_is_skipped_in_tap() -> None:
    points = read_tap(rendered([report()], ".tap").decode())

    assert (True, "gpu-01: not checked: GPUs", "SKIP") in points


# -- a node that wants to be clever ----------------------------------------------------------------------------------


def test_what_a_node_says_is_text_in_every_form() -> None:
    page = rendered([evil()], ".html").decode()
    document = json.loads(rendered([evil()], ".json"))

    assert strange(xml(rendered([evil()], ".xml"))) == []
    assert [ok for ok, _, _ in read_tap(rendered([evil()], ".tap").decode())] == [False, False, False, True]
    assert faults(document, schema(), schema()) == []
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert "\x00" not in page


# -- HTML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_the_page_needs_nothing_but_itself(name: str) -> None:
    page = rendered(ALL[name], ".html").decode()

    assert not re.findall(
        r"(?i)<(?:script|link|img|iframe|object)|@import|(?:src|srcset|action)=|https?:", page
    )
    assert "default-src 'none'" in page
    assert page.count("<section") == page.count("</section>") == len(ALL[name])


def test_the_page_tells_its_verdicts_in_words() -> None:
    page = rendered(ALL["several"], ".html").decode()

    for words in ("1 of 3 nodes passed", "✓ passed", "? not judged", "✗ failed", "no answer within 20 s"):
        assert words in page
    assert "! warning" in page
    assert "LimitNOFILE=65536" in page


@pytest.mark.parametrize("count", [1, 64, 512])
def test_every_rank_has_a_row_in_the_time_line(count: int) -> None:
    page = rendered([report(ranks=ranks(count))], ".html").decode()
    (drawn,) = re.findall(r"<svg viewBox.+?</svg>", page, re.DOTALL)

    assert drawn.count("<g><title>rank ") == count
    assert f"rank {count - 1}: started {count - 1}.0 ms, joined {count + 9}.0 ms, GO 200.0 ms" in drawn
    xml(drawn)
    edges = [
        float(x) + float(width)
        for x, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    ]
    assert max(edges) <= 900


# -- phases, files ---------------------------------------------------------------------------------------------------


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]

    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)


def test_phases_are_spread_over_the_ranks_where_each_goes_through_them() -> None:
    rows = {row.name: row for row in phase_rows(findings(ranks=ranks(100)))}

    assert (rows["start"].p50_ms, rows["start"].p99_ms) == (49.0, 98.0)
    assert (rows["go"].p50_ms, rows["go"].p99_ms) == (None, None)
    # told to stop at 399 - 110 ms: the first has ended 11 ms later
    assert rows["teardown"].p50_ms == 60.0


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["r.pdf"], ".json, .xml, .tap, .html"),
        (["r"], ".json, .xml, .tap, .html"),
        (["none/r.html"], "there is no folder"),
        (["r.xml", "r.xml"], "named twice"),
    ],
)
def test_a_report_that_could_not_be_written_is_refused_first(
    tmp_path: Path, names: list[str], text: str
) -> None:
    with pytest.raises(BadInput) as refused:
        reports.check_files([tmp_path / name for name in names])

    assert text in str(refused.value)


@pytest.mark.parametrize("form", reports.FORMS)
def test_a_report_is_written_whole_and_readable_by_all(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"report{form}"
    reports.check_files([file])
    reports.write([report()], file)

    assert file.read_bytes() == rendered([report()], form)
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
