"""What docs/inventory-export.md tells to type is typed, and what it tells of is there."""

import os
import re
import subprocess
from pathlib import Path

from inventory.export import Form
from inventory.export.prometheus import write
from inventory.model import State
from tests.inventory.exports import BIN, NOW, node, record, text_of
from tests.require import need_command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/inventory-export.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_go_as_it_says(tmp_path: Path) -> None:
    need_command("ansible-inventory", "promtool", "ssh", "ssh-keygen")
    url = record(tmp_path, node("gpu-01"), node("gpu-02", State.PLANNED, address=None))
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "EXAMPLES": str(ROOT / "examples"),
            "MUSTER_INVENTORY": url,
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
        },
    )

    assert done.returncode == 0, done.stderr
    assert "hostkeyalias gpu-01" in done.stdout
    assert "|--@muster_state_in_service:\n  |  |--gpu-01" in done.stdout
    assert f"UserKnownHostsFile={tmp_path}/muster_hosts" in done.stdout
    assert len((tmp_path / "nodes.csv").read_text().splitlines()) == 2


def test_the_page_tells_of_every_form_and_every_metric() -> None:
    metrics = re.findall(r"(?m)^# TYPE (\S+) ", text_of(lambda out: write([], out, now=NOW)))

    assert [name for name in (*Form, *metrics) if f"| `{name}` |" not in PAGE] == []


def test_the_script_is_two_lines_and_may_be_run() -> None:
    script = ROOT / "examples/ansible/muster-inventory"

    assert script.read_text() == '#!/bin/sh\nexec node-inventory ansible "$@"\n'
    assert os.access(script, os.X_OK)
