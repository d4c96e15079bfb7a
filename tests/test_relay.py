"""The bench's own delay: what it holds back comes late by as much, whole and in its order."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

DELAY_S = 0.05
ADDRESS = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    """A way, 50 ms each way, to a server that sends back what comes."""
    server = socket.create_server((ADDRESS, 0))
    threading.Thread(target=echo, args=(server,), daemon=True).start()
    port = free_port()
    way = f"{ADDRESS}:{port}={ADDRESS}:{server.getsockname()[1]}"
    relay = subprocess.Popen(
        [sys.executable, "-m", "bench.relay", str(DELAY_S * 1000), way],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
    )
    try:
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"ready\n"
        yield port
    finally:
        relay.kill()
        relay.communicate(timeout=600)
        server.close()


def echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(65536)):
        data += more
    return data


def test_every_byte_comes_in_its_order_and_the_end_too(port: int) -> None:
    sent = bytes(range(256)) * 4000
    with socket.create_connection((ADDRESS, port), timeout=600) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()

        assert received(connection, len(sent)) == sent
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_an_answer_takes_a_round_trip_and_a_connection_one_more(port: int) -> None:
    began = time.monotonic()
    with socket.create_connection((ADDRESS, port), timeout=600) as connection:
        connection.sendall(b"a")
        assert received(connection, 1) == b"a"
        first = time.monotonic() - began
        began = time.monotonic()
        connection.sendall(b"b")
        assert received(connection, 1) == b"b"
        second = time.monotonic() - began

    assert first >= 4 * DELAY_S
    assert second >= 2 * DELAY_S
