"""TAP 14 (testanything.org): one line for each case, details as YAML below it."""

import json
import re
from collections.abc import Sequence

from inventory.console import printable
from verify.report_cases import Case, Suite


def tap(suites: Sequence[Suite]) -> bytes:
    """The whole stream."""
    of = [case for suite in suites for case in suite.cases]
    lines = ["TAP version 14", f"1..{len(of)}"]
    for number, case in enumerate(of, start=1):
        lines += _case(number, case)
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _case(number: int, case: Case) -> list[str]:
    good = case.outcome in ("passed", "skipped")
    line = f"{'ok' if good else 'not ok'} {number} - {_line(f'{case.node}: {case.kind}: {case.name}')}"
    if case.outcome == "skipped":
        return [f"{line} # SKIP {_line(case.message)}"]
    details = [("message", case.message), ("outcome", case.outcome), *case.details]
    # a JSON string is a YAML one (YAML 1.2, section 1.3)
    told = [f"  {name}: {json.dumps(text, ensure_ascii=False)}" for name, text in details]
    return [
        line,
        "  ---",
        *(_one(text) for text in told),
        f"  duration_ms: {case.seconds * 1000:.3f}",
        "  ...",
    ]


def _line(text: str) -> str:
    """A description: '#' would begin a directive, and a line's end another line."""
    return re.sub(r"([\\#])", r"\\\1", _one(text))


def _one(text: str) -> str:
    return " ".join(printable(text).split("\n")).replace("\t", " ")
