"""The one JSON text of what is signed: RFC 8785 for printable ASCII, read as strictly as it is written (pure).

Two readers of one signed text must not see two things in it: so a key that is there twice, a number that is
none, a blank between tokens, an escape that is not needed, or keys in another order are all refused.
"""

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 8
MAX_NUMBER = 2**53 - 1
"""What every JSON reader takes exactly (RFC 7493, section 2.2)."""
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_ENCODABLE = re.compile("[^\ud800-\udfff]*")  # every character; a lone surrogate is none


def dumps(value: Any, *, any_text: bool = False) -> str:  # noqa: ANN401 - any JSON value
    """The text of a value.

    any_text: its texts, but not its keys, may hold any character; else printable ASCII alone.

    Raises:
        ValueError: it holds what the text could not say, or not in one way only.
    """
    plain = _plain(value, 0, _ENCODABLE if any_text else _PRINTABLE)
    return json.dumps(
        plain, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=not any_text
    )


def loads(line: str, *, any_text: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a text that `dumps` would write byte for byte.

    Raises:
        ValueError: it is another text, and in what.
    """
    strange = next((character for character in line if not " " <= character <= "~"), None)
    if strange is not None and not any_text:
        raise ValueError(f"it holds the character U+{ord(strange):04X}, which is not printable ASCII")
    try:
        value = json.loads(line, object_pairs_hook=_no_repeats, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    if dumps(value, any_text=any_text) != line:
        raise ValueError("it is not canonical JSON (RFC 8785): keys in order, no blanks, no needless escapes")
    return value


def _plain(value: Any, depth: int, texts: re.Pattern[str]) -> Any:  # noqa: ANN401 - any JSON value
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool():
            return value
        case str():
            if not texts.fullmatch(value):
                of = "printable ASCII" if texts is _PRINTABLE else "Unicode text"
                raise ValueError(f"{value[:60]!a} holds a character that is not {of}")
            return value
        case int() | float():
            return _number(value)
        case list() | tuple():
            return [_plain(item, depth + 1, texts) for item in value]
        case dict():
            # keys in ASCII sort alike by characters and, as RFC 8785 has it, by UTF-16 units
            return {
                _plain(key, depth + 1, _PRINTABLE): _plain(item, depth + 1, texts)
                for key, item in value.items()
            }
    raise ValueError(f"a {type(value).__name__} is no JSON value")


def _number(value: float) -> float:
    """As ECMAScript prints it (RFC 8785, section 3.2.2.3); where Python would print it otherwise, it is refused."""
    if not math.isfinite(value) or abs(value) > MAX_NUMBER:
        raise ValueError(f"a number is not between -{MAX_NUMBER} and {MAX_NUMBER}")
    if value == int(value):
        return int(value)
    if abs(value) < 1e-4:
        raise ValueError(f"the number {value} is too small")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {twice[:60]!a} is there twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
