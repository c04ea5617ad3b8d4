from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol.errors import FrameError, LimitError
from hinet_protocol.frames import FrameDecoder, encode_frame


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=8), st.data())
def test_frames_come_back_whatever_pieces_they_arrive_in(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, bodies))
    decoder = FrameDecoder()
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    assert found == bodies
    assert decoder.pending_bytes == 0
    decoder.finish()


@given(st.binary(max_size=200))
def test_random_bytes_give_frames_or_a_frame_error(raw: bytes) -> None:
    decoder = FrameDecoder(bytes_max=64)
    try:
        bodies = decoder.feed(raw)
    except FrameError:
        return
    assert b"".join(map(encode_frame, bodies)) == raw[: len(raw) - decoder.pending_bytes]


@pytest.mark.parametrize("size", [0, 101, 0xFFFFFFFF])
def test_a_length_outside_the_bounds_is_refused_before_the_body_comes(size: int) -> None:
    decoder = FrameDecoder(bytes_max=100)
    with pytest.raises(FrameError, match=str(size)):
        decoder.feed(size.to_bytes(4, "big"))
    assert decoder.pending_bytes == 0


def test_a_broken_stream_stays_broken() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.feed(bytes(4))
    with pytest.raises(FrameError):
        decoder.feed(encode_frame(b"good"))


def test_a_stream_that_ends_inside_a_frame_is_noticed() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"whole") + encode_frame(b"cut short")[:7])
    with pytest.raises(FrameError, match="inside a frame"):
        decoder.finish()


def test_a_body_of_no_bytes_or_too_many_is_not_sent() -> None:
    for body in (b"", bytes(101)):
        with pytest.raises(LimitError):
            encode_frame(body, bytes_max=100)
