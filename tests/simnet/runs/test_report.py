"""The report: bounded, hostile texts stay text, and a run that was killed is told as far as it goes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.runs.record import record
from hinet_simnet.runs.report.gather import BINS_MAX, MESSAGES_MAX, gather, thinned
from hinet_simnet.runs.report.page import page
from hinet_simnet.runs.tracefile import TraceWriter, header_of
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.trace import Trace

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)>"\'&\u2028\ud800'


class Elements(HTMLParser):
    """Counts elements and collects what would reach the network or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.bad: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.bad += [name for name, _ in attributes if name.startswith("on") or name in ("src", "href")]


def drawn(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="story">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def made(path: Path, count: int = 10, *, nodes: int = 3, step_s: float = 1.0, end: bool = True,
         name: str = "node") -> Path:
    writer = TraceWriter(path, header_of(scenario=HOSTILE, text=HOSTILE.replace("\ud800", ""), file="x", seed=1,
                                         level="world", program={"version": HOSTILE}))
    now = [0.0]
    trace = Trace(writer.line, clock=lambda: now[0])
    for node in range(nodes):
        trace.event("found", f"{name}{node}", household="h", tier="cloud")
    for number in range(count):
        now[0] = number * step_s
        trace.sent(f"{name}{number % nodes}", f"{name}{(number * 7 + 1) % nodes}", "s", b"x" * (number % 50))
    trace.event("kill", f"{name}1")
    if end:
        writer.end(Outcome(HOSTILE, "world", 1, digest=trace.digest(), virtual_s=now[0], findings=[
            Finding(HOSTILE, HOSTILE, now[0], f"{name}1", HOSTILE)], facts={HOSTILE: [[0, 1], [now[0], 5]]}))
    else:
        writer._flush()
        writer.close()
    return path


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    text = page(gather(made(tmp_path / "a", name=HOSTILE)))
    text.encode("utf-8")
    found = Elements(text)
    assert found.tags.count("script") == 2
    assert "img" not in found.tags
    assert not found.bad
    assert "<script>alert" not in text
    lanes = drawn(text)["lanes"]
    assert isinstance(lanes, list)
    assert lanes[0]["name"] == f"{HOSTILE}0"


def test_the_page_allows_its_own_script_and_nothing_else(tmp_path: Path) -> None:
    text = page(gather(made(tmp_path / "a")))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy[1]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_a_thousand_nodes_and_a_long_run_stay_a_small_page(tmp_path: Path) -> None:
    story = gather(made(tmp_path / "a", 20_000, nodes=1_000, step_s=30.0))
    text = page(story)
    assert len(text) < 400_000
    assert all(len(lane.sent) <= BINS_MAX for lane in story.lanes.values())
    assert sum(sum(lane.sent) for lane in story.lanes.values()) == sum(number % 50 for number in range(20_000))
    lanes = drawn(text)["lanes"]
    assert isinstance(lanes, list)
    assert lanes[-1]["name"].endswith(" more")
    assert "node1" in [lane["name"] for lane in lanes], "the one with the finding is always there"


def test_few_messages_are_drawn_singly_and_many_are_not(tmp_path: Path) -> None:
    few = drawn(page(gather(made(tmp_path / "a", 50))))["messages"]
    many = drawn(page(gather(made(tmp_path / "b", MESSAGES_MAX + 1))))["messages"]
    assert isinstance(few, list)
    assert len(few) == 50
    assert many == []


def test_a_killed_run_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    story = gather(made(tmp_path / "a", end=False))
    assert story.events == 14
    assert "killed before its end" in page(story)


def test_a_damaged_end_is_told_and_what_came_before_is_shown(tmp_path: Path) -> None:
    path = made(tmp_path / "a", 3_000)
    content = bytearray(path.read_bytes())
    content[-100] ^= 0xff
    path.write_bytes(content)
    story = gather(path)
    assert story.broken
    assert "damaged" in page(story)
    assert story.lanes


def test_a_real_run_shows_who_ran_when_and_what_was_sent(failing: Scenario, tmp_path: Path) -> None:
    record(failing, level="world", seed=1, path=tmp_path / "a")
    story = gather(tmp_path / "a")
    pocket = story.lanes["pocket"]
    assert [state for _, _, state in pocket.spans] == ["up", "up"], "killed at 200 s, started again for the settling"
    assert round(pocket.spans[0][1]) == 200
    assert (pocket.household, pocket.tier) == ("home", "pocket")
    assert story.curves["nodes running"][-1][1] == 5
    assert max(value for _, value in story.curves["sessions open"]) == 4
    assert ("cloud", "laptop") in story.links
    assert [finding.checker for finding in story.findings] == ["expect"]


def test_a_thinned_curve_keeps_its_peaks() -> None:
    points = [(float(place), 100.0 if place == 5_555 else 1.0) for place in range(10_000)]
    found = thinned(points)
    assert len(found) <= 2 * BINS_MAX
    assert max(value for _, value in found) == 100.0
    assert found == sorted(found)
