"""How far a task is, by the lines of its log (pure): what was copied of what, and how long the rest may take.

qemu-img and the block mirror write `transferred 12.0 GiB of 100.0 GiB (12.00%)` for each disk that they copy
(qemu-server QemuServer.pm, qemu_img_convert); wget, behind download-url, writes `3072K ........ 12% 45.6M 3m20s`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

TELLING = frozenset({"qmclone", "qmcreate", "qmmove", "qmigrate", "download", "imgcopy"})
"""The kinds of task whose log tells how far they are."""

_COPIED = re.compile(
    r"(?:drive-|mirror-)?(?P<disk>[a-z]+\d+)?:? ?transferred:? (?P<done>[\d.]+ [KMGTP]?i?B) of"
    r" (?P<total>[\d.]+ [KMGTP]?i?B) \((?P<percent>[\d.]+)%\)"
)
_DRIVE = re.compile(r"create (?:full|linked) clone of drive (?P<disk>[a-z]+\d+) ")
_LOADED = re.compile(r"^\s*(?P<done>\d+)K [ .,]*(?P<percent>\d{1,3})%")
_NOTHING_YET = "no content"  # pve-common dump_logfile, for a log without a line


@dataclass(slots=True)
class Meter:
    """One task's log, taken line by line; `line` counts them, for the next page to begin there."""

    line: int = 0
    _disk: str = ""
    _words: str = ""
    _percent: float | None = None
    _began: tuple[float, float] | None = field(default=None)

    def take(self, lines: Iterable[str], *, now: float) -> str:
        """How far the task is after these lines; an empty text while none tells. now: seconds on any clock."""
        for text in lines:
            if text == _NOTHING_YET and self.line == 0:
                continue
            self.line += 1
            if found := _DRIVE.match(text):
                self._new_disk(found["disk"])
            elif found := _COPIED.match(text):
                if found["disk"] and found["disk"] != self._disk:
                    self._new_disk(found["disk"])
                self._at(float(found["percent"]), f"{found['done']} of {found['total']}", now)
            elif found := _LOADED.match(text):
                self._at(float(found["percent"]), f"{int(found['done']) / 1024:.0f} MiB", now)
        return self.words(now=now)

    def words(self, *, now: float) -> str:
        """`scsi0: 12.0 GiB of 100.0 GiB, 12 %, about 88 s left`; empty while nothing is known."""
        if self._percent is None:
            return ""
        left = self._left_s(now)
        rest = "" if left is None else f", about {_duration(left)} left"
        return f"{self._disk + ': ' if self._disk else ''}{self._words}, {self._percent:.0f} %{rest}"

    def _new_disk(self, disk: str) -> None:
        self._disk, self._percent, self._began = disk, None, None

    def _at(self, percent: float, words: str, now: float) -> None:
        if self._began is None or (self._percent is not None and percent < self._percent):
            self._began = (now, percent)
        self._percent, self._words = min(percent, 100.0), words

    def _left_s(self, now: float) -> float | None:
        """By the pace since the first line that told; None until there is a pace."""
        if self._began is None or self._percent is None:
            return None
        since, first = self._began
        gained, took = self._percent - first, now - since
        if gained <= 0 or took <= 0:
            return None
        return (100.0 - self._percent) * took / gained


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
