"""Token buckets: never faster than the rate over any stretch of time, never much slower."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_node.rates import RATE_MIN
from hinet_node.vault.pacing import BURST_S, Limit, TokenBucket


@given(st.integers(RATE_MIN, 10**9), st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0, 10)), max_size=60))
def test_bytes_never_run_ahead_of_the_rate_by_more_than_the_burst_and_one_piece(
        rate: int, moves: list[tuple[int, float]]) -> None:
    bucket, now_s, moved = TokenBucket.full(rate, 0.0), 0.0, 0
    for size, pause_s in moves:
        now_s += pause_s
        bucket, wait_s = bucket.take(size, now_s)
        now_s += wait_s
        moved += size
        assert moved <= rate * (BURST_S + now_s) * (1 + 1e-9) + 1


@given(st.integers(RATE_MIN, 10**9), st.lists(st.integers(1, 1 << 20), min_size=1, max_size=60))
def test_who_always_has_something_to_send_gets_the_whole_rate(rate: int, sizes: list[int]) -> None:
    bucket, now_s = TokenBucket.full(rate, 0.0), 0.0
    for size in sizes:
        bucket, wait_s = bucket.take(size, now_s)
        now_s += wait_s
    assert now_s <= sum(sizes) / rate * (1 + 1e-9)


def test_a_clock_that_stands_still_or_jumps_back_gives_nothing_away() -> None:
    bucket = TokenBucket.full(1_000, 100.0)
    bucket, first_s = bucket.take(1_000, 100.0)
    bucket, second_s = bucket.take(1_000, 50.0)
    assert (first_s, second_s) == (pytest.approx(0.75), pytest.approx(1.75))
    assert bucket.at_s == 100.0


def test_both_directions_have_the_rate_and_all_who_ask_share_it() -> None:
    class Still:
        def monotonic_s(self) -> float:
            return 5.0

        def now_unix_s(self) -> float:
            return 0.0

    limit = Limit(Still(), 1_000)
    first, second, inbound = limit.outbound(), limit.outbound(), limit.inbound()
    assert first is not None
    assert second is not None
    assert inbound is not None
    assert first(1_000) == pytest.approx(0.75)
    assert second(1_000) == pytest.approx(1.75)
    assert inbound(1_000) == pytest.approx(0.75)
    free = Limit(Still())
    assert (free.outbound(), free.inbound()) == (None, None)
