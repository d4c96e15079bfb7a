"""A rotation that is killed goes on by the same command."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
WELL = {"usable": True, "stands": True, "left over": [], "blocks": [], "breaks": [], "index differs": False}


def test_a_kill_at_any_write_of_any_phase_leaves_one_that_can_be_done_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ca.killed_rotation", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)

    assert [kill for kill in kills if {key: kill[key] for key in WELL} != WELL] == []
    counts = Counter(kill["phase"] for kill in kills)
    assert counts["prepared"] >= 60
    assert min(counts.values()) >= 5
    assert len(counts) == 4
    assert {kill["reached"] for kill in kills} == {True, False}
