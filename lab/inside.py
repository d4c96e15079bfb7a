"""Reads a file below another root directory, whose symlinks must not lead out of it."""

import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path

_MAX_LINKS = 40  # what Linux allows too: path_resolution(7)


def read_inside(root: Path, path: str, *, limit: int = 16 * 1024 * 1024) -> bytes:
    """A regular file's content, `path` being resolved as a process with that root directory would.

    Each step is taken from an open directory and never through a symlink, so that who owns the tree below `root`
    cannot lead the reader out of it, not even by swapping a directory while it is read.

    Raises:
        OSError: the error that open(2) would give; EFBIG above `limit` bytes, EINVAL for what is no regular file.
    """
    with ExitStack() as open_ones:

        def kept(descriptor: int) -> int:
            open_ones.callback(os.close, descriptor)
            return descriptor

        way = [kept(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))]
        todo = _steps(path)
        links = 0
        while todo:
            step = todo.pop()
            if step == "..":
                if len(way) > 1:
                    way.pop()
                continue
            try:
                found = kept(os.open(step, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way[-1]))
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                way.append(found)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink("", dir_fd=found)
            if target.startswith("/"):
                del way[1:]
            todo += _steps(target)
        return _read(way[-1], path, limit)


def _steps(path: str) -> list[str]:
    """The parts of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def _read(found: int, path: str, limit: int) -> bytes:
    mode = os.fstat(found).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    # /proc/self/fd/N opens what an O_PATH descriptor stands for: open(2).
    with open(f"/proc/self/fd/{found}", "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content
