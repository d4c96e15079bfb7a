"""The machine as files tell of it: /proc, /sys and /etc below a root folder, read within bounds."""

from __future__ import annotations

import os
from typing import Iterator

_MOST = 1 << 18


class Machine:
    """Where to look.

    Args:
        root: the folder that /proc, /sys, /etc and /dev are looked for in.
        search: where tools lie, in the form of PATH.
    """

    def __init__(self, root: str = "/", search: str | None = None) -> None:
        self._root = root.rstrip("/")
        self.search = os.environ.get("PATH", os.defpath) if search is None else search

    def place(self, path: str) -> str:
        """Where an absolute path of the machine lies."""
        return self._root + path

    def text(self, path: str) -> str:
        """The file's text, at most 256 KiB of it; raises OSError."""
        with open(self.place(path), "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")

    def word(self, path: str) -> str | None:
        """The file's text without blanks around it; None where it cannot be read."""
        try:
            return self.text(path).strip()
        except OSError:
            return None

    def data(self, path: str) -> bytes | None:
        """The file's bytes, at most 256 KiB of them; None where it cannot be read."""
        try:
            with open(self.place(path), "rb") as file:
                return file.read(_MOST)
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; nothing where there is none."""
        try:
            return sorted(os.listdir(self.place(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Is there something?"""
        return os.path.exists(self.place(path))

    def processes(self, name: str) -> Iterator[list[str]]:
        """The command line of every process whose name (comm, 15 characters) is `name`."""
        for pid in self.names("/proc"):
            if pid.isdigit() and self.word(f"/proc/{pid}/comm") == name:
                yield [part for part in (self.word(f"/proc/{pid}/cmdline") or name).split("\0") if part]

    def tool(self, name: str) -> str | None:
        """Where a command lies."""
        for folder in self.search.split(os.pathsep):
            file = os.path.join(folder, name)
            if os.path.isfile(file) and os.access(file, os.X_OK):
                return file
        return None
