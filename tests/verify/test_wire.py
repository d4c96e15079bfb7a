"""Frames: what goes in comes out, what is none is refused, and nothing grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.probe import wire
from verify.probe.seats import Plan, Refuse, Seat, Seats

ranks = st.integers(-(2**31), 2**31 - 1)
u32 = st.integers(0, 2**32 - 1)
hellos = st.builds(
    wire.Hello,
    st.binary(min_size=16, max_size=16),
    ranks,
    u32,
    u32,
    u32,
    st.text("abcdefgh-0123456789", max_size=63),
)


@given(hellos, st.integers(1, 50))
def test_a_hello_arrives_however_it_is_cut(said: wire.Hello, step: int) -> None:
    data, decoder, frames = wire.hello(said), wire.Decoder(), []
    for place in range(0, len(data), step):
        frames += decoder.feed(data[place : place + step])

    assert [frame.kind for frame in frames] == [wire.Kind.HELLO]
    assert wire.read_hello(frames[0].body) == said


@given(st.integers(-1, 2**31 - 1), st.sampled_from(wire.Cause), st.text(max_size=600))
def test_a_last_word_arrives_cut_and_printable(rank: int, cause: wire.Cause, text: str) -> None:
    (frame,) = wire.Decoder().feed(wire.abort(wire.Abort(rank, cause, text)))
    heard = wire.read_abort(frame.body)

    assert (heard.rank, heard.cause) == (rank, cause)
    assert heard.text.isprintable()
    assert len(frame.body) <= wire.MAX_BODY


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_are_frames_or_refused_and_never_pile_up(pieces: list[bytes]) -> None:
    decoder = wire.Decoder()
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                assert len(frame.body) <= wire.MAX_BODY
    except wire.WireError:
        pass


@given(st.binary(max_size=100))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for read in (wire.read_hello, wire.read_welcome, wire.read_abort, wire.read_refused):
        try:
            read(body)
        except wire.WireError:
            continue


def test_the_first_wrong_byte_is_enough() -> None:
    with pytest.raises(wire.WireError, match="no frame begins"):
        wire.Decoder().feed(b"G")


def test_a_body_that_is_too_long_is_refused_before_it_comes() -> None:
    with pytest.raises(wire.WireError, match="2000 bytes"):
        wire.Decoder().feed(wire.MAGIC + bytes([wire.VERSION, wire.Kind.HELLO]) + (2000).to_bytes(2, "big"))
    with pytest.raises(wire.WireError, match="2000 bytes"):
        wire.frame(wire.Kind.HELLO, bytes(2000))


def test_a_refusal_is_read_in_every_version() -> None:
    refused = wire.frame(wire.Kind.REFUSED, b"\x01version 9 is spoken here", version=9)
    (frame,) = wire.Decoder().feed(refused)

    assert wire.read_refused(frame.body).text == "version 9 is spoken here"


def seats(world: int = 4) -> Seats:
    return Seats(Plan(bytes(16), (Seat("gpu-01", "spiffe://a/node/gpu-01"),) * world, 1.0), leader_pid=1)


def claim(at: Seats, rank: int) -> Refuse | None:
    return at.claim(wire.Hello(bytes(16), rank, 4, 7, 0, "gpu-01"), "spiffe://a/node/gpu-01", "127.0.0.1:9")


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 5)), max_size=40))
def test_seats_hold_each_rank_once_whatever_comes_and_goes(moves: list[tuple[bool, int]]) -> None:
    at, held = seats(), {0}
    for comes, rank in moves:
        if comes:
            fits = rank in {1, 2, 3} and rank not in held
            assert (claim(at, rank) is None) is fits
            held |= {rank} if fits else set()
        elif rank in held - {0}:
            at.free(rank)
            held.discard(rank)

        assert at.joined == len(held)
        assert set(at.missing) == {0, 1, 2, 3} - held
