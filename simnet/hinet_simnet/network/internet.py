"""All hosts: their addresses, who reaches whom, the links between them. One internet, whatever the LANs.

The default link has a delay of 0.2 to 5 ms. `set_link` names a pair, or "*" for any; of several that fit the last one
that was set counts, and a named end counts more than "*".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from hinet_simnet.clock import call_at
from hinet_simnet.network.host import MemoryNetwork
from hinet_simnet.network.links import Link
from hinet_simnet.network.streams import MemoryConnection
from hinet_simnet.scenario.model import LinkSpec
from hinet_simnet.trace import Trace

Tap = Callable[[str, str, str, bytes], None]
"""Called with source, target, protocol and the bytes of each send."""
HOSTS_MAX = (1 << 24) - 2


class Internet:
    """All hosts and the links between them."""

    def __init__(self, seed: int | str, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self.taps: list[Tap] = []
        self.hosts: dict[str, MemoryNetwork] = {}
        self._seed = seed
        self._specs: dict[tuple[str, str], LinkSpec] = {("*", "*"): LinkSpec()}
        self._links: dict[tuple[str, str], Link] = {}
        self._groups: dict[str, int] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._ips: dict[str, str] = {}
        self._by_ip: dict[str, MemoryNetwork] = {}
        self._changed: trio.Event | None = None

    # ---- who reaches whom ----------------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[str]) -> None:
        """Only hosts of one group reach each other from now on; a host in no group is alone with the other such."""
        self._groups = {name: number for number, group in enumerate(groups, 1) for name in group}
        self.trace.event("partition", groups=" | ".join(",".join(group) for group in groups))
        self.wake()

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from source to target any more; "*" is any other host."""
        self._cuts.add((source, target))
        self.trace.event("cut", source, to=target)
        self.wake()

    def heal(self) -> None:
        """All hosts reach each other again."""
        self._groups = {}
        self._cuts.clear()
        self.trace.event("heal")
        self.wake()

    def reaches(self, source: str, target: str) -> bool:
        """Whether packets pass from source to target."""
        groups = self._groups
        if groups and groups.get(source, 0) != groups.get(target, 0):
            return False
        cuts = self._cuts
        return not cuts or source == target or not (
            (source, target) in cuts or (source, "*") in cuts or ("*", target) in cuts or ("*", "*") in cuts)

    def wake(self) -> None:
        """Who reaches whom has changed, or a frozen host goes on: what was held back moves."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        for host in list(self.hosts.values()):
            for connection in list(host.connections):
                connection.arrive()

    async def wait_for_way(self, source: str, target: str) -> None:
        """Until packets pass from source to target and both hosts' programs run."""
        while not (self.reaches(source, target) and self.awake(source) and self.awake(target)):
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()

    def awake(self, name: str) -> bool:
        """Whether the host is not frozen; one that is gone counts as awake."""
        host = self.hosts.get(name)
        return host is None or not host.frozen

    # ---- links ---------------------------------------------------------------------------------------------------

    def set_link(self, spec: LinkSpec) -> None:
        """How a link behaves from now on; what is under way arrives as it would have."""
        self._specs.pop((spec.source, spec.target), None)
        self._specs[spec.source, spec.target] = spec
        for (source, target), link in self._links.items():
            link.spec = self._spec(source, target)
        delay = spec.delay
        self.trace.event("link", spec.source, to=spec.target, delay=delay.kind, a_s=delay.a_s, b_s=delay.b_s,
                         loss=spec.loss, duplicate=spec.duplicate, reorder=spec.reorder, rate=spec.rate_bytes_s or 0)

    def link(self, source: str, target: str) -> Link:
        """The link of this direction."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self._spec(source, target), f"{self._seed}/{source}/{target}")
        return found

    def _spec(self, source: str, target: str) -> LinkSpec:
        for pair in ((source, target), (source, "*"), ("*", target), ("*", "*")):
            if pair in self._specs:
                return self._specs[pair]
        raise AssertionError("there is always a default")

    # ---- hosts ---------------------------------------------------------------------------------------------------

    def host(self, name: str) -> MemoryNetwork:
        """A network port for this host: a new one each time it starts; its IP address stays."""
        if name not in self._ips:
            number = len(self._ips) + 1
            assert number <= HOSTS_MAX, "10.0.0.0/8 is used up"
            self._ips[name] = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        ip = self._ips[name]
        self.hosts[name] = self._by_ip[ip] = MemoryNetwork(self, name, ip)
        return self.hosts[name]

    def find(self, ip: str) -> MemoryNetwork | None:
        """The host that has this address now."""
        return self._by_ip.get(ip)

    def kill(self, name: str) -> None:
        """Power is lost at this host: its connections break without a word."""
        host = self.hosts.pop(name, None)
        if host is not None:
            del self._by_ip[host.ip]
            host.die()

    def freeze(self, name: str) -> None:
        """Nothing is read from this host's connections and nothing leaves it, and they all stay."""
        if name in self.hosts:
            self.hosts[name].frozen = True

    def thaw(self, name: str) -> None:
        """What was held back moves."""
        if name in self.hosts:
            self.hosts[name].thaw()
            self.wake()

    def snap_far_end(self, near: MemoryConnection) -> None:
        """The other end of a connection learns that this one is gone, after all that was sent before has arrived."""
        far = near.other
        if not far.broken:
            due_s = max(far.last_s, trio.current_time()) + self.link(near.host, near.peer_host).delay_s()
            call_at(due_s, far.see_end)
