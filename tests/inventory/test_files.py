import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inventory.errors import Refused
from inventory.files import lock, write_whole


def test_a_file_is_private_from_its_first_byte_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        write_whole(tmp_path / "secret", b"x")
    finally:
        os.umask(old)

    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_file_that_was_open_to_others_becomes_private(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"old")
    file.chmod(0o644)
    write_whole(file, b"new")

    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o600)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    program = (
        "import sys, resource; from pathlib import Path; from inventory.files import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "write_whole(Path(sys.argv[1]), b'x' * 100000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, check=False, timeout=600
    )

    assert done.returncode != 0
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_reader_never_sees_a_part_while_writers_are_killed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"0" * 200_000)
    program = (
        "import sys; from pathlib import Path; from inventory.files import write_whole\n"
        "while True:\n    for c in b'12': write_whole(Path(sys.argv[1]), bytes([c]) * 200000)\n"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", program, str(file)])
        time.sleep(0.15)
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=600)
        seen = file.read_bytes()
        assert len(seen) == 200_000
        assert len(set(seen)) == 1


def test_a_lock_keeps_others_out_and_names_its_holder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from inventory.files import lock\n"
        "with lock(Path(sys.argv[1]), timeout_s=5):\n    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(Refused, match=f"process {holder.pid}"),
        lock(tmp_path / "lock", timeout_s=0.2),
    ):
        pass

    holder.kill()
    holder.communicate(timeout=600)
    with lock(tmp_path / "lock", timeout_s=5):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
