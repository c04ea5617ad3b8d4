"""The stage of level "processes": every device is real `hinet-node` processes, in real time.

Two forms of network. "namespaces": each device has a network of its own, and all frames go through one userspace switch
that delays, loses and cuts; it takes root on Linux. "loopback": all on 127.0.0.1, with relays between them. The first
is chosen where the kernel permits it; HINET_SIMNET_NET says otherwise. What a form can't do, `supports` leaves out.
Power cuts are kill -9: the kernel keeps what it was given, so writes are never torn here. Leaves the kernel to
`isolation`, links to `links`, one device to `device`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from hinet_node.agent import Agent
from hinet_node.errors import NodeError
from hinet_node.local.vault_verbs import find_files, name_bytes, text_name
from hinet_simnet.errors import BadScenario, NotAtThisLevel, SimnetError
from hinet_simnet.findings import Finding
from hinet_simnet.processes.device import LAST_LINES, Device
from hinet_simnet.processes.folder import keep_logs, run_folder
from hinet_simnet.processes.isolation import NetSpace, SmallDisk, disk_refusal, net_refusal
from hinet_simnet.processes.links import Links
from hinet_simnet.processes.relay import Relays, free_port
from hinet_simnet.processes.switch import Switch
from hinet_simnet.scenario.model import DeviceSpec, LinkSpec
from hinet_simnet.trace import Trace

FORM_VARIABLE = "HINET_SIMNET_NET"
FORMS = ("namespaces", "loopback")
DEVICES_MAX = 64
DISK_BYTES = 2 << 30
"""The size of a disk that is to be filled, when the scenario names none; a vault keeps 1 GiB in reserve."""
COUNT_S = 1.0
LAST_WORDS_S = 2.0
"""After a failure: an agent that is just ending has this long to say why, for its log."""
LINE_BYTES_MAX = 4096
LOG_BYTES_MAX = 16 << 20
_OPENED = re.compile(r"^(.+) connected from \S+ \((?:cloud|laptop|pocket)\)$")
_ENDED = re.compile(r"^(.+?) (left|was refused): (.*)$")
_TIME = re.compile(r"^\d\d:\d\d:\d\d ")
STEPS = frozenset(("found", "join", "call", "kill", "stop", "start", "freeze", "thaw", "clone", "partition", "cut",
                   "heal", "set_link", "set_clock"))
DISK_STEPS = frozenset(("fill_disk", "free_disk"))
LOOKING = frozenset(("status", "devices", "vault.ls", "vault.get", "vault.status", "vault.verify", "jobs.list",
                     "adapters.list", "base.show", "invite.list"))
"""Verbs that change nothing: polling them leaves no trace."""


def chosen_form(wanted: str | None = None) -> str:
    """"namespaces" or "loopback": what was asked for, or what the kernel permits. Errors: `BadScenario`."""
    wanted = wanted or os.environ.get(FORM_VARIABLE) or ""
    if wanted and wanted not in FORMS:
        raise BadScenario(f"there is no form of network {wanted!r}", next_step=f"{FORM_VARIABLE}=" + "|".join(FORMS))
    if wanted == "namespaces" and net_refusal():
        raise BadScenario(net_refusal(), next_step=f"run it as root, or with {FORM_VARIABLE}=loopback")
    return wanted or ("loopback" if net_refusal() else "namespaces")


@asynccontextmanager
async def open_stage(seed: int, trace: Trace, *, form: str | None = None, link: LinkSpec | None = None,
                     small_disks: Collection[str] = (), environment: Mapping[str, str] | None = None,
                     ) -> AsyncIterator[ProcessStage]:
    """A stage without devices yet. `small_disks` names the devices whose disks are to be filled; one with `disk_bytes`
    has a small disk anyway. At the end no process, network, mount or home is left."""
    form = chosen_form(form)
    failed: Exception | None = None
    with run_folder() as folder:
        async with trio.open_nursery() as nursery:
            stage = ProcessStage(seed, trace, form, folder, nursery, link or LinkSpec(), small_disks, environment or {})
            try:
                with stage.carrying():
                    nursery.start_soon(stage.count)
                    try:
                        yield stage
                    except Exception as error:  # raised again below: it is the caller's, and no group of ours
                        failed = error
                        stage.keep_logs = True
                        await trio.sleep(LAST_WORDS_S)
                    nursery.cancel_scope.cancel()
            finally:
                stage.close()
        if stage.keep_logs or stage.crashes:
            stage.logs = keep_logs(folder)
    if failed is not None:
        failed.add_note(f"The logs of the nodes are in {stage.logs}.")
        raise failed


class ProcessStage:
    """`hinet_simnet.stage.Stage`; made by `open_stage`. `crashes` are agents that ended by themselves, `on_crash` is
    told each one. With a crash, or with `keep_logs`, the logs are at `logs` afterwards."""

    level = "processes"

    def __init__(self, seed: int, trace: Trace, form: str, folder: Path, nursery: trio.Nursery, link: LinkSpec,
                 small_disks: Collection[str], environment: Mapping[str, str]) -> None:
        self.seed = seed
        self.trace = trace
        self.form = form
        self.folder = folder
        self.keep_logs = False
        self.logs: Path | None = None
        self.crashes: list[Finding] = []
        self.on_crash: list[Callable[[Finding], None]] = []
        self.devices: dict[str, Device] = {}
        self._links = Links(seed, link)
        self._nursery = nursery
        self._small_disks = frozenset(small_disks)
        self._environment = environment
        self._carrier: Switch | Relays = (Switch(self._links) if form == "namespaces"
                                          else Relays(self._links, nursery))
        (folder / "logs").mkdir()

    # ---- looking -------------------------------------------------------------------------------------------------

    @classmethod
    def supports(cls) -> Collection[str]:
        return STEPS if disk_refusal() else STEPS | DISK_STEPS

    def now_s(self) -> float:
        return trio.current_time()

    def names(self) -> Sequence[str]:
        return tuple(self.devices)

    def running(self, name: str) -> bool:
        device = self.devices.get(name)
        return device is not None and device.agent is not None

    def agent(self, name: str) -> Agent | None:
        return None

    async def call(self, name: str, verb: str, /, **args: Any) -> dict[str, Any]:
        """As the command line does. What changes something is in the trace. Errors: `NodeError`."""
        device = self._device(name)
        if verb in LOOKING:
            return await device.call(verb, args)
        try:
            result = await device.call(verb, args)
        except NodeError as error:
            self.trace.event("call", name, verb=verb, error=error.code)
            raise
        self.trace.event("call", name, verb=verb)
        for row in await self._acknowledged(device, verb, args, result):
            self.trace.event("ack", name, **row)
        return result

    # ---- devices ---------------------------------------------------------------------------------------------------

    async def found(self, device: DeviceSpec) -> None:
        made = await self.add(device) if device.name not in self.devices else self._device(device.name)
        words = made.place / "words"
        await made.command("init", "--name", device.name, "--tier", device.tier, "--words-file", str(words))
        words.unlink(missing_ok=True)
        self.trace.event("found", device.name, household=device.household, tier=device.tier)
        await self.start(device.name)

    async def join(self, device: DeviceSpec, *, by: str, how: str = "code", options: Sequence[str] = ()) -> None:
        """By code or ticket over the network, also where a world would put the certificate into the chain directly.
        `options` are more words for `hinet-node join`."""
        made = await self.add(device) if device.name not in self.devices else self._device(device.name)
        shown = await self.call(by, "invite", role=device.role, accept=True, wait=False, carrier=how)
        await made.command("join", "--code-stdin", "--name", device.name, "--tier", device.tier, "--no-service",
                           *options, typed=shown[how] + "\n")
        self.trace.event("joined", device.name, by=by, role=device.role, tier=device.tier, how=how)
        await self.start(device.name)

    async def kill(self, name: str) -> None:
        self.trace.event("kill", name)
        self._device(name).kill()
        await trio.lowlevel.checkpoint()

    async def stop(self, name: str) -> None:
        self.trace.event("stop", name)
        await self._device(name).stop()

    async def start(self, name: str) -> None:
        device = self._device(name)
        if device.agent is not None:
            raise SimnetError(f"{name} runs already", next_step="kill or stop it first")
        device.launch()
        self.trace.event("start", name)
        self._nursery.start_soon(self._follow, device)
        await device.ready()

    async def freeze(self, name: str) -> None:
        self.trace.event("freeze", name)
        self._device(name).frozen = True
        self._device(name).signal(signal.SIGSTOP)
        await trio.lowlevel.checkpoint()

    async def thaw(self, name: str) -> None:
        self.trace.event("thaw", name)
        self._device(name).frozen = False
        self._device(name).signal(signal.SIGCONT)
        await trio.lowlevel.checkpoint()

    async def clone(self, name: str, copy: str) -> None:
        """The bytes are copied while the first one's time stands still."""
        first = self._device(name)
        if copy in self.devices:
            raise SimnetError(f"there is a device named {copy} already", next_step="give the clone another name")
        twin = await self.add(replace(first.spec, name=copy))
        first.signal(signal.SIGSTOP)
        try:
            await trio.to_thread.run_sync(lambda: shutil.copytree(
                first.home_from_here, twin.home_from_here, ignore=shutil.ignore_patterns("agent.sock", "lock")))
        finally:
            if not first.frozen:
                first.signal(signal.SIGCONT)
        self.trace.event("clone", name, copy=copy)
        await self.start(copy)

    # ---- the world around them ---------------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[str]) -> None:
        self.trace.event("partition", groups=" | ".join(" ".join(group) for group in groups))
        self._links.partition(groups)

    def cut(self, source: str, target: str) -> None:
        self.trace.event("cut", source, to=target)
        self._links.cut(source, target)

    def heal(self) -> None:
        self.trace.event("heal")
        self._links.heal()

    def set_link(self, link: LinkSpec) -> None:
        self.trace.event("link", link.source, to=link.target)
        self._links.set(link)

    def block_multicast_dns(self, blocked: bool = True) -> None:
        """As networks do that keep their clients apart; all else passes."""
        if not isinstance(self._carrier, Switch):
            raise NotAtThisLevel("multicast can't be blocked on loopback", next_step=f"{FORM_VARIABLE}=namespaces")
        self._carrier.blocks_multicast_dns = blocked
        self.trace.event("multicast", blocked=blocked)

    def fill_disk(self, name: str, *, free_bytes: int = 0) -> None:
        self._disk(name).leave_free(free_bytes)
        self.trace.event("disk", name, free=free_bytes)

    def free_disk(self, name: str) -> None:
        size_bytes = self._device(name).spec.disk_bytes or DISK_BYTES
        self._disk(name).resize(size_bytes)
        self.trace.event("disk", name, size=size_bytes)

    def tear(self, name: str, *, share: float) -> None:
        raise NotAtThisLevel("a real kernel keeps what a killed process wrote, so writes can't be torn here",
                             next_step="play this scenario with --level world")

    def set_clock(self, name: str, *, offset_s: float) -> None:
        self._device(name).tell(offset_s=offset_s)
        self.trace.event("clock", name, offset=offset_s)

    async def lie(self, name: str, lie: str, args: Mapping[str, Any]) -> None:
        raise NotAtThisLevel("a real process can't be made to lie", next_step="play this scenario with --level world")

    # ---- inside --------------------------------------------------------------------------------------------------

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """While the network between the devices works."""
        if isinstance(self._carrier, Switch):
            with self._carrier:
                yield
        else:
            yield

    async def count(self) -> None:
        """Each second, the bytes that each pair sent go into the trace."""
        while True:
            await trio.sleep(COUNT_S)
            for (source, target), (pieces, size) in sorted(self._carrier.take_counts().items()):
                self.trace.messages += pieces
                self.trace.message_bytes += size
                self.trace.event("send", source, to=target, on="bytes", size=size, pieces=pieces)

    def close(self) -> None:
        """End every process at once and give back what the kernel lent."""
        for device in self.devices.values():
            device.close()

    async def _acknowledged(self, device: Device, verb: str, args: Mapping[str, Any],
                            result: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The files that a call which returned has acknowledged: {file, digest, size} each."""
        if verb == "vault.put":
            return [{"file": result["name"], "digest": result["digest"], "size": result["size"]}]
        if verb != "vault.add":
            return []
        found, _ = find_files([Path(path) for path in args["paths"]], name_bytes(str(args.get("under", ""))))
        names = {text_name(name) for name, _ in found}
        listed = (await device.call("vault.ls", {"prefix": str(args.get("under", ""))}))["items"]
        return [{"file": item["name"], "digest": item["digest"], "size": item["size"]} for item in listed
                if item["name"] in names]

    def _device(self, name: str) -> Device:
        device = self.devices.get(name)
        if device is None:
            raise SimnetError(f"there is no device named {name}", next_step="found or join it first")
        return device

    def _disk(self, name: str) -> SmallDisk:
        disk = self._device(name).disk
        if disk is None:
            raise NotAtThisLevel(disk_refusal() or f"the disk of {name} is this machine's own and can't be filled",
                                 next_step=f"run it as root, and give {name} a disk_bytes")
        return disk

    async def add(self, spec: DeviceSpec) -> Device:
        """A device with a network and a home, and nothing in it yet."""
        if len(self.devices) >= DEVICES_MAX:
            raise SimnetError(f"more than {DEVICES_MAX} real devices", next_step="play it with --level world")
        if spec.name in self.devices:
            raise SimnetError(f"there is a device named {spec.name} already", next_step="give each its own name")
        number = len(self.devices)
        device = Device(spec, self.folder / f"d{number}", self._environment,
                        told={"offset_s": spec.clock_offset_s, "drift": spec.clock_drift})
        device.place.mkdir(mode=0o700)
        self.devices[spec.name] = device  # from here on `close` gives back what it holds
        if spec.disk_bytes is not None or spec.name in self._small_disks:
            if disk_refusal():
                raise NotAtThisLevel(disk_refusal(), next_step="run it as root, or without disk_bytes")
            device.disk = SmallDisk.make(device.place / "disk", spec.disk_bytes or DISK_BYTES)
        if isinstance(self._carrier, Switch):
            device.net = NetSpace.make(number)
            self._carrier.plug(spec.name, device.net)
        else:
            device.port = free_port()
            await self._carrier.plug(spec.name, device.port)
            for name, other in self.devices.items():
                other.tell(routes=self._carrier.routes(name))
        return device

    async def _follow(self, device: Device) -> None:
        """Keep what the agent says, and notice when it ends by itself."""
        running, stdout = device.agent, device.agent.process.stdout if device.agent else None
        assert running is not None
        assert stdout is not None
        device.last_lines.clear()
        log = self.folder / "logs" / f"{list(self.devices).index(device.name)}-{plain(device.name)}.log"
        with stdout, log.open("ab") as file:
            async with trio.lowlevel.FdStream(os.dup(stdout.fileno())) as stream:
                with suppress(trio.BrokenResourceError):
                    async for line in lines_of(stream):
                        if file.tell() < LOG_BYTES_MAX:
                            file.write(f"{self.now_s():.3f} {line}\n".encode())
                            file.flush()
                        device.last_lines[:] = [*device.last_lines[1 - LAST_LINES:], line]
                        self._note_line(device.name, _TIME.sub("", line))
        code = await running.ended()
        if device.agent is running and not device.ending:
            device.kill()
            self._note_crash(device, code)

    def _note_line(self, name: str, line: str) -> None:
        """A line of an agent's log; sessions, which the checkers ask about, are an event of their own too."""
        self.trace.event("log", name, line=line)
        if (opened := _OPENED.match(line)) is not None:
            self.trace.event("session", name, what="opened", peer=opened[1])
        elif (ended := _ENDED.match(line)) is not None:
            what = "closed" if ended[2] == "left" else "refused"
            self.trace.event("session", name, what=what, peer=ended[1], reason=ended[3])

    def _note_crash(self, device: Device, code: int) -> None:
        said = device.last_lines
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        finding = Finding("crash", f"the agent of {device.name} ended by itself ({how})"
                                   f"{': ' + said[-1] if said else ''}", self.now_s(), device.name, "\n".join(said))
        self.crashes.append(finding)
        self.trace.event("crash", device.name, what=finding.message, traceback=finding.traceback)
        for told in self.on_crash:
            told(finding)


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """Its lines as text, each cut at a bound."""
    held = bytearray()
    while data := await stream.receive_some(65_536):
        held += data
        *whole, rest = held.split(b"\n")
        held = bytearray(rest[:LINE_BYTES_MAX])
        for line in whole:
            yield line[:LINE_BYTES_MAX].decode("utf-8", "replace")
    if held:
        yield held.decode("utf-8", "replace")


def plain(name: str) -> str:
    """A device's name as a part of a file's."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:40]
