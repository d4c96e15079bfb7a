"""The frames of the rendezvous: bytes in, values out; no socket is touched here.

The layout is told in docs/rendezvous.md. Header and REFUSED are the same in every version of the protocol, so that
two versions can always refuse each other with both numbers.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"MSTR"
VERSION = 1
MAX_BODY = 1024
MAX_TEXT = 512
NO_RANK = -1
_HEADER = struct.Struct("!4sBBH")
_HELLO = struct.Struct("!16siIIIB")
_WELCOME = struct.Struct("!III")
_ABORT = struct.Struct("!iB")
_U32_MAX = 0xFFFFFFFF


class Kind(IntEnum):
    """What a frame says."""

    HELLO = 1
    WELCOME = 2
    GO = 3
    REFUSED = 4
    ABORT = 5
    GOODBYE = 6
    PING = 7
    PONG = 8


class Refusal(IntEnum):
    """Why a hello got no seat; none of these is worth another try."""

    VERSION = 1
    RUN = 2
    WORLD = 3
    RANK = 4
    DUPLICATE = 5
    SURPLUS = 6
    IDENTITY = 7
    PROTOCOL = 8


class Cause(IntEnum):
    """Why a rendezvous, or a replica, is over."""

    DEADLINE = 1
    LOST = 2
    FROZEN = 3
    LEFT = 4
    CANCELLED = 5
    INTERNAL = 6
    LEADER_LOST = 7
    REFUSED = 8
    TLS = 9
    STOPPED = 10


class Hello(NamedTuple):
    """What a worker says first.

    run_id: 16 random bytes, the same for every rank of one run.
    remaining_ms: what the worker's own deadline has left.
    """

    run_id: bytes
    rank: int
    world: int
    pid: int
    remaining_ms: int
    node: str


class Welcome(NamedTuple):
    """The seat is taken; `remaining_ms` is what the run's one deadline has left."""

    remaining_ms: int
    beat_ms: int
    joined: int


class Abort(NamedTuple):
    """The whole replica has failed; `rank` is whose fault it was, NO_RANK when nobody's."""

    rank: int
    cause: int
    text: str


class Refused(NamedTuple):
    """No seat: the reason's number, and both values in words."""

    code: int
    text: str


class Frame(NamedTuple):
    """One frame: its kind, as a number (a later version may have others), and its body."""

    kind: int
    body: bytes


class WireError(Exception):
    """The bytes are not this protocol."""


class OtherVersion(WireError):
    """The frame is of another version of this protocol."""

    def __init__(self, theirs: int) -> None:
        """`theirs` is the version in the frame's header."""
        super().__init__(f"protocol version {theirs} is spoken there, {VERSION} here")
        self.theirs = theirs


class Decoder:
    """Cuts a stream of bytes into frames; it never holds more than one frame and one read."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises:
            WireError: the bytes are not a frame; the first wrong byte is enough.
            OtherVersion: the frame is of another version.
        """
        self._held += data
        frames = []
        while self._held:
            begin = bytes(self._held[: len(MAGIC)])
            if not MAGIC.startswith(begin):
                raise WireError(f"no frame begins with {begin!r}")
            if len(self._held) < _HEADER.size:
                break
            _, version, kind, length = _HEADER.unpack_from(self._held)
            if version != VERSION and kind != Kind.REFUSED:
                raise OtherVersion(version)
            if length > MAX_BODY:
                raise WireError(f"a body of {length} bytes, {MAX_BODY} are allowed")
            if len(self._held) < _HEADER.size + length:
                break
            frames.append(Frame(kind, bytes(self._held[_HEADER.size : _HEADER.size + length])))
            del self._held[: _HEADER.size + length]
        return frames


def frame(kind: Kind, body: bytes = b"", *, version: int = VERSION) -> bytes:
    """One frame, ready to send."""
    if len(body) > MAX_BODY:
        raise WireError(f"a body of {len(body)} bytes, {MAX_BODY} are allowed")
    return _HEADER.pack(MAGIC, version, kind, len(body)) + body


def hello(said: Hello, *, version: int = VERSION) -> bytes:
    """A HELLO frame."""
    node = said.node.encode()
    return frame(
        Kind.HELLO,
        _HELLO.pack(said.run_id, said.rank, said.world, said.pid, min(said.remaining_ms, _U32_MAX), len(node))
        + node,
        version=version,
    )


def read_hello(body: bytes) -> Hello:
    """The body of a HELLO; raises WireError."""
    if len(body) < _HELLO.size:
        raise WireError(f"a hello of {len(body)} bytes")
    run_id, rank, world, pid, remaining_ms, length = _HELLO.unpack_from(body)
    node = body[_HELLO.size :]
    if len(node) != length:
        raise WireError(f"a hello whose node name has {len(node)} bytes and says {length}")
    return Hello(run_id, rank, world, pid, remaining_ms, _text(node))


def welcome(said: Welcome) -> bytes:
    """A WELCOME frame."""
    return frame(Kind.WELCOME, _WELCOME.pack(min(said.remaining_ms, _U32_MAX), said.beat_ms, said.joined))


def read_welcome(body: bytes) -> Welcome:
    """The body of a WELCOME; raises WireError."""
    if len(body) != _WELCOME.size:
        raise WireError(f"a welcome of {len(body)} bytes")
    return Welcome(*_WELCOME.unpack(body))


def abort(said: Abort) -> bytes:
    """An ABORT frame; a long text is cut."""
    return frame(Kind.ABORT, _ABORT.pack(said.rank, said.cause) + said.text.encode()[:MAX_TEXT])


def read_abort(body: bytes) -> Abort:
    """The body of an ABORT; raises WireError."""
    if len(body) < _ABORT.size:
        raise WireError(f"an abort of {len(body)} bytes")
    rank, cause = _ABORT.unpack_from(body)
    return Abort(rank, cause, _text(body[_ABORT.size :]))


def refused(code: Refusal, text: str) -> bytes:
    """A REFUSED frame; a long text is cut."""
    return frame(Kind.REFUSED, bytes([code]) + text.encode()[:MAX_TEXT])


def read_refused(body: bytes) -> Refused:
    """The body of a REFUSED; raises WireError."""
    if not body:
        raise WireError("an empty refusal")
    return Refused(body[0], _text(body[1:]))


def _text(data: bytes) -> str:
    """Bytes of the other side as text that is safe to show."""
    text = data.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)
