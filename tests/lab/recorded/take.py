"""Take the answers that the scenes need out of a recording: python -m tests.lab.recorded.take RECORDING."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.lab.recorded.scenes import SCENES, numbers

FILE = Path(__file__).with_name("answers.json")
ALSO = (  # for tests that need one answer, or one of its rows
    *(158, 333, 334, 335, 336, 339, 346, 347, 433),
    *(129, 154, 157, 204, 279, 284, 330, 343, 352, 353, 354, 355, 361, 362, 363, 528, 529, 534, 535, 774, 782, 861),
)  # fmt: skip


def wanted(recorded: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By number, what a scene replays: no login, and of a task's polls only the last."""
    assert SCENES
    found = {}
    for number in sorted({*numbers(), *ALSO}):
        answer = recorded[number]
        if answer["path"] == "/access/ticket" and answer["status"] == 200:
            continue
        if not is_whole(answer):
            continue
        if is_poll(answer) and '"running"' in (answer["body"] or "") and number not in ALSO:
            continue
        found[number] = answer
    return found


def is_poll(answer: dict[str, Any]) -> bool:
    return bool(re.search(r"/tasks/[^/]+/status$", answer["path"]))


def is_whole(answer: dict[str, Any]) -> bool:
    """Whether the recording has all of the body; it cut the longest."""
    try:
        json.loads(answer["body"] or "null")
    except ValueError:
        return False
    return True


def main() -> None:
    recorded = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    answers = {
        number: {
            "method": answer["method"],
            "path": answer["path"],
            **({"params": answer["params"]} if answer["params"] else {}),
            "status": answer["status"],
            "reason": answer["reason"],
            **({"body": json.loads(answer["body"])} if answer["body"] else {}),
        }
        for number, answer in wanted(recorded).items()
    }
    lines = [f'"{number}": {json.dumps(answer, sort_keys=True)}' for number, answer in answers.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
