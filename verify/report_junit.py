"""JUnit XML, as CI servers read it: one suite for each node."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from inventory.console import printable
from verify.report import NodeReport
from verify.report_cases import Case, cases, counts

_TAGS = {"failed": "failure", "error": "error"}


def junit(reports: Sequence[NodeReport]) -> bytes:
    """The whole document."""
    suites = [(report, cases(report)) for report in reports]
    told = counts([case for _, of in suites for case in of])
    root = ET.Element(
        "testsuites",
        name="verify-node",
        tests=str(sum(told.values())),
        failures=str(told["failed"]),
        errors=str(told["error"]),
        skipped=str(told["skipped"]),
        time=_seconds(sum(report.findings.seconds for report, _ in suites if report.findings)),
    )
    for report, of in suites:
        root.append(_suite(report, of))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'.encode()


def _suite(report: NodeReport, of: Sequence[Case]) -> ET.Element:
    told = counts(of)
    suite = ET.Element(
        "testsuite",
        name=_text(report.name),
        hostname=_text(report.name),
        tests=str(len(of)),
        failures=str(told["failed"]),
        errors=str(told["error"]),
        skipped=str(told["skipped"]),
        time=_seconds(report.findings.seconds if report.findings else 0.0),
    )
    properties = ET.SubElement(suite, "properties")
    facts = {"run_id": report.run_id, "ranks": str(report.ranks)}
    if report.findings:
        facts["probe_sha256"] = report.findings.probe_sha256
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=name, value=_text(value))
    for case in of:
        suite.append(_case(case))
    return suite


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
