"""What runs in a node's process before the node: `python -m hinet_simnet.processes.launch PLACE -- COMMAND LINE`.

Enters the namespaces that it was given, sets the clock that this process believes, and then runs the very command line
that `hinet-node` is, so that the product needs no back door. PLACE is a map in JSON: `control` (a descriptor), perhaps
`net` and `mount` (descriptors of namespaces), and `relayed` where dials go through the simulator's relays.

Over `control` come lines, each a map in JSON that replaces the one before: `offset_s` and `drift` of the wall clock,
and `routes`, the addresses at which relays stand in for others. The first is read before anything else. When the
control pipe ends, the simulator is gone, and so ends this process. Timestamps in the log stay true, for whoever reads
it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from typing import IO, Any

from hinet_simnet.processes.isolation import enter

PR_SET_PDEATHSIG = 1


class Believed:
    """What this process believes of the world beside what is true."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._true_s = time.time
        self._since_s = time.monotonic()
        self.tell(told)

    def tell(self, told: Mapping[str, Any]) -> None:
        self._offset_s = float(told.get("offset_s", 0.0))
        self._drift = float(told.get("drift", 0.0))
        self._routes: dict[str, str] = dict(told.get("routes", {}))

    def now_unix_s(self) -> float:
        return self._true_s() + self._offset_s + self._drift * (time.monotonic() - self._since_s)

    def now_unix_ns(self) -> int:
        return int(self.now_unix_s() * 1e9)

    def route(self, address: str) -> str:
        return self._routes.get(address, address)


class RelayedNetwork:
    """The real network, dialling through the simulator's relays where there is one for the address."""

    def __init__(self, network: Any, believed: Believed) -> None:
        self._network = network
        self._believed = believed

    def serve(self, *arguments: Any) -> Any:
        return self._network.serve(*arguments)

    async def dial(self, address: str, *arguments: Any) -> Any:
        connection = await self._network.dial(self._believed.route(address), *arguments)
        connection.remote_address = address  # what is remembered must be where the other really listens
        return connection

    async def dial_bulk(self, address: str, *arguments: Any) -> Any:
        return await self._network.dial_bulk(self._believed.route(address), *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def main(arguments: list[str]) -> int:
    """Run one command line in its place."""
    place: dict[str, Any] = json.loads(arguments[0])
    end_with_parent()
    for kind in ("net", "mount"):
        if kind in place:
            enter(place[kind])
            os.close(place[kind])
    control = os.fdopen(place["control"], encoding="utf-8")
    believed = Believed(json.loads(control.readline()))
    time.time, time.time_ns = believed.now_unix_s, believed.now_unix_ns
    threading.Thread(target=follow, args=(control, believed), name="simnet control", daemon=True).start()
    if place.get("relayed"):
        relay_dials(believed)
    stay_in_this_process()
    sys.argv = ["hinet-node", *arguments[2:]]
    from hinet_node.cli import main as command_line

    return command_line()


def follow(control: IO[str], believed: Believed) -> None:
    """Take what the simulator says; end this process when it says no more."""
    with suppress(OSError):
        for line in control:
            believed.tell(json.loads(line))
    os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent() -> None:
    """Also while this process is stopped and reads no pipe (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stay_in_this_process() -> None:
    """`run` goes on in a process that has loaded nothing yet; what was set here would be lost with this one."""
    agent_process = import_module("hinet_node.cli.agent_process")

    def become(wish: Any) -> None:
        raise SystemExit(agent_process.main(["run", json.dumps(asdict(wish))]))

    agent_process.become = become  # type: ignore[attr-defined]


def relay_dials(believed: Believed) -> None:
    """Let whatever builds the real ports from now on get a network that dials through relays."""
    real_ports = import_module("hinet_node.cli.real_ports")
    build = real_ports.build

    def build_relayed(*arguments: Any) -> Any:
        ports = build(*arguments)
        return replace(ports, network=RelayedNetwork(ports.network, believed))

    real_ports.build = build_relayed  # type: ignore[attr-defined]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
