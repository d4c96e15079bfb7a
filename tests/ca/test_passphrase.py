"""Passphrases: from a file, standard input or a terminal, and from nowhere else."""

import io
import os
import pty
import select
import sys
from pathlib import Path

import pytest

from ca.passphrase import read_passphrase, weakness
from inventory.errors import BadInput, Refused

_ASK = """
import sys
from ca.passphrase import read_passphrase, weakness
from inventory.errors import MusterError
try:
    got = read_passphrase(None, what="the authority", twice=True)
    print("got", got)
except MusterError as error:
    print("refused:", error.why)
"""


def secret_file(folder: Path, content: bytes, *, mode: int = 0o600) -> Path:
    file = folder / "passphrase"
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("content", [b"words", b"words\n", b"words\r\n"])
def test_the_last_newline_of_a_file_does_not_count(tmp_path: Path, content: bytes) -> None:
    assert read_passphrase(secret_file(tmp_path, content), what="it") == b"words"


def test_only_one_newline_is_taken_off(tmp_path: Path) -> None:
    assert read_passphrase(secret_file(tmp_path, b" words \n\n"), what="it") == b" words \n"


def test_a_dash_is_standard_input() -> None:
    assert read_passphrase(Path("-"), what="it", stdin=io.BytesIO(b"words\n")) == b"words"


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"x" * 1025])
def test_an_empty_or_endless_passphrase_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadInput):
        read_passphrase(secret_file(tmp_path, content), what="it")


def test_a_file_that_others_read_is_refused_with_its_mend(tmp_path: Path) -> None:
    file = secret_file(tmp_path, b"words", mode=0o644)

    with pytest.raises(Refused) as caught:
        read_passphrase(file, what="it")
    assert caught.value.next_step == f"chmod 600 {file}"


def test_a_descriptor_is_a_file() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"words\n")
    os.close(writing)
    try:
        assert read_passphrase(Path(f"/dev/fd/{reading}"), what="it") == b"words"
    finally:
        os.close(reading)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_passphrase(tmp_path / "none", what="it")


def test_without_a_terminal_the_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_passphrase(None, what="it", terminal=tmp_path / "no-tty")
    assert "--passphrase-file" in caught.value.next_step
    with pytest.raises(BadInput, match="forbids"):
        read_passphrase(None, what="it", no_input=True)


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        (["words", "words"], "got b'words'"),
        (["words", "wrods"], "refused: the two entries differ"),
        ([""], "refused: it is empty"),
    ],
)
def test_a_person_is_asked_twice_and_nothing_is_echoed(entries: list[str], end: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # the child has a terminal of its own
        os.execv(sys.executable, [sys.executable, "-c", _ASK])  # noqa: S606 - fixed words
    shown = b""
    waiting = list(entries)
    while select.select([terminal], [], [], 30)[0]:
        try:
            more = os.read(terminal, 1024)
        except OSError:  # EIO: the child has ended
            break
        shown += more
        if more.rstrip(b" ").endswith(b":") and waiting:
            os.write(terminal, waiting.pop(0).encode() + b"\n")
    os.waitpid(pid, 0)
    os.close(terminal)
    lines = shown.decode().replace("\r", "").splitlines()

    assert waiting == []
    assert lines[-1] == end
    assert not any("words" in line for line in lines[:-1])


def test_a_descriptor_that_a_parent_opened_is_a_file() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"words\n")
    os.close(writing)

    assert read_passphrase(Path(f"/dev/fd/{reading}"), what="it") == b"words"
    os.close(reading)


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (b"short", "has 5 characters"),
        ("äöüäöüäöüäöüäö".encode(), "has 14 characters"),
        (b"abababababababababab", "repeats 2 characters"),
        (b"seven quiet brown otters", None),
        (b"\xff\xfe" * 16, "repeats 1 characters"),
    ],
)
def test_a_passphrase_that_is_easily_guessed_is_told(secret: bytes, said: str | None) -> None:
    told = weakness(secret, what="the authority")

    assert (told is None) if said is None else (told is not None and said in told)


def test_the_option_that_would_help_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        read_passphrase(None, what="the token", no_input=True, option="--pin-file")
    assert caught.value.next_step.startswith("pass --pin-file FILE")
