"""The level itself: refusals before the start, and an outcome that says what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_simnet.errors import NotAtThisLevel
from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.levels import processes as level
from hinet_simnet.processes.stage import DEVICES_MAX, ProcessStage
from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec, Scenario, Step
from hinet_simnet.trace import Trace


def scenario(*devices: DeviceSpec, steps: tuple[Step, ...] = ()) -> Scenario:
    return Scenario("small", "", 10.0, devices, link=LinkSpec(delay=Delay("constant", 0.001)), steps=steps)


async def found_first(stage: ProcessStage, played: Scenario, *, seed: int, progress: Progress,
                      stop: Stop = lambda: False) -> Outcome:
    await stage.found(played.devices[0])
    await stage.call(played.devices[0].name, "vault.put", name="a", content=b"a")
    progress({"at_s": stage.now_s()})
    return Outcome(played.name, stage.level, seed, nodes=len(stage.names()), virtual_s=stage.now_s())


def test_an_outcome_says_what_happened_and_where_the_logs_of_a_finding_are() -> None:
    told: list[float] = []

    async def find(stage: ProcessStage, played: Scenario, **more: Any) -> Outcome:
        outcome = await found_first(stage, played, **more)
        outcome.findings.append(Finding("expect", "planted", stage.now_s(), "cloud"))
        return outcome

    trace = Trace()
    outcome = level.play_by(find, scenario(DeviceSpec("cloud", "home", "cloud")), 3, trace,
                            progress=lambda facts: told.append(facts["at_s"]))
    assert (outcome.scenario, outcome.level, outcome.seed, outcome.nodes) == ("small", "processes", 3, 1)
    assert outcome.digest == trace.digest()
    assert outcome.events == trace.events > 0
    assert 0 < outcome.virtual_s <= outcome.wall_s
    assert outcome.cpu_s > 0
    assert told
    assert not outcome.ok
    logs = Path(outcome.facts["logs"])
    assert "cloud is ready" in (logs / "0-cloud.log").read_text()
    (logs / "0-cloud.log").unlink()
    logs.rmdir()


def test_a_failing_player_takes_nothing_along_and_is_heard() -> None:
    places: list[Path] = []

    async def fail(stage: ProcessStage, played: Scenario, **more: Any) -> Outcome:
        await found_first(stage, played, **more)
        places.append(stage.folder)
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted") as caught:
        level.play_by(fail, scenario(DeviceSpec("cloud", "home", "cloud")), 3, Trace(), progress=lambda facts: None)
    assert [place.exists() for place in places] == [False]
    (note,) = caught.value.__notes__
    logs = Path(note.removeprefix("The logs of the nodes are in ").removesuffix("."))
    assert [log.name for log in logs.iterdir()] == ["0-cloud.log"]
    (logs / "0-cloud.log").unlink()
    logs.rmdir()


def test_what_this_machine_can_not_do_is_refused_by_name_before_anything_starts(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(stage: ProcessStage, played: Scenario, **more: Any) -> Outcome:
        await trio.lowlevel.checkpoint()
        raise AssertionError("it was started")

    def refused(played: Scenario) -> str:
        with pytest.raises(NotAtThisLevel) as caught:
            level.play_by(never, played, 3, Trace(), progress=lambda facts: None)
        return caught.value.what

    crowd = [DeviceSpec(f"d{number}", "home") for number in range(DEVICES_MAX + 1)]
    assert str(DEVICES_MAX) in refused(scenario(*crowd))
    monkeypatch.setattr(level, "disk_refusal", lambda: "no tmpfs here")
    full = Step(1.0, "fill_disk", {"on": ("laptop",)})
    assert "laptop" in refused(scenario(DeviceSpec("cloud", "home"), DeviceSpec("laptop", "home"), steps=(full,)))
    assert "no tmpfs here" in refused(scenario(DeviceSpec("cloud", "home", disk_bytes=1 << 30)))
