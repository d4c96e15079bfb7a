"""The files that are to be imported: read once each, before it is known what they are; no record is opened."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from inventory.errors import BadInput
from inventory.importing import MAX_LIST_BYTES

STDIN = "<stdin>"
"""What `-` is called where its faults are told."""


def read_texts(files: Iterable[Path], *, stdin: IO[bytes] | None = None) -> dict[str, str]:
    """The text of each file by its name; `-` is stdin. A pipe can be read only once, so nobody reads them again.

    Raises:
        BadInput: some cannot be read; all of them are told at once.
    """
    texts: dict[str, str] = {}
    faults = []
    for file in dict.fromkeys(files):
        name = STDIN if str(file) == "-" else str(file)
        try:
            raw = _read(file, stdin)
            texts[name] = raw.decode("utf-8")
        except OSError as error:
            faults.append(f"{name}: {error.strerror or error}")
        except UnicodeDecodeError:
            faults.append(f"{name}: it is not UTF-8; save it so (in Excel: CSV UTF-8)")
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise BadInput(
            "nothing was imported",
            why="\n".join(faults),
            next_step="name the holder's receipts, or lists of nodes as YAML, CSV or an export's JSON",
        )
    return texts


def _read(file: Path, stdin: IO[bytes] | None) -> bytes:
    if str(file) == "-":
        raw = (stdin or sys.stdin.buffer).read(MAX_LIST_BYTES + 1)
    else:
        with file.open("rb") as source:
            raw = source.read(MAX_LIST_BYTES + 1)
    if len(raw) > MAX_LIST_BYTES:
        raise ValueError(f"it is larger than {MAX_LIST_BYTES} bytes; split it")
    return raw
