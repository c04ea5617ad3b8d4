"""Fuzz targets of the node: its own files (which a torn disk or another program may have changed), the local API,
addresses, announcements on the LAN."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgpack
import trio
from zeroconf import ServiceInfo

from fuzz.target import Target, chain, device, text_of
from hinet_node import config
from hinet_node.api import Api, Emit
from hinet_node.belonging import membership
from hinet_node.belonging.invitation_store import InvitationStore, Policy, _encode
from hinet_node.errors import NodeError
from hinet_node.home import CHAIN, CHAIN_HEAD, CONFIG, DEVICE_KEY
from hinet_node.learning.adapters import SERVED, Adapters
from hinet_node.learning.bases import Bases
from hinet_node.learning.jobs import Jobs
from hinet_node.local import client, server
from hinet_node.ports import Announcement
from hinet_node.real.discovery import read_service, service_info
from hinet_node.sessions import seen
from hinet_node.sessions.address_book import FILE, AddressBook
from hinet_node.sessions.addresses import parse_address
from hinet_protocol import canonical
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.invitations import Invitation, make_code
from hinet_simnet.disk import MemoryDisk

TOO_DEEP_FOR_PYTHON = 5_000


class Times:
    """A clock that stands still."""

    def now_unix_s(self) -> float:
        return 1_800_000_000.0

    def monotonic_s(self) -> float:
        return 100.0


class Zeros:
    """Randomness that nothing here should need."""

    def draw(self, size_bytes: int) -> bytes:
        return bytes(size_bytes)


def disk_with(**files: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    for name, raw in files.items():
        disk.write_atomic(name, raw)
    return disk


def settings(raw: bytes) -> None:
    disk = disk_with(**{CONFIG: raw})
    found = config.read(disk)
    config.write(disk, found)
    assert config.read(disk) == found


def home_chain(raw: bytes) -> None:
    """The file with the chain's entries, the file with its heads, and the device's keys: each in turn."""
    whole = {f"{CHAIN}/000001.entries": canonical.encode(list(chain().raws())),
             CHAIN_HEAD: canonical.encode({"v": 1, "height": chain().height, "heads": list(chain().heads)}),
             DEVICE_KEY: device("anna").to_bytes()}
    for name in whole:
        try:
            found = membership.Membership.load(disk_with(**{**whole, name: raw}), Zeros(), Times())
        except NodeError:
            continue
        assert found.chain().identity_id == chain().identity_id or name.endswith(".entries")


def records(raw: bytes) -> None:
    """A damaged record of an invitation is no invitation, and the agent starts."""
    disk = disk_with(**{"invitations/1": raw})
    store = InvitationStore(disk, Times())
    store.load(chain())
    for one in store.open_records():
        store.left_s(one)
    store.in_monotonic_time()


def caches(raw: bytes) -> None:
    """Files that are only memory: whatever is in them, the agent starts."""
    disk = disk_with(**{seen.SEEN: raw})
    found = seen.read(disk)
    seen.write(disk, found)
    assert seen.read(disk) == found
    book = AddressBook(disk_with(**{FILE: raw}))
    book.find(device("bert").public)
    book.keep(device("bert").public, None, ("/ip4/192.0.2.7/tcp/4001",))


def address(raw: bytes) -> None:
    found = parse_address(text_of(raw))
    assert parse_address(str(found)) == found
    _ = found.is_loopback, found.is_link_local, found.is_wildcard, found.socket_host


ANNOUNCED = Announcement("12D3KooWfuzz", "_hinet._tcp", ("/ip4/192.0.2.7/tcp/4001", "/ip6/2001:db8::7/tcp/4001"),
                         {"v": "1"})


def announcement(raw: bytes) -> None:
    """The text record of a service: properties as DNS carries them."""
    info = ServiceInfo("_hinet._tcp.local.", "fuzz._hinet._tcp.local.", port=1, properties=raw)
    found = read_service(info)
    if found is not None:
        book = AddressBook(MemoryDisk())
        book.hear(device("bert").public, found.addresses)
        book.find(device("bert").public)


class Wire:
    """A local caller's stream that holds these bytes and then ends."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self.sent = raw, bytearray()

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        piece, self._raw = self._raw[:bytes_max], self._raw[bytes_max:]
        return piece

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += data

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *error: object) -> None:
        await trio.lowlevel.checkpoint()


API = Api()


@API.verb("echo")
async def _echo(args: Any, emit: Emit) -> dict[str, Any]:
    emit({"step": 1})
    return dict(args)


def unexpected(verb: str, error: BaseException) -> None:
    raise AssertionError(f"the verb {verb} failed with {error!r}") from error


def local_request(raw: bytes) -> None:
    """What another program of the same user says to the agent's socket."""
    wire, limit, token = Wire(raw), trio.CapacityLimiter(1), object()

    async def main() -> None:
        limit.acquire_on_behalf_of_nowait(token)
        await server._serve_connection(API, wire, unexpected, limit, token)  # type: ignore[arg-type]
    trio.run(main)
    assert limit.borrowed_tokens == 0
    rest = bytes(wire.sent)
    while rest:
        size = int.from_bytes(rest[:4], "big")
        assert {"progress", "result", "error"} & set(client.decode(rest[4:4 + size]))
        rest = rest[4 + size:]


def requests() -> list[bytes]:
    calls: list[dict[str, Any]] = [{"id": 1, "verb": "echo", "args": {"n": 1, "list": ["a", b"b", 1.5]}},
                                   {"id": 2, "verb": "nothing", "args": {}}]
    return [client.encode(one, client.REQUEST_BYTES_MAX) for one in calls]


def framed(body: bytes, random: object) -> bytes:
    return len(body).to_bytes(4, "big") + body


def json_files(raw: bytes) -> None:
    """Records of jobs, of the served revision and of bases: a damaged one is left out, or named."""
    digest = "ab" * 32
    jobs = Jobs(disk_with(**{"jobs/000001-train-aa/record.json": raw}), Times(), Zeros())
    jobs.load()
    for job in jobs.list():
        job.as_json()
    for base in Bases(disk_with(**{f"bases/{digest}/base.json": raw}), None).installed():  # type: ignore[arg-type]
        base.as_json()
    Adapters(disk_with(**{SERVED: raw}), None, None, None, None).history()  # type: ignore[arg-type]


def json_seeds() -> list[bytes]:
    job = {"id": "000001-train-aa", "kind": "train", "args": {"recipe": "quick"}, "args_digest": "00", "state": "done",
           "created_unix_s": 1.5, "started_unix_s": 2, "ended_unix_s": 3, "attempts": 1, "progress": {}, "result": {},
           "evidence": {}, "error": None, "schema": "hinet.job/1"}
    base = {"digest": "ab" * 32, "name": "b", "parameters": 3, "architecture": "x", "representations": [{"a": 1}],
            "notes": ["n"]}
    history = {"history": [{"revision": "r", "base": "b", "file_digest": "f"}]}
    odd = [{**job, "attempts": 1e400}, {**base, "parameters": float("inf")}, {**base, "notes": 5},
           {**job, "state": "running", "attempts": "1"}, {**job, "args": [], "progress": None, "state": 7}]
    written = [json.dumps(one).encode() for one in (job, {**job, "state": "running"}, base, history, *odd)]
    return [*written, b"[" * 100_000, b'{"history":' * 50_000, b"9" * 5_000, b'"\\ud800"']


def config_seeds() -> list[bytes]:
    disk = MemoryDisk()
    config.write(disk, config.Config(name="Käthe's \"laptop\"", port=4001, listen=("192.0.2.7", "::1"),
                                     static=("/ip4/192.0.2.7/tcp/4001",), interface="eth0"))
    deep = (b"name = " + b"[" * TOO_DEEP_FOR_PYTHON, b"a = " + b"{b=" * TOO_DEEP_FOR_PYTHON)
    odd = (b"port = 0x7fffffffffffffff\n", b"[a.b.c]\nd = {e = [1, 2]}\n", b"name = '''\n'''\n", b"a = " + b"9" * 5_000,
           b"d = 1979-05-27T07:32:00Z")
    return [disk.read(CONFIG), *deep, *odd]


def targets() -> list[Target]:
    record = Invitation.for_code(make_code(bytes(16)), role="member", tier=None, expires_at_s=1_800_000_600)
    book = canonical.encode({device("bert").public.hex(): ["/ip4/192.0.2.7/tcp/4001", "/dns/nas/tcp/1"]})
    places = ("/ip4/192.0.2.7/tcp/4001", "/ip6zone/eth0/ip6/fe80::1/tcp/4001", "/dns/nas.local/tcp/1")
    entries = canonical.encode(list(chain().raws()))
    heads = canonical.encode({"v": 1, "height": 5, "heads": list(chain().heads)})
    met = seen.Sighting(1_800_000_000, "/ip4/192.0.2.7/tcp/4001", False, "1", ("torch",), 5, (bytes(32),), (bytes(32),))
    sightings = [canonical.encode([[device("bert").public, one]]) for one in (1_800_000_000, dataclasses.asdict(met))]
    return [
        Target("config", config_seeds(), settings, (NodeError,)),
        Target("home", [entries, heads, device("anna").to_bytes()], home_chain, (NodeError,)),
        Target("key file", [device("anna").to_bytes()], DeviceKeys.from_bytes, (ProtocolError,)),
        Target("invitation file", [_encode(record, Policy(fingerprint="ABCD-EFGH"))], records, (NodeError,)),
        Target("cache files", [book, *sightings], caches, ()),
        Target("address", [one.encode() for one in places], address, (NodeError,)),
        Target("announcement", [service_info(ANNOUNCED).text], announcement, ()),
        Target("local request", requests(), local_request, (), dress=framed,
               inner=[msgpack.packb({"id": 1, "verb": "echo", "args": {"n": [1, {"a": b"x"}]}})]),
        Target("json files", json_seeds(), json_files, (NodeError,)),
    ]
