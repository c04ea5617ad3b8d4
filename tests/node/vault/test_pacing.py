"""Token buckets: never faster than the rate over any stretch of time, never much slower."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_node.errors import UsageError
from hinet_node.vault.pacing import BURST_S, RATE_MAX, RATE_MIN, Limit, TokenBucket, read_rate, show_rate


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


@pytest.mark.parametrize(("text", "rate"), [
    ("5M", 5_000_000), ("5 MB/s", 5_000_000), ("800k", 800_000), ("1.5G", 1_500_000_000), ("2000", 2_000), ("", 0),
    ("0", 0), ("5m", 5_000_000), ("64kB", 64_000)])
def test_rates_are_read_as_people_write_them(text: str, rate: int) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize("text", ["5 X", "-5M", "999", "5MM", "1e6", "M", "9999999999999", "5 M b", f"{RATE_MAX + 1}"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rate(text)
    assert "--rate 5M" in str(caught.value.next_step)


def test_a_rate_is_shown_so_that_it_can_be_read_back() -> None:
    for rate in (2_000, 800_000, 5_000_000, 1_500_000_000):
        assert read_rate(show_rate(rate)) == rate
