"""A keeper holds and serves what it can't read: neither its disk nor the wire has a word of it.

Real agents in networks of their own. Everything that the keeper sends and receives is captured inside its network, and
afterwards its whole home and the capture are searched for content, names, chunk ids and keys, in the forms in which
they might leak. The same search is held against what does have them, so that it can fail.
"""

from __future__ import annotations

import base64
import os
import socket
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.node.netns.test_lan import meet, staged, until

from hinet_node.belonging.membership import Membership
from hinet_node.real.disk import RealDisk
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_protocol.packs import TREE_ROOT
from hinet_simnet.processes.isolation import enter
from hinet_simnet.processes.stage import ProcessStage
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import DeviceSpec

WRITER = DeviceSpec("writer", "home", "laptop")
KEEPER = DeviceSpec("nas", "home", "cloud", role="keeper")
READER = DeviceSpec("reader", "home", "pocket")
LETTER = "Dear Ottilie, the key to the boathouse lies under the third stone by the weir."
NAMES = ("letters/to-ottilie-brandvold.txt", "fotos/Übermut am Wehr.raw", "empty-but-telling-name")
NOISE = SeededRandomness("photo").draw(9_000_000)
ETH_P_ALL, SOL_PACKET, PACKET_STATISTICS = 3, 263, 6
WINDOW_BYTES = 24


def needles(ids: Iterable[bytes], keys: Iterable[bytes]) -> dict[str, bytes]:
    """What must not be found, by a name for the report."""
    found = {"the letter": LETTER[14:54].encode(), "a file's name": b"ottilie-brandvold",
             "a name in UTF-8": "Übermut am Wehr".encode(), "a name of an empty file": b"empty-but-telling"}
    for at in range(0, len(NOISE) - WINDOW_BYTES, 700_001):
        found[f"the photo at {at}"] = NOISE[at:at + WINDOW_BYTES]
    found |= {f"chunk id {number}": one for number, one in enumerate(ids)}
    return found | {f"epoch key {number}": one for number, one in enumerate(keys)}


def forms(needle: bytes) -> Iterator[tuple[str, bytes]]:
    """The needle in the forms in which it might leak. Base64 has three, by where it begins, without its torn ends."""
    yield "itself", needle
    yield "hex", needle.hex().encode()
    yield "HEX", needle.hex().upper().encode()
    for skipped in range(3):
        whole = base64.b64encode(bytes(skipped) + needle)
        yield f"base64 {skipped}", whole[4 if skipped else 0:-4]
    text = needle.decode("utf-8", "ignore")
    if text.encode() == needle:
        yield "UTF-16 LE", text.encode("utf-16-le")
        yield "UTF-16 BE", text.encode("utf-16-be")


def search(haystack: bytes, wanted: dict[str, bytes]) -> set[tuple[str, str]]:
    """(needle, form) of all that is there."""
    return {(name, form) for name, needle in wanted.items() for form, encoded in forms(needle) if encoded in haystack}


def everything_below(folder: Path) -> bytes:
    """Names and bytes of all files."""
    parts = []
    for place in sorted(folder.rglob("*")):
        parts.append(os.fsencode(str(place.relative_to(folder))))
        if place.is_file():
            parts.append(place.read_bytes())
    return b"\n".join(parts)


class Capture:
    """All packets on all interfaces of one network, by AF_PACKET."""

    def __init__(self, namespace: int) -> None:
        self._pieces: list[bytes] = []
        self._ended = False
        self.dropped = 0
        opened: list[socket.socket] = []

        def build() -> None:
            enter(namespace)
            opened.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)))
        maker = threading.Thread(target=build)
        maker.start()
        maker.join()
        (self._socket,) = opened
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while True:
            try:
                self._pieces.append(self._socket.recv(1 << 17))
            except TimeoutError:
                if self._ended:
                    return

    def streams(self) -> list[bytes]:
        """The bytes of all TCP connections, each way, in their order; last, packets of other kinds."""
        flows: dict[bytes, dict[int, bytes]] = {}
        others = []
        for packet in self._pieces:
            if packet[12:14] == b"\x08\x00" and packet[23] == 6:
                head = 14 + (packet[14] & 15) * 4
                data = packet[head + (packet[head + 12] >> 4) * 4:14 + struct.unpack_from(">H", packet, 16)[0]]
                flow = packet[26:34] + packet[head:head + 4]
                flows.setdefault(flow, {})[struct.unpack_from(">I", packet, head + 4)[0]] = data
            else:
                others.append(packet)
        return [*(b"".join(pieces[at] for at in sorted(pieces)) for pieces in flows.values()), b"\n".join(others)]

    @contextmanager
    def running(self) -> Iterator[Capture]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended = True
            self._thread.join()
            _, self.dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
            self._socket.close()


def source_files(folder: Path) -> Path:
    for name, content in zip(NAMES, (LETTER.encode() * 40, NOISE, b""), strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_keepers_disk_and_wire_hold_no_plaintext_name_or_id_and_it_serves_all_to_a_third_device(
        tmp_path: Path) -> None:
    source = source_files(tmp_path / "mine")
    seen: dict[str, Any] = {}

    async def holds(stage: ProcessStage, name: str, count: int) -> bool:
        listed = (await stage.call(name, "vault.ls"))["items"]
        return len(listed) >= count

    async def play(stage: ProcessStage) -> None:
        await stage.found(WRITER)
        await stage.join(READER, by="writer")
        await meet(stage, "writer", "reader")
        await stage.stop("reader")  # it never met the files, and the writer is gone when it comes back
        await stage.join(KEEPER, by="writer")
        net = stage.devices["nas"].net
        assert net is not None
        capture = Capture(net.namespace)
        with capture.running():
            await stage.call("writer", "vault.add", paths=[str(source)], under="")

            async def kept() -> bool:
                devices = (await stage.call("writer", "vault.status"))["devices"]
                return all(device["in_step"] for device in devices if device["keeper"])
            await until(kept)
            seen["writer"] = (await stage.call("writer", "vault.status"))
            await stage.stop("writer")
            await stage.start("reader")
            await until(lambda: holds(stage, "reader", len(NAMES)))
            await stage.call("reader", "vault.get", name="mine", to=str(tmp_path / "back"), into=str(tmp_path / "back"))
            checked = await stage.call("nas", "vault.verify", deep=True)
        assert checked["ok"]
        assert capture.dropped == 0
        streams = capture.streams()
        seen["bulk"] = sum(len(stream) for stream in streams if stream.startswith(b"\x16\x03"))  # TLS from its start
        seen["wire"] = b"\n".join(streams)
        await stage.stop("nas")
        await stage.stop("reader")
        homes = {name: stage.devices[name].home_from_here for name in ("writer", "nas")}
        seen["disk"] = everything_below(homes["nas"])
        with sqlite3.connect(homes["writer"] / "vault/index.sqlite") as db:
            # The root's id alone stands in clear in each head; it is keyed, and tells when two trees are equal.
            seen["ids"] = [row[0] for row in db.execute("SELECT DISTINCT id FROM chunks WHERE kind <> ?", (TREE_ROOT,))]
        db.close()
        seen["keys"] = list(Membership.load(RealDisk(homes["writer"]), SystemRandomness(),
                                            SystemClock()).epoch_keys().values())
        seen["writer's index"] = (homes["writer"] / "vault/index.sqlite").read_bytes()

    staged(play)
    for name in NAMES:
        assert (tmp_path / "back/mine" / name).read_bytes() == (source / name).read_bytes()
    wanted = needles(seen["ids"], seen["keys"])
    assert len(seen["ids"]) >= 5
    assert len(seen["keys"]) >= 1
    assert len(seen["wire"]) > 2 * len(NOISE), "the exchange was not captured whole"
    assert seen["bulk"] > len(NOISE), "no packs went over the bulk path"
    assert b"HINETPK\x01" in seen["disk"], "the keeper holds the packs"
    # The search finds all of it where it is, and in each form.
    plain = everything_below(source) + seen["writer's index"] + b"".join(seen["keys"])
    assert {name for name, form in search(plain, wanted) if form == "itself"} == set(wanted)
    for name, needle in wanted.items():
        for form, encoded in forms(needle):
            assert (name, form) in search(b"..." + encoded + b"...", {name: needle})
    assert search(seen["disk"], wanted) == set()
    assert search(seen["wire"], wanted) == set()
