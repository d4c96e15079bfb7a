"""What became of each rank of a replica, and when."""

from __future__ import annotations

from typing import Any

from .replica import Rank, Replica


def time_line(replica: Replica, began: float) -> list[dict[str, Any]]:
    """One row for each rank, in milliseconds since `began`."""
    joined = {event["rank"]: event["at"] for event in replica.leader.events if event["event"] == "seated"}
    rows = []
    for rank, view in sorted(replica.ranks.items()):
        # rank 0 has its own seat from the moment it listens
        seat = joined.get(rank) if rank else _at(view, "listening")
        times = {"start": view.began, "joined": seat, "go": _at(view, "go"), "end": view.ended}
        rows.append({"rank": rank, **{f"{name}_ms": _since(at, began) for name, at in times.items()}})
    return rows


def own_time_line(replica: Replica, began: float) -> list[dict[str, Any]]:
    """The same for the ranks that run here, whose leader may run elsewhere: what each of them said itself."""
    rows = []
    for rank, view in sorted(replica.ranks.items()):
        seat = _at(view, "welcome" if rank else "listening")
        times = {"start": view.began, "joined": seat, "go": _at(view, "go"), "end": view.ended}
        rows.append({"rank": rank, **{f"{name}_ms": _since(at, began) for name, at in times.items()}})
    return rows


def _at(view: Rank, name: str) -> float | None:
    event = view.first(name)
    return None if event is None else float(event["at"])


def _since(at: float | None, began: float) -> float | None:
    return None if at is None else round(max(0.0, at - began) * 1000, 3)
