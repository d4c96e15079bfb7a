"""Spans of time as people type them: 36h, 14d, 4w."""

import re
from datetime import timedelta

_SPAN = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def parse_span(text: str) -> timedelta:
    """The span that `text` names: at most 99999 hours, days or weeks.

    Raises:
        ValueError: it is none.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a span of time like 14d, 36h or 4w")
    return int(found[1]) * _UNITS[found[2]]
