"""A real torch.distributed all-reduce over several processes of this node, its value checked; torch is never installed.

The ranks are interpreters of their own that see the site's packages, which the probe itself does not. They are started
as real jobs start them: over an address and a port, rank 0 first to listen.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Sequence

from .engine import HOST

MISSING = 77
_MOST_RANKS = 8
_LOOK_S = 60.0
_GRACE_S = 5.0
_WORD = 400
_TRIES = 3
_TAKEN = os.strerror(errno.EADDRINUSE)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOOK = """\
import importlib.util, sys
sys.exit(0 if importlib.util.find_spec("torch") else {missing})
"""
_RANK = """\
import datetime, json, sys
rank, world, port, left = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    sys.stderr.write("no torch: %s" % error)
    sys.exit({missing})
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
use = gpus >= world and dist.is_nccl_available()
backend = "nccl" if use else "gloo"
if use:
    torch.cuda.set_device(rank)
dist.init_process_group(
    backend, init_method="tcp://{host}:" + port, rank=rank, world_size=world,
    timeout=datetime.timedelta(seconds=left),
)
device = "cuda:%d" % rank if use else "cpu"
length = 1 << 16
given = torch.arange(length, dtype=torch.float64, device=device) + rank
dist.all_reduce(given)
wanted = torch.arange(length, dtype=torch.float64, device=device) * world + world * (world - 1) // 2
wrong = int((given != wanted).sum().item())
dist.barrier()
print(json.dumps({{"rank": rank, "torch": torch.__version__, "backend": backend, "gpus": gpus, "wrong": wrong,
                   "last": float(given[-1].item())}}), flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    """A port that nobody has now; torch binds it later itself, so that another may be faster."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
        return port


def torch_check(
    ranks: int, *, python: Sequence[str], within_s: float, port_for: Callable[[], int] = free_port
) -> dict[str, Any]:
    """The check: pass, critical where the sum is wrong or does not come, unknown where torch is not there.

    Args:
        ranks: how many processes; more than eight are eight.
        python: interpreters to look for torch in, the first that has it is taken.
        within_s: for all of it.
        port_for: where rank 0 is to listen; asked again where somebody was faster.
    """
    ends = time.monotonic() + within_s
    world = max(2, min(ranks, _MOST_RANKS))
    expected = f"{world} ranks of torch.distributed all-reduce 65536 numbers to the right sums"
    seen = []
    for name in dict.fromkeys(python):
        found = _look(name, min(_LOOK_S, ends - time.monotonic()))
        if not found:
            for _ in range(_TRIES):
                verdict, words = _reduce(name, world, port_for(), ends)
                if verdict == "pass" or _TAKEN not in words:
                    break
            return _judged(expected, verdict, words)
        seen.append(f"{name}: {found}")
    return _judged(expected, "unknown", f"could not be judged: {'; '.join(seen) or 'no python was named'}")


def _judged(expected: str, verdict: str, found: str) -> dict[str, Any]:
    advice = {
        "pass": None,
        "unknown": "install torch where the node's engines run, or name its interpreter with --engine-python",
        "critical": "run it by hand with TORCH_DISTRIBUTED_DEBUG=DETAIL and look at what rank 0 says",
    }
    return {
        "name": "torch-all-reduce",
        "verdict": verdict,
        "expected": expected,
        "found": found[:1500],
        "next": advice[verdict],
        "essential": True,
    }


def _look(python: str, within_s: float) -> str:
    """Empty where that interpreter has torch, else why not."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _LOOK.format(missing=MISSING)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=max(0.1, within_s),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it hangs when it is asked for torch"
    except OSError as error:
        return os.strerror(error.errno or 0).lower()
    return "" if done.returncode == 0 else "torch is not installed"


def _reduce(python: str, world: int, port: int, ends: float) -> tuple[str, str]:
    """Verdict and what was found; whatever comes of it no process is left."""
    began = time.monotonic()
    left = max(1.0, ends - began)
    code = _RANK.format(missing=MISSING, host=HOST)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(world):
            words = [python, "-I", "-c", code, str(rank), str(world), str(port), f"{left:.1f}"]
            running.append(
                subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=_environment(),
                    start_new_session=True,
                )
            )
        said = _gather(running, ends)
    finally:
        for process in running:
            _reap(process)
    return _verdict(world, running, said, time.monotonic() - began)


def _verdict(
    world: int, ended: Sequence[subprocess.Popen[bytes]], said: Sequence[tuple[bytes, bytes]], took: float
) -> tuple[str, str]:
    missing = [rank for rank, process in enumerate(ended) if process.returncode == MISSING]
    if missing:
        return "unknown", f"could not be judged: {_last(said[missing[0]][1]) or 'torch cannot be imported'}"
    told = [_told(out) for out, _ in said]
    silent = [rank for rank, one in enumerate(told) if one is None]
    if silent:
        first = next(
            (rank for rank in silent if ended[rank].returncode not in (0, -signal.SIGKILL)), silent[0]
        )
        words = _last(said[first][1]) or f"it ended with {ended[first].returncode}, no word"
        return "critical", f"after {took:.1f} s ranks {silent} had no result; rank {first}: {words}"
    results = [one for one in told if one is not None]
    wrong = {one["rank"]: one["wrong"] for one in results if one["wrong"]}
    if wrong or {one["rank"] for one in results} != set(range(world)):
        return "critical", f"the sums are wrong, by rank: {wrong}"
    one = results[0]
    where = f"{one['backend']}, {one['gpus']} GPUs"
    return "pass", f"torch {one['torch']}, {where}: {world} ranks, every sum right, after {took:.1f} s"


def _gather(running: Sequence[subprocess.Popen[bytes]], ends: float) -> list[tuple[bytes, bytes]]:
    """What each said on both streams until all have ended, or the time has."""
    kept: dict[int, bytearray] = {}
    for process in running:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                kept[pipe.fileno()] = bytearray()
    open_pipes = set(kept)
    while open_pipes and time.monotonic() < ends:
        ready, _, _ = select.select(list(open_pipes), [], [], min(0.2, max(0.0, ends - time.monotonic())))
        for descriptor in ready:
            data = os.read(descriptor, 65536)
            if not data:
                open_pipes.discard(descriptor)
            kept[descriptor] += data
            del kept[descriptor][:-65536]
        if any(process.poll() not in (None, 0) for process in running):
            # one has failed, the others only wait for it: a moment for their last words
            ends = min(ends, time.monotonic() + _GRACE_S)
    return [
        tuple(bytes(kept[pipe.fileno()]) if pipe else b"" for pipe in (process.stdout, process.stderr))  # type: ignore[misc]  # two of them
        for process in running
    ]


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Its whole session ends, and it is waited for."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _told(out: bytes) -> dict[str, Any] | None:
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "wrong" in said:
            return said
    return None


def _last(err: bytes) -> str:
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return "".join(c if c.isprintable() else "?" for c in text)[:_WORD]


def _environment() -> dict[str, str]:
    """What a job starts with, and nothing that this probe inherited."""
    return {"PATH": _PATH, "LC_ALL": "C.UTF-8", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
