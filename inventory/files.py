"""Files that matter: written whole or not at all, private from the first byte, changed under a lock."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from inventory.errors import BadInput, Refused


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` so that a reader, or a crash at any instant, sees the old file or the new, never a part.

    A temporary sibling is created with its mode (never wider), fsynced, renamed over `path`, and the
    folder is fsynced (rename(2), fsync(2)).

    Raises:
        OSError: the folder is absent, full or not writable; `path` is then untouched.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(out.fileno(), mode)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def writing_whole(path: Path, *, mode: int = 0o600) -> Iterator[IO[str]]:
    """UTF-8 text for `path` of any length, as `write_whole`: it takes its name once the block ends, if it ends well.

    Raises:
        BadInput: `path` cannot be written, or is a device, a pipe or a folder; what had the name is as it was.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is there, and is no file")
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        out = os.fdopen(descriptor, "w", encoding="utf-8", newline="")
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from error
    try:
        with out:
            yield out
            out.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _not_written(path, error) from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _not_written(path: Path, error: OSError | ValueError) -> BadInput:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return BadInput(f"{path} was not written", why=why, next_step="choose another place for it")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (fsync(2) of the directory)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock(
    path: Path,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold an exclusive lock (flock(2)) on `path`; it ends with the process, however that ends.

    The file holds the process id of its holder, for the message of whoever waits.

    Raises:
        Refused: another process held it for all of `timeout_s` seconds.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = clock() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
            if clock() >= deadline:
                holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "unknown"
                raise Refused(
                    f"{path} is locked",
                    why=f"process {holder} is at work there, for longer than {timeout_s:.0f} s",
                    next_step=f"wait until process {holder} has ended, then run the command again",
                )
            sleep(0.01)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
