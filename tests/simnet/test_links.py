"""Links: when packets arrive. Rates are kept, losses cost time and never bytes, one seed gives one history."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from hinet_simnet.network import PACKET_BYTES, Link
from hinet_simnet.network.links import HEADER_BYTES, RETRANSMIT_S
from hinet_simnet.scenario.model import Delay, LinkSpec

STILL = Delay("constant", 0.01)


def link(seed: str = "1", **spec: object) -> Link:
    return Link(LinkSpec(**{"delay": STILL, **spec}), seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("delay", "lowest_s", "middle_s"), [
    (Delay("constant", 0.03), 0.03, 0.03),
    (Delay("uniform", 0.01, 0.03), 0.01, 0.02),
    (Delay("normal", 0.02, 0.002), 0.0, 0.02),
    (Delay("normal", 0.001, 0.1), 0.0, 0.001),
    (Delay("lognormal", 0.02, 0.5), 0.0, 0.02),
    (Delay("exponential", 0.01, 0.02), 0.01, 0.01 + 0.02 * 0.693),
])
def test_delays_have_the_distribution_that_their_name_says(delay: Delay, lowest_s: float, middle_s: float) -> None:
    drawn = [link(delay=delay).delay_s()] + [one.delay_s() for one in [link(delay=delay)] for _ in range(4000)]
    assert min(drawn) >= lowest_s
    assert median(drawn) == pytest.approx(middle_s, rel=0.1, abs=0.004)
    if delay.kind == "exponential":
        assert fmean(drawn) == pytest.approx(delay.a_s + delay.b_s, rel=0.1), "on average b more"


def test_a_rate_lets_bytes_through_one_after_the_other() -> None:
    slow = link(rate_bytes_s=100_000)
    arrivals = [slow.stream_arrival_s(0.0, 10 * PACKET_BYTES) for _ in range(5)]
    each_s = 10 * (PACKET_BYTES + HEADER_BYTES) / 100_000
    assert arrivals == pytest.approx([0.01 + each_s * number for number in range(1, 6)])
    assert slow.stream_arrival_s(100.0, 1) < 100.1, "an idle link has no queue"


def test_a_lost_packet_costs_a_time_out_and_each_window_its_own() -> None:
    clean, lossy = link().stream_arrival_s(0.0, 1), link(loss=0.3)
    drawn = [lossy.stream_arrival_s(0.0, 1) for _ in range(4000)]
    late = [arrival for arrival in drawn if arrival > clean + 1e-9]
    assert len(late) / len(drawn) == pytest.approx(0.3, abs=0.03)
    assert min(late) == pytest.approx(clean + RETRANSMIT_S)
    assert max(late) > clean + 3 * RETRANSMIT_S, "a packet that is lost again waits twice as long"
    big = [link(str(seed), loss=0.01).stream_arrival_s(0.0, 640 * PACKET_BYTES) for seed in range(200)]
    assert 2 * RETRANSMIT_S < median(big) - clean < 10 * RETRANSMIT_S, "of ten windows about half lose something"


def test_reordering_costs_a_delay_and_duplicates_cost_rate() -> None:
    held = [link(str(seed), reorder=0.5).stream_arrival_s(0.0, 1) for seed in range(400)]
    assert {round(arrival, 6) for arrival in held} == {0.01, 0.02}
    doubled = link(rate_bytes_s=1e5, duplicate=1.0).stream_arrival_s(0.0, PACKET_BYTES)
    plain = link(rate_bytes_s=1e5).stream_arrival_s(0.0, PACKET_BYTES)
    assert doubled - 0.01 == pytest.approx(2 * (plain - 0.01))


def test_datagrams_are_really_lost_doubled_and_late() -> None:
    lossy = link(loss=0.4, duplicate=0.3)
    counts = [len(lossy.datagram_arrivals_s(0.0)) for _ in range(4000)]
    assert counts.count(0) / 4000 == pytest.approx(0.7 * 0.4 + 0.3 * 0.16, abs=0.03)
    assert counts.count(2) / 4000 == pytest.approx(0.3 * 0.36, abs=0.03)
    late = [arrivals[0] for _ in range(400) if (arrivals := link("r", reorder=1.0).datagram_arrivals_s(0.0))]
    assert min(late) > 0.01 + RETRANSMIT_S / 2
    assert link(loss=1.0).datagram_arrivals_s(0.0) == []


def test_one_seed_gives_one_history_and_links_do_not_disturb_each_other() -> None:
    trouble = {"delay": Delay("lognormal", 0.02, 0.7), "loss": 0.1, "reorder": 0.2, "duplicate": 0.1,
               "rate_bytes_s": 1e6}

    def history(seed: str) -> list[float]:
        one = link(seed, **trouble)
        return [one.stream_arrival_s(float(number), 5_000) for number in range(50)]

    assert history("a") == history("a") != history("b")
    alone = history("a")
    one, other = link("a", **trouble), link("b", **trouble)
    beside = []
    for number in range(50):
        other.stream_arrival_s(float(number), 100)
        beside.append(one.stream_arrival_s(float(number), 5_000))
    assert beside == alone
