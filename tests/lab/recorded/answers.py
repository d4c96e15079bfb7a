"""The recorded answers, by their number in the recording."""

import json
from pathlib import Path
from typing import Any

ANSWERS: dict[int, dict[str, Any]] = {
    int(number): answer
    for number, answer in json.loads(Path(__file__).with_name("answers.json").read_text()).items()
}
