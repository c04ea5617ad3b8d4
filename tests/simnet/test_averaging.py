"""Federated averaging over the in-memory network: the right average, the same bits, and the links that it goes over."""

from __future__ import annotations

import numpy as np
import pytest

from hinet_simnet.averaging import Averaging, Vector, run_averaging
from hinet_simnet.errors import SimnetError
from hinet_simnet.scenario.model import Delay, LinkSpec


def own_number(model: Vector, out: Vector, node: int, number: int) -> None:
    np.add(model, np.float32(node), out=out)


def test_the_model_is_the_mean_of_what_the_nodes_sent() -> None:
    done = run_averaging(Averaging(nodes=5, rounds=3, floats=40_000, train=own_number))
    assert np.array_equal(done.model, np.full(40_000, 6.0, np.float32)), "three times the mean of 0, 1, 2, 3, 4"
    assert [mean for _, mean in done.rounds] == [2.0, 4.0, 6.0]
    assert done.message_bytes == 2 * 5 * 3 * 160_000


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_participants() -> None:
    job = Averaging(nodes=20, rounds=4, floats=1000, share=0.25, train=own_number)
    first, again, other = (run_averaging(job, seed=seed) for seed in (1, 1, 2))
    assert (first.trace_digest, first.model_digest) == (again.trace_digest, again.model_digest)
    assert first.model_digest != other.model_digest
    assert first.messages == 4 * 5 * 4, "the vector and the end of the stream, both ways"


def test_vectors_are_added_in_the_nodes_order_whoever_answers_first() -> None:
    """Floats do not add up alike in another order: links that turn the order round must not change the model."""
    def steep(model: Vector, out: Vector, node: int, number: int) -> None:
        np.add(model, np.float32((1e8, 3.0, -1e8, 3.0, 0.0)[node]), out=out)

    slow = [LinkSpec(f"node{at}", "server", Delay("constant", 5.0 - at, 0.0)) for at in range(5)]
    models = {run_averaging(Averaging(nodes=5, rounds=1, floats=10, window=5, train=steep, links=links)).model_digest
              for links in ((), slow)}
    assert len(models) == 1


def test_a_slow_link_costs_the_time_that_its_rate_says() -> None:
    slow = LinkSpec("*", "node1", Delay("constant", 0.0, 0.0), rate_bytes_s=10_000)
    fast = run_averaging(Averaging(nodes=2, rounds=1, floats=25_000, train_s=0.0))
    held = run_averaging(Averaging(nodes=2, rounds=1, floats=25_000, train_s=0.0, links=[slow]))
    assert held.rounds[0][0] - fast.rounds[0][0] == pytest.approx(10.3, abs=0.5), "100,000 bytes and their headers"


def test_no_more_vectors_are_in_memory_than_the_window_lets_in() -> None:
    held, most = set(), []

    def watch(model: Vector, out: Vector, node: int, number: int) -> None:
        held.add(out.ctypes.data)
        most.append(len(held))
        np.copyto(out, model)

    run_averaging(Averaging(nodes=30, rounds=2, floats=1000, window=3, train=watch))
    assert max(most) <= 6, "a window of three, and three that the server has added and not yet closed"


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"share": 0.0}, {"share": 1.5}, {"window": 0}, {"floats": 0},
                                   {"rounds": 0}, {"train_s": -1.0}])
def test_a_job_that_can_not_be_run_is_refused_before_anything_starts(wrong: dict[str, float]) -> None:
    with pytest.raises(SimnetError, match="can't be run"):
        run_averaging(Averaging(**wrong))  # type: ignore[arg-type]
