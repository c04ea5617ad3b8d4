"""Fuzz targets of the vault beyond its objects: what siblings say when they compare and move packs, attributes, and the
vault's own small files, which a torn disk may have changed."""

from __future__ import annotations

from random import Random

from blake3 import blake3

from fuzz.target import Target
from hinet_node.vault.ledger import Ledger
from hinet_node.vault.seqfile import read_seq, write_seq
from hinet_protocol import attributes, bulk, limits, ranges
from hinet_protocol.errors import ProtocolError
from hinet_protocol.messages import RangesGet, RangesList, Response, from_wire, to_wire
from hinet_simnet.disk import MemoryDisk

HELD = [(blake3(b"%d" % number).digest(), 65_536) for number in range(300)]
HELD.sort()
NAMES = [name for name, _ in HELD]


def beside_a_file(raw: bytes) -> None:
    """Whatever stands there says nothing or something, and can be written on."""
    known = attributes.read_attributes(raw)
    made = attributes.with_past(raw, b"p" * 32)
    assert len(made) <= attributes.attributes_bytes_max
    again = attributes.read_attributes(made)
    assert (again.mode, again.mtime_ns, again.past) == (known.mode, known.mtime_ns, b"p" * 32)
    assert attributes.with_past(made, b"p" * 32) == made, "attributes have two forms"


def compared(raw: bytes) -> None:
    """A question about ranges is answered within a frame; an answer leads to a bounded next question."""
    message = from_wire(raw)
    if isinstance(message, RangesGet):
        said = ranges.answer(HELD, message.ranges)
        assert len(to_wire(Response(1, RangesList(said)))) <= limits.frame_bytes_max
    elif isinstance(message, RangesList):
        search = ranges.Search(NAMES[:200])
        search.next_question()
        search.take(message.answers)
        assert len(search.next_question()) <= limits.ranges_max
        assert search.found.keys().isdisjoint(NAMES[:200])


def on_a_bulk_connection(raw: bytes) -> None:
    if len(raw) == bulk.request_bytes:
        assert bulk.encode_request(bulk.decode_request(raw)) == raw
    elif len(raw) == bulk.answer_bytes:
        assert bulk.encode_answer(bulk.decode_answer(raw)) == raw
    else:
        for decode in (bulk.decode_request, bulk.decode_answer):
            try:
                decode(raw)
            except ProtocolError:
                continue
            raise AssertionError("bytes of another length were taken")


def ledger(raw: bytes) -> None:
    disk = MemoryDisk()
    disk.write_atomic("vault/ledger", raw)
    found = Ledger(disk, [])
    found.tick(1.0, {b"d" * 32: b"h" * 32})
    again = Ledger(disk, [])
    assert (again.unneeded, again.given_up) == (found.unneeded, found.given_up)


def checked(body: bytes, random: Random) -> bytes:
    return body + blake3(body).digest()


def ledgers() -> list[bytes]:
    disk = MemoryDisk()
    made = Ledger(disk, [])
    made.set_unneeded([b"u" * 32, b"v" * 32])
    made.keep_idle([b"u" * 32])
    made.set_given_up(5, 3)
    made.tick(7.5, {b"d" * 32: b"h" * 32})
    return [disk.read("vault/ledger")]


def number_file(raw: bytes) -> None:
    disk = MemoryDisk()
    disk.write_atomic("vault/seq", raw)
    found = read_seq(disk)
    assert found.number >= 0
    if not found.fault:
        write_seq(disk, found.number, found.kept)
        assert read_seq(disk) == found


def number_files() -> list[bytes]:
    disk = MemoryDisk()
    write_seq(disk, 12, 11)
    return [disk.read("vault/seq"), b"7\n"]


def targets() -> list[Target]:
    questions = [to_wire(RangesGet(((b"", b"", ranges.fingerprint(NAMES[:250])), (b"a", b"b", b""))))]
    answers = [to_wire(RangesList(ranges.answer(HELD, [(b"", b"", one)]))) for one in (b"", bytes(16))]
    beside = [attributes.make_attributes(0o755, 1_800_000_000_000_000_000, b"p" * 32), b"\x80",
              b"\x82\xa4mode\xcd\x01\xa4\xa5x-new\x01"]
    return [
        Target("attributes", beside, beside_a_file, ()),
        Target("ranges", [*questions, *answers], compared),
        Target("bulk", [bulk.encode_request(bulk.PackRequest(b"n" * 32, 65_536)), bulk.encode_answer(65_536),
                        bulk.encode_answer(None)], on_a_bulk_connection),
        Target("ledger", ledgers(), ledger, (), dress=checked, inner=[ledgers()[0][:-32]]),
        Target("number file", number_files(), number_file, ()),
    ]
