"""The sim engine as a client and an operator meet it: real processes, real HTTP, and one end for all shards."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from verify.probe.engine import HOST, Engine
from verify.probe.loop import Loop
from verify.probe.tls import Identity

from .identities import authority, identity

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0


class Shards:
    """The shards of one replica, each a process of its own, started as an engine is."""

    def __init__(self, files: Identity, *, nnodes: int) -> None:
        self._files, self._nnodes = files, nnodes
        self.address = f"{HOST}:{free_port()}"
        self.api_port = free_port()
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, *others: str) -> subprocess.Popen[str]:
        words = ["--dist-init-addr", self.address, "--nnodes", str(self._nnodes), "--node-rank", str(rank)]
        words += ["--identity", str(Path(self._files.key_file).parent), "--port", str(self.api_port)]
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "verify.probe.sim",
            *words,
            "--timeout",
            "60",
            *others,
        ]
        made = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.processes[rank] = made
        return made

    def end(self, rank: int) -> tuple[int, str]:
        """How it ended, and its last words."""
        _, said = self.processes[rank].communicate(timeout=PATIENCE_S)
        return self.processes[rank].returncode, said

    def serves(self) -> bool:
        try:
            return get(self.api_port, "/health")[0] == 200
        except OSError:
            return False


@contextmanager
def shards(files: Identity, *, nnodes: int) -> Iterator[Shards]:
    made = Shards(files, nnodes=nnodes)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def until(holds: Any) -> bool:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


def get(port: int, path: str, body: object = None, *, method: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_workers_wait_for_the_leader_and_only_rank_0_serves_once_all_have_come(good: Identity) -> None:
    with shards(good, nnodes=3) as replica:
        replica.start(2)
        replica.start(0)
        time.sleep(0.7)
        assert not replica.serves()
        replica.start(1)

        assert until(replica.serves)
        status, models = get(replica.api_port, "/v1/models")
        assert (status, models["data"][0]["id"]) == (200, "muster-sim")
        said = {"model": "muster-sim", "prompt": "wie geht's, Welt?"}
        status, completion = get(replica.api_port, "/v1/completions", said)
        assert (status, completion["choices"][0]["text"]) == (200, "wie geht's, Welt?")
        assert completion["object"] == "text_completion"

        replica.processes[0].send_signal(signal.SIGTERM)
        assert [replica.end(rank)[0] for rank in (0, 1, 2)] == [0, 0, 0]
        assert not replica.serves()


@pytest.mark.parametrize("victim", [2, 0])
def test_one_shard_that_dies_takes_the_whole_replica_with_it(good: Identity, victim: int) -> None:
    with shards(good, nnodes=3) as replica:
        for rank in range(3):
            replica.start(rank)
        assert until(replica.serves)
        replica.processes[victim].kill()
        ends = {rank: replica.end(rank) for rank in range(3) if rank != victim}

        assert not replica.serves()
        assert {status for status, _ in ends.values()} == {10}
        for _, said in ends.values():
            assert re.search(rf"rank {victim} \(pid \d+\)" if victim else "the leader", said)


def test_a_shard_that_never_comes_is_named_by_all_and_nothing_is_served(good: Identity) -> None:
    with shards(good, nnodes=3) as replica:
        replica.start(0, "--timeout", "1.5")
        replica.start(1, "--timeout", "1.5")
        ends = [replica.end(rank) for rank in (0, 1)]

    assert [status for status, _ in ends] == [10, 10]
    assert all("missing rank 2" in said for _, said in ends)


def test_a_shard_of_another_shape_is_refused_and_told(good: Identity) -> None:
    with shards(good, nnodes=2) as replica:
        replica.start(0)
        other = Shards(good, nnodes=3)
        other.address = replica.address
        replica.processes[1] = other.start(1)
        status, said = replica.end(1)

    assert status == 10
    assert "this is run" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node-rank", "7"), "is not one of 0 to 1"),
        (("--identity", "/nonexistent"), "cannot be read"),
        (("--nodes", "gpu-01,gpu-02,gpu-03"), "do not spread evenly"),
        (("--nodes", "gpu-07,gpu-01"), "rank 0 is for gpu-07, this is gpu-01"),
    ],
)
def test_what_cannot_be_started_ends_at_once_with_the_reason(
    good: Identity, words: tuple[str, str], said: str
) -> None:
    with shards(good, nnodes=2) as replica:
        replica.start(0, *words)
        status, text = replica.end(0)

    assert status == 2
    assert said in text


# -- HTTP ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"prompt": "a b", "model": "muster-sim"}', 200),
        (b'{"prompt": "a"}', 200),
        (b'{"prompt": ["a"]}', 400),
        (b'{"model": "muster-sim"}', 400),
        (b'{"prompt": "a", "model": "gpt"}', 404),
        (b"[]", 400),
        (b"\xff", 400),
        (b"", 400),
    ],
)
def test_completions_echo_a_prompt_and_refuse_what_is_none(body: bytes, status: int) -> None:
    engine = Engine(Loop(), ranks=2)
    answer = engine.answer(b"POST /v1/completions HTTP/1.1\r\nHost: a", body)
    engine.stop()

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1", 200),
        (b"POST /health HTTP/1.1", 405),
        (b"GET /v1/completions HTTP/1.1", 405),
        (b"GET /v2 HTTP/1.1", 404),
        (b"GET /health", 400),
    ],
)
def test_paths_and_methods_are_those_of_an_engine(head: bytes, status: int) -> None:
    engine = Engine(Loop(), ranks=2)
    answer = engine.answer(head)
    engine.stop()

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_a_body_comes_in_pieces_and_one_that_is_too_long_is_refused() -> None:
    loop = Loop()
    engine = Engine(loop, ranks=2)
    engine.serve()
    over = threading.Event()
    serving = threading.Thread(target=lambda: loop.run(over.is_set, PATIENCE_S))
    serving.start()

    def said(*pieces: bytes) -> bytes:
        with socket.create_connection((HOST, engine.port), timeout=PATIENCE_S) as sock:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.05)
            return sock.recv(4096)

    try:
        body = b'{"prompt": "in pieces"}'
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
        assert b'"text": "in pieces"' in said(
            (head % len(body))[:20], (head % len(body))[20:], body[:5], body[5:]
        )
        assert said(head % 10**9).startswith(b"HTTP/1.1 413 ")
        assert said(head.replace(b"%d", b"many")).startswith(b"HTTP/1.1 413 ")
    finally:
        over.set()
        socket.create_connection((HOST, engine.port), timeout=PATIENCE_S).close()  # wakes the loop
        serving.join()
        engine.stop()


def test_an_identity_of_another_authority_gets_no_seat(good: Identity, tmp_path: Path) -> None:
    stranger = identity(tmp_path / "other", by=authority("other"))
    with shards(good, nnodes=2) as replica:
        replica.start(0, "--timeout", "3")
        other = Shards(stranger, nnodes=2)
        other.address = replica.address
        replica.processes[1] = other.start(1)
        status, said = replica.end(1)

    assert status == 10
    assert "certificate verify failed" in said or "self-signed" in said or "no mutual TLS" in said
