"""The stage: what a scenario's player and the checkers can do with the nodes of a run, whatever the level.

`World` (in-memory, virtual time), `StackStage` (real libp2p over in-memory links) and `ProcessStage` (real processes)
implement it. What a level can't do raises `NotAtThisLevel`, and `supports` says so beforehand, so that a scenario is
refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from hinet_node.agent import Agent
from hinet_simnet.scenario.model import DeviceSpec, LinkSpec
from hinet_simnet.trace import Trace


class Stage(Protocol):
    """The nodes of one run. All names are device names, unique in the run."""

    level: str
    trace: Trace

    @classmethod
    def supports(cls) -> Collection[str]:
        """The steps (`Step.do`) that this level can do."""

    # ---- looking ---------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Seconds since the run began: virtual ones, or real ones where nodes are real."""

    def names(self) -> Sequence[str]:
        """Every device that was ever started, in order of first start."""

    def running(self, name: str) -> bool:
        """Whether its agent runs now (a frozen process counts as running)."""

    def agent(self, name: str) -> Agent | None:
        """The agent itself where it runs in this process; None where nodes are processes or it does not run."""

    async def call(self, name: str, verb: str, /, **args: Any) -> dict[str, Any]:
        """A verb of the agent's local API. Errors: `NodeError`, also when the agent does not run."""

    # ---- devices ---------------------------------------------------------------------------------------------------

    async def found(self, device: DeviceSpec) -> None:
        """A new household with this device as its first admin; its agent runs afterwards."""

    async def join(self, device: DeviceSpec, *, by: str) -> None:
        """Invite on the device named `by`, join on the new one, as `device.by` says; its agent runs afterwards."""

    async def kill(self, name: str) -> None:
        """Cut the power: no goodbye, and what was not made durable may be gone."""

    async def stop(self, name: str) -> None:
        """End the agent in order."""

    async def start(self, name: str) -> None:
        """Start the agent of a device that was killed or stopped."""

    async def freeze(self, name: str) -> None:
        """Stop its time (SIGSTOP): nothing of it runs, its connections stay."""

    async def thaw(self, name: str) -> None:
        """Let it go on."""

    async def clone(self, name: str, copy: str) -> None:
        """A second device with the bytes of the first one's disk, started beside it."""

    # ---- the world around them ---------------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[str]) -> None:
        """Only devices of one group reach each other from now on; who is in no group is with all such others."""

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from source to target any more (one way)."""

    def heal(self) -> None:
        """Ends partitions and cuts."""

    def set_link(self, link: LinkSpec) -> None:
        """The link's behaviour from now on."""

    def fill_disk(self, name: str, *, free_bytes: int = 0) -> None:
        """Leave so much room on the device's disk."""

    def free_disk(self, name: str) -> None:
        """Give the room back."""

    def tear(self, name: str, *, share: float) -> None:
        """At the next power cut of this device, each unsynced write is kept with this chance, cut at a random byte."""

    def set_clock(self, name: str, *, offset_s: float) -> None:
        """Jump the device's wall clock to so many seconds off."""

    async def lie(self, name: str, lie: str, args: Mapping[str, Any]) -> None:
        """The device does what no honest one would, with its real keys (see `adversary`)."""
