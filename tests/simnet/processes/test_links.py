"""What links do to frames and streams, without any network."""

from __future__ import annotations

import random
from itertools import pairwise

from hinet_simnet.processes.links import QUEUE_S_MAX, Links, draw_delay_s
from hinet_simnet.scenario.model import Delay, LinkSpec

STILL = Delay("constant", 0.1)


def arrivals(spec: LinkSpec, frames: int, every_s: float = 0.001, size_bytes: int = 1000) -> list[tuple[float, ...]]:
    path = Links(7, spec).path("a", "b")
    return [path.frame_times_s(size_bytes, number * every_s) for number in range(frames)]


def test_each_kind_of_delay_has_the_mean_that_the_scenario_asks_for() -> None:
    for delay, wanted_s in ((Delay("constant", 0.3), 0.3), (Delay("uniform", 0.1, 0.3), 0.2),
                            (Delay("normal", 0.3, 0.02), 0.3), (Delay("lognormal", 0.1, 0.1), 0.1005),
                            (Delay("exponential", 0.1, 0.2), 0.3)):
        draws = random.Random(1)
        mean_s = sum(draw_delay_s(delay, draws) for _ in range(4000)) / 4000
        assert abs(mean_s - wanted_s) < 0.01, delay


def test_a_share_of_frames_is_lost_doubled_or_late() -> None:
    lost = arrivals(LinkSpec(delay=STILL, loss=0.2), 5000)
    assert 0.17 < sum(not times for times in lost) / 5000 < 0.23
    doubled = arrivals(LinkSpec(delay=STILL, duplicate=0.2), 5000)
    assert 0.17 < sum(len(times) == 2 for times in doubled) / 5000 < 0.23
    late = [times[0] for times in arrivals(LinkSpec(delay=STILL, reorder=0.2), 5000)]
    overtaken = sum(later < earlier for earlier, later in pairwise(late))
    assert overtaken > 300


def test_frames_keep_their_order_where_no_disorder_is_asked_for() -> None:
    times = [times[0] for times in arrivals(LinkSpec(delay=Delay("uniform", 0.0, 0.2)), 2000)]
    assert times == sorted(times)


def test_a_slow_link_sends_at_its_rate_and_drops_what_would_wait_too_long() -> None:
    rate = 1_000_000.0
    times = arrivals(LinkSpec(delay=Delay("constant", 0.0), rate_bytes_s=rate), 5000, 0.0001)
    arrived = [one[0] for one in times if one]
    assert len(arrived) < 5000
    assert len(arrived) * 1000 / arrived[-1] < rate * 1.001
    assert max(one[0] - number * 0.0001 for number, one in enumerate(times) if one) < QUEUE_S_MAX + 0.002
    stream = Links(1, LinkSpec(delay=Delay("constant", 0.0), rate_bytes_s=rate)).path("a", "b")
    assert abs([stream.piece_time_s(100_000, 0.0) for _ in range(10)][-1] - 1.0) < 1e-9


def test_loss_costs_a_stream_time_and_no_bytes() -> None:
    good = Links(1, LinkSpec(delay=STILL)).path("a", "b").piece_time_s(100_000, 0.0)
    bad = Links(1, LinkSpec(delay=STILL, loss=0.5)).path("a", "b").piece_time_s(100_000, 0.0)
    assert good == 0.1
    assert bad > 2.0


def test_partitions_and_one_way_cuts_close_paths_until_they_are_healed() -> None:
    links = Links(1)
    names = ("a", "b", "c", "d")

    def open_paths() -> list[str]:
        return [source + target for source in names for target in names
                if source != target and links.path(source, target).frame_times_s(1, 0.0)]

    assert len(open_paths()) == 12
    links.partition((("a", "b"),))
    assert open_paths() == ["ab", "ba", "cd", "dc"], "who is in no group is with all such others"
    links.heal()
    links.cut("a", "b")
    assert [pair for pair in ("ab", "ba") if pair in open_paths()] == ["ba"]
    links.heal()
    assert len(open_paths()) == 12


def test_the_last_rule_that_names_a_pair_holds() -> None:
    links = Links(1, LinkSpec(delay=STILL))
    path = links.path("a", "b")
    links.set(LinkSpec("a", "*", delay=Delay("constant", 0.5)))
    links.set(LinkSpec("a", "b", delay=Delay("constant", 0.7)))
    assert path.piece_time_s(1, 0.0) == 0.7
    assert links.path("a", "c").piece_time_s(1, 0.0) == 0.5
    assert links.path("c", "a").piece_time_s(1, 0.0) == 0.1
    links.set(LinkSpec("a", "*", delay=Delay("constant", 0.9)))
    assert path.piece_time_s(1, 0.0) == 0.9
