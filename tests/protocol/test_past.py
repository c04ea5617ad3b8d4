"""The past of versions: chunks of what was replaced, read strictly, walked in order, told apart exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical, trees
from hinet_protocol.attributes import with_past
from hinet_protocol.errors import TreeMalformed
from hinet_protocol.past import (
    decode_past,
    encode_past,
    includes,
    moved_attributes,
    moved_to,
    past_of,
    past_rows_max,
    walk,
)
from hinet_protocol.trees import Version, next_version

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "6-trees.json").read_text())
A, B = b"A" * 32, b"B" * 32


def version(device: bytes = A, counter: int = 1, content: bytes = b"x", **more: Any) -> Version:
    return Version(device, counter, (), (), more.pop("time", 0), digest=content.ljust(32, b"."), size=len(content),
                   **more)


class Shelf:
    """Chunks by their ids, as the packs hold them, and edits that remember what they replaced."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.opened: list[bytes] = []

    def read(self, chunk: bytes) -> Any:
        self.opened.append(chunk)
        return decode_past(self.chunks[chunk]) if chunk in self.chunks else None

    def edit(self, name: bytes, new: Version, *replaced: Version, under: bytes = b"") -> Version:
        made = next_version(replaced, new, replaced)
        if replaced:
            raw = encode_past((under or name, one) for one in replaced)
            chunk = trees.blake3(raw).digest()
            self.chunks[chunk] = raw
            made = replace(made, attributes=with_past(made.attributes, chunk))
        return made


names_st = st.binary(min_size=1, max_size=20)
rows_st = st.lists(st.tuples(names_st, st.builds(version, st.sampled_from([A, B]), st.integers(1, 2**40),
                                                 st.binary(max_size=32), time=st.integers(0, 2**40))),
                   min_size=1, max_size=20)


@given(rows_st)
def test_rows_come_back_sorted_once_and_canonical(rows: Any) -> None:
    raw = encode_past(rows)
    found = decode_past(raw)
    assert set(found) == set(rows)
    assert len(found) == len(set(rows))
    assert encode_past(reversed(rows)) == raw
    assert raw == canonical.encode(["past", 1, [[name, one.row()] for name, one in found]])


@given(rows_st, st.data())
def test_a_changed_past_is_refused_or_means_something_valid(rows: Any, data: Any) -> None:
    raw = bytearray(encode_past(rows))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        again = decode_past(bytes(raw))
    except TreeMalformed:
        return
    assert encode_past(again) == bytes(raw)


@given(st.binary(max_size=400))
def test_random_bytes_are_no_past(raw: bytes) -> None:
    with pytest.raises(TreeMalformed):
        decode_past(raw)


ROW = [b"a", version().row()]


@pytest.mark.parametrize("value", [
    ["past", 1, []], ["past", 2, [ROW]], ["page", 1, [ROW]], ["past", 1, [[b"", version().row()]]],
    ["past", 1, [[b"n" * 4_097, version().row()]]], ["past", 1, [ROW, ROW]],
    ["past", 1, [[b"b", version().row()], ROW]], ["past", 1, [[b"a", [version().row()]]]], ["past", 1, [[b"a"]]],
    ["past", 1, [[b"%03d" % number, version().row()] for number in range(past_rows_max + 1)]],
    ["past", 1, [[b"%03d" % number, replace(version(), chunks=bytes(32_768)).row()] for number in range(64)]],
    ["past", 1, [["a", version().row()]]], ["past", 1, {"a": 1}], "past",
])
def test_malformed_pasts_are_refused(value: Any) -> None:
    with pytest.raises(TreeMalformed):
        decode_past(canonical.encode(value))


def test_more_rows_or_bytes_than_fit_are_cut_and_none_are_an_error() -> None:
    assert len(decode_past(encode_past((b"%03d" % number, version()) for number in range(300)))) == past_rows_max
    long = replace(version(), chunks=bytes(32_768))
    assert 1 < len(decode_past(encode_past((b"%03d" % number, long) for number in range(200)))) < 64
    with pytest.raises(ValueError, match="at least one"):
        encode_past([])


def test_a_walk_gives_every_version_once_newest_first_and_goes_on_under_the_old_name() -> None:
    shelf = Shelf()
    first = shelf.edit(b"old", version(time=10))
    second = shelf.edit(b"new", version(A, 2, b"2", time=20), first, under=b"old")
    left = shelf.edit(b"new", version(A, 3, b"3", time=30), second)
    right = shelf.edit(b"new", version(B, 1, b"4", time=25), second)
    settled = shelf.edit(b"new", version(B, 2, b"5", time=40), left, right)
    steps = list(walk([(b"new", settled)], shelf.read, 100))
    assert [(step.name, step.version) for step in steps] == [
        (b"new", settled), (b"new", left), (b"new", right), (b"new", second), (b"old", first)]
    assert not any(step.ends for step in steps)
    assert len(shelf.opened) == 4


def test_a_walk_reads_no_further_than_it_is_asked_to() -> None:
    shelf = Shelf()
    last = shelf.edit(b"n", version())
    for number in range(2, 50):
        last = shelf.edit(b"n", version(A, number, b"%d" % number, time=number), last)
    steps = walk([(b"n", last)], shelf.read, 100)
    assert [next(steps).version.counter for _ in range(3)] == [49, 48, 47]
    assert len(shelf.opened) == 3


def test_clocks_do_not_put_a_version_before_one_that_replaced_it() -> None:
    shelf = Shelf()
    first = shelf.edit(b"n", version(time=10**12))
    second = shelf.edit(b"n", version(A, 2, b"2", time=50), first)
    third = shelf.edit(b"n", version(A, 3, b"3", time=70), second)
    found = [(step.version, step.time) for step in walk([(b"n", third)], shelf.read, 60)]
    assert found == [(third, 60), (second, 50), (first, 50)]


def test_a_past_that_is_not_held_ends_visibly() -> None:
    shelf = Shelf()
    first = shelf.edit(b"n", version())
    second = shelf.edit(b"n", version(A, 2, b"2"), first)
    shelf.chunks.clear()
    assert [step.ends for step in walk([(b"n", second)], shelf.read, 9)] == [True]
    unkept = next_version((first,), version(A, 2, b"2"))
    assert past_of(unkept) is None
    assert [step.ends for step in walk([(b"n", unkept)], shelf.read, 9)] == [True]
    assert [step.ends for step in walk([(b"n", first)], shelf.read, 9)] == [False]


def test_a_past_tells_twins_of_one_number_apart() -> None:
    """Two machines with one device key write the same number; who edits one of the two has not seen the other."""
    shelf = Shelf()
    base = shelf.edit(b"n", version())
    one, twin = shelf.edit(b"n", version(A, 2, b"1"), base), shelf.edit(b"n", version(A, 2, b"2"), base)
    newer = shelf.edit(b"n", version(A, 3, b"3"), one)
    newest = shelf.edit(b"n", version(B, 1, b"4"), newer)
    assert newest.replaces(one)
    assert newest.replaces(twin)
    for later in (newer, newest):
        assert includes(later, one, shelf.read) is True
        assert includes(later, base, shelf.read) is True
        assert includes(later, twin, shelf.read) is False
    assert includes(newest, one, shelf.read, chunks_max=1) is None
    shelf.chunks.clear()
    assert includes(newest, twin, shelf.read) is None


def test_a_removal_says_where_the_file_went_if_the_name_fits() -> None:
    def removal(attributes: bytes) -> Version:
        return Version(A, 1, (), (), 0, deleted=True, attributes=attributes)

    assert moved_to(removal(moved_attributes(b"new\xff"))) == b"new\xff"
    assert moved_to(removal(with_past(moved_attributes(b"new"), b"p" * 32))) == b"new"
    assert moved_to(removal(with_past(moved_attributes(b"n" * 4_096), b"p" * 32))) is None
    assert moved_to(replace(version(), attributes=moved_attributes(b"new"))) is None, "an edit went nowhere"
    for odd in (b"", b"\xc1", b"\x90", canonical.encode({"moved": "text"}), canonical.encode({"moved": b""})):
        assert moved_to(removal(odd)) is None


def test_the_vectors_hold() -> None:
    def read_version(row: dict[str, Any]) -> Version:
        def dots(rows: Any) -> tuple[tuple[bytes, int], ...]:
            return tuple((bytes.fromhex(key), counter) for key, counter in rows)

        binary = {key: bytes.fromhex(row[key]) for key in ("device", "digest", "chunks", "attributes")}
        return Version(**{**row, **binary, "seen": dots(row["seen"]), "beside": dots(row["beside"])})

    known = {key: read_version(row) for key, row in VECTORS["versions"].items()}
    assert VECTORS["pasts"]
    for one in VECTORS["pasts"]:
        rows = [(bytes.fromhex(name), known[key]) for name, key in one["rows"]]
        assert encode_past(rows).hex() == one["raw"]
        assert decode_past(bytes.fromhex(one["raw"])) == tuple(rows)
    for name, raw in VECTORS["moved"]:
        assert moved_attributes(bytes.fromhex(name)).hex() == raw
        gone = Version(A, 1, (), (), 0, deleted=True, attributes=bytes.fromhex(raw))
        assert moved_to(gone) == bytes.fromhex(name)
    for key, text in VECTORS["version_hashes"].items():
        assert trees.version_hash(known[key]).hex() == text
