"""Many nodes named at once, as people of HPC write them: gpu-[01-64,80], rack[1-4]-n[1-9], or one plain name."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_NODES = 4096
"""Nodes that one command takes; more are a slip of the finger."""

_PART = re.compile(r"\[([^\[\]]*)\]|([a-z0-9-]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A range of numbers. low, high: both belong to it. width: digits of a zero-padded one, 0 of any other."""

    low: int
    high: int
    width: int

    def __contains__(self, text: str) -> bool:
        as_written = len(text) == self.width if self.width else text == str(int(text))
        return as_written and self.low <= int(text) <= self.high

    def __len__(self) -> int:
        return self.high - self.low + 1

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self.width}}" for number in range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class NodeSet:
    """A set of names.

    Zero padding counts: [01-64] holds 07 and not 7; [1-64] holds 7 and not 07.
    """

    text: str
    _pattern: re.Pattern[str]
    _parts: tuple[str | tuple[Numbers, ...], ...]

    @classmethod
    def parse(cls, text: str) -> "NodeSet":
        """Read a node set.

        Raises:
            ValueError: it is not one.
        """
        pattern, at = "", 0
        parts: list[str | tuple[Numbers, ...]] = []
        while at < len(text):
            part = _PART.match(text, at)
            if part is None:
                raise ValueError(f"{text!r} is not a node set like gpu-[01-64]")
            if part[2] is None:
                pattern += "([0-9]{1,9})"
                parts.append(tuple(_numbers(item, text) for item in part[1].split(",")))
            else:
                pattern += re.escape(part[2])
                parts.append(part[2])
            at = part.end()
        if not pattern or text.startswith("-") or text.endswith("-"):
            raise ValueError(f"{text!r} is not a node set like gpu-[01-64]")
        return cls(text, re.compile(pattern), tuple(parts))

    def __contains__(self, name: str) -> bool:
        found = self._pattern.fullmatch(name)
        ranges = [part for part in self._parts if not isinstance(part, str)]
        return found is not None and all(
            any(number in numbers for numbers in choices)
            for number, choices in zip(found.groups(), ranges, strict=True)
        )

    def names(self) -> tuple[str, ...]:
        """Every name, in the order of writing, each once.

        Raises:
            ValueError: there are more than `MAX_NODES`.
        """
        count = 1
        for part in self._parts:
            count *= 1 if isinstance(part, str) else sum(map(len, part))
        if count > MAX_NODES:
            raise ValueError(f"{self.text!r} names {count} nodes; one command takes {MAX_NODES}")
        choices = [[part] if isinstance(part, str) else list(itertools.chain(*part)) for part in self._parts]
        return tuple(dict.fromkeys(map("".join, itertools.product(*choices))))


def expand(texts: Iterable[str]) -> tuple[str, ...]:
    """The names of several node sets, in the order of writing, each once.

    Raises:
        ValueError: one is not a node set, or there are more than `MAX_NODES` in all.
    """
    names = tuple(dict.fromkeys(name for text in texts for name in NodeSet.parse(text).names()))
    if len(names) > MAX_NODES:
        raise ValueError(f"{len(names)} nodes are named; one command takes {MAX_NODES}")
    return names


def _numbers(item: str, text: str) -> Numbers:
    found = _RANGE.fullmatch(item)
    if found is None:
        raise ValueError(f"{text!r}: {item!r} is not a number or a range like 01-64")
    low, high = found[1], found[2] or found[1]
    padded = any(len(end) > 1 and end.startswith("0") for end in (low, high))
    if padded and len(low) != len(high):
        raise ValueError(f"{text!r}: both ends of {item!r} must have the same number of digits")
    if int(low) > int(high):
        raise ValueError(f"{text!r}: {item!r} runs backwards")
    return Numbers(int(low), int(high), len(low) if padded else 0)
