"""JUnit XML, as CI servers read it: one suite for each node, or one for a run over several of them."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from inventory.console import printable
from verify.report_cases import Case, Suite, counts

_TAGS = {"failed": "failure", "error": "error"}


def junit(suites: Sequence[Suite]) -> bytes:
    """The whole document."""
    root = ET.Element(
        "testsuites", {"name": "verify-node", **_counted([case for of in suites for case in of.cases])}
    )
    root.set("time", _seconds(sum(of.seconds for of in suites)))
    for of in suites:
        root.append(_suite(of))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'.encode()


def _suite(of: Suite) -> ET.Element:
    host = {} if of.host is None else {"hostname": _text(of.host)}
    suite = ET.Element("testsuite", {"name": _text(of.name), **host, **_counted(of.cases)})
    suite.set("time", _seconds(of.seconds))
    properties = ET.SubElement(suite, "properties")
    for name, value in of.facts:
        ET.SubElement(properties, "property", name=name, value=_text(value))
    for case in of.cases:
        suite.append(_case(case))
    return suite


def _counted(cases: Sequence[Case]) -> dict[str, str]:
    told = counts(cases)
    return {
        "tests": str(len(cases)),
        "failures": str(told["failed"]),
        "errors": str(told["error"]),
        "skipped": str(told["skipped"]),
    }


def _case(case: Case) -> ET.Element:
    element = ET.Element(
        "testcase",
        classname=_text(f"{case.node}.{case.kind}"),
        name=_text(case.name),
        time=_seconds(case.seconds),
    )
    details = "\n".join(f"{name}: {text}" for name, text in case.details)
    if case.outcome in _TAGS:
        told = ET.SubElement(element, _TAGS[case.outcome], message=_text(case.message), type=case.kind)
        told.text = _text(details)
    elif case.outcome == "skipped":
        ET.SubElement(element, "skipped", message=_text(case.message))
    elif details:
        ET.SubElement(element, "system-out").text = _text(details)
    return element


def _text(text: str) -> str:
    """XML 1.0 has no control characters, not even escaped ones (section 2.2); nor half of a surrogate pair."""
    return printable(text).encode("utf-8", "backslashreplace").decode()


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
