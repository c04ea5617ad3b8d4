"""The pytest plugin: households of real agents in virtual time, as fixtures for anybody's tests.

    def test_x(household):
        with household("cloud", "laptop", "pocket") as h:
            h.put("laptop", "notes/a.md", b"...")
            h.until(lambda: h.holds("cloud", "notes/a.md"))

Loading it costs next to nothing: the simulator is imported when a test first makes a household. `--simnet-seed N` plays
all of them with one seed, `--simnet-seeds N` repeats each test with N seeds. Leaves everything else to `house`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hinet_simnet.house import House

MakeHousehold = Callable[..., AbstractContextManager["House"]]
"""The type of the fixture `household`: it takes what `hinet_simnet.house.household` takes."""

SEEDS_MAX = 10_000
TRACE_LINES_SHOWN = 30
_MADE: pytest.StashKey[list[House]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simnet", "simulated households (hinet-node)")
    group.addoption("--simnet-seed", type=int, default=None, metavar="N",
                    help="play every simulated household with this seed, whatever the test says")
    group.addoption("--simnet-seeds", type=_count, default=None, metavar="N",
                    help="repeat each test that simulates a household with N seeds, from --simnet-seed (or 0) on")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = metafunc.config.getoption("--simnet-seeds")
    if seeds and "simnet_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--simnet-seed") or 0
        metafunc.parametrize("simnet_seed", range(first, first + seeds), ids=lambda seed: f"seed{seed}", indirect=True)


@pytest.fixture
def simnet_seed(request: pytest.FixtureRequest) -> int | None:
    """The seed that the command line asks for; None when it asks for none."""
    given: int | None = getattr(request, "param", request.config.getoption("--simnet-seed"))
    return given


@pytest.fixture
def household(request: pytest.FixtureRequest, simnet_seed: int | None) -> MakeHousehold:
    """`with household("cloud", "laptop", seed=1) as h:` a household of real agents; see `hinet_simnet.house`."""
    from hinet_simnet import house

    made: list[House] = request.node.stash.setdefault(_MADE, [])
    plain = request.node.nodeid.replace(f"[seed{simnet_seed}]", "").replace(f"-seed{simnet_seed}]", "]")

    def make(*names: Any, seed: int = 0, **options: Any) -> AbstractContextManager[House]:
        chosen = seed if simnet_seed is None else simnet_seed
        return house.household(*names, seed=chosen, again=f'pytest "{plain}" --simnet-seed {chosen}',
                               on_made=made.append, **options)

    return make


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if call.when == "call" and report.failed:
        for house in item.stash.get(_MADE, []):
            lines = [f"seed {house.seed}, {house.trace.events} events, digest {house.digest()}",
                     f"again: {house.again}", *house.history()[-TRACE_LINES_SHOWN:]]
            report.sections.append((f"simnet, seed {house.seed}", "\n".join(lines)))


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= SEEDS_MAX:
        raise pytest.UsageError(f"--simnet-seeds is between 1 and {SEEDS_MAX}, not {value}")
    return value
