"""Rates are read as people write them, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from hinet_node.errors import UsageError
from hinet_node.rates import RATE_MAX, read_rate, show_rate


@pytest.mark.parametrize(("text", "rate"), [
    ("5M", 5_000_000), ("5 MB/s", 5_000_000), ("800k", 800_000), ("1.5G", 1_500_000_000), ("20000", 20_000), ("", 0),
    ("0", 0), ("5m", 5_000_000), ("64kB", 64_000)])
def test_rates_are_read_as_people_write_them(text: str, rate: int) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize("text", ["5 X", "-5M", "9k", "5MM", "1e6", "M", "9999999999999", "5 M b", f"{RATE_MAX + 1}"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rate(text)
    assert "--rate 5M" in str(caught.value.next_step)


def test_a_rate_is_shown_so_that_it_can_be_read_back() -> None:
    for rate in (20_000, 800_000, 5_000_000, 1_500_000_000):
        assert read_rate(show_rate(rate)) == rate
