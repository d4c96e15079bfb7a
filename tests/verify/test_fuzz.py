"""Any bytes at all reach a leader, over TLS and without: it stays as small as it was, and real ranks still join.

MUSTER_FUZZ=50 sends 100,000 inputs instead of the 2,000 of every run.
"""

import contextlib
import os
import socket
import ssl
import struct
from collections import deque
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verify.probe import wire
from verify.probe.loop import Loop
from verify.probe.rank import Parts
from verify.probe.replica import Replica
from verify.probe.tls import Identity, load

from .table import plan

INPUTS = 2000 * int(os.environ.get("MUSTER_FUZZ", "1"))  # read at once: the tests' environment is scrubbed
_BATCH = 20
_WARM_UP = 400
_ALLOWED_KIB = 4096
_HELD = 40

_frames = st.builds(
    lambda version, kind, length, body: wire.MAGIC + struct.pack("!BBH", version, kind, length) + body,
    st.sampled_from([wire.VERSION, 0, 2, 255]),
    st.integers(0, 255),
    st.integers(0, 65535),
    st.binary(max_size=80),
)
_hellos = st.builds(
    lambda run, rank, world, node: wire.hello(wire.Hello(run, rank, world, 1, 1000, node)),
    st.binary(min_size=16, max_size=16).filter(lambda run: run != plan().run_id),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.text(max_size=40),
)
_bytes = st.one_of(st.binary(max_size=300), _frames, _hellos, st.lists(_frames, max_size=4).map(b"".join))
# what is said; over TLS with a good identity, or plainly; and how it ends
_inputs = st.tuples(
    _bytes, st.sampled_from([False, False, False, True]), st.sampled_from(["close", "reset", "hold"])
)


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_any_bytes_leave_the_leader_small_and_real_ranks_join(good: Identity) -> None:
    loop, loaded = Loop(), load(good)
    sent, sizes, held = 0, list[int](), deque[socket.socket]()
    replica = Replica(loop, plan(3, deadline_s=3600.0), loaded, Parts(), lifetime_s=3600.0)

    def say(data: bytes, *, tls: bool, end: str) -> None:
        sock = socket.create_connection(("127.0.0.1", replica.port), timeout=5)
        with contextlib.suppress(OSError):  # it may be sent away at any byte
            if tls:
                sock = loaded.contexts.client.wrap_socket(sock)
            sock.sendall(data)
        if end == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if end == "hold":
            held.append(sock)
        if end != "hold" or len(held) > _HELD:
            (held.popleft() if end == "hold" else sock).close()

    @settings(
        max_examples=max(1, INPUTS // _BATCH),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(_inputs, min_size=_BATCH, max_size=_BATCH))
    def fuzz(batch: list[tuple[bytes, bool, str]]) -> None:
        nonlocal sent
        for data, tls, end in batch:
            say(data, tls=tls, end=end)
            sent += 1
        replica.wait(lambda: False, 0.0005)  # take in what the leader tells
        if sent >= _WARM_UP:
            sizes.append(resident_kib(replica.leader.pid))

    with replica:
        assert replica.start_leader()
        fuzz()
        replica.start([1, 2])
        joined = replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), 20.0)
        trouble = replica.trouble
        for sock in held:
            sock.close()
    loop.close_all()

    assert (joined, trouble) == (True, "")
    assert sent >= INPUTS - _BATCH
    assert max(sizes) - sizes[0] < _ALLOWED_KIB


def test_a_worker_survives_any_answer(good: Identity) -> None:
    """Whatever the other side says after a good handshake, a worker ends with an outcome, or tries again."""
    from verify.probe.member import Address, Member

    from .table import Seen

    loaded = load(good)

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(_bytes)
    def fuzz(data: bytes) -> None:
        # A busy machine may need longer for the handshake than the worker waits: then it is given longer.
        assert any(worker_heard(data, deadline_s) for deadline_s in (0.2, 2.0, 20.0))

    def worker_heard(data: bytes, deadline_s: float) -> bool:
        """Whether the worker was still there when `data` was said; it must have ended with an outcome anyway."""
        loop, seen = Loop(), Seen()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = Address("127.0.0.1", listener.getsockname()[1])
            member = Member(
                loop,
                address,
                loaded.contexts.client,
                plan(3, deadline_s=deadline_s, hello_timeout_s=deadline_s / 2),
                1,
                on_event=seen.events.append,
                on_go=seen.go,
                on_over=seen.over,
            )
            heard = answer(loop, listener, loaded.contexts.server, data)
            loop.run(lambda: seen.outcome is not None, deadline_s + 5.0)
            member.close()
        loop.close_all()
        assert seen.outcome is not None
        return heard

    fuzz()


def answer(loop: Loop, listener: socket.socket, context: ssl.SSLContext, data: bytes) -> bool:
    """Shake hands with whoever comes first, say `data`, and close; false where they left before it was said."""
    received, sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sealed, server_side=True)
    listener.settimeout(2)
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(0)
        try:
            while not shaken(tls):
                sock.sendall(sealed.read())
                loop.run(lambda: False, 0.002)
                with contextlib.suppress(BlockingIOError):
                    came = sock.recv(16384)
                    if not came:
                        return False
                    received.write(came)
            tls.write(data or b"\0")
            sock.sendall(sealed.read())
        except (BrokenPipeError, ConnectionResetError):
            return False
    return True


def shaken(tls: ssl.SSLObject) -> bool:
    """One more step of the handshake: whether it is done."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_mebibyte_of_anything_costs_the_leader_nothing(good: Identity, size: int) -> None:
    loop = Loop()
    replica = Replica(loop, plan(2, deadline_s=60.0), load(good), Parts(), lifetime_s=60.0)
    with replica:
        assert replica.start_leader()
        before = resident_kib(replica.leader.pid)
        for _ in range(5):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", replica.port), timeout=5) as sock,
            ):
                sock.sendall(os.urandom(size))
        replica.start([1])
        joined = replica.wait(lambda: replica.everybody_gone or bool(replica.trouble), 20.0)
        grown = resident_kib(replica.leader.pid) - before
    loop.close_all()

    assert joined
    assert grown < _ALLOWED_KIB
