"""Two sets of packs are compared by ranges: exactly the difference is found, whoever lies gets no further."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from hinet_protocol import limits, ranges
from hinet_protocol.errors import MessageError
from hinet_protocol.messages import RangesGet, RangesList, Request, Response, from_wire, to_wire

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "6-ranges.json").read_text())


def pack(number: int) -> bytes:
    return blake3(number.to_bytes(8, "big")).digest()


def find(mine: set[bytes], theirs: dict[bytes, int]) -> tuple[dict[bytes, int], int, int]:
    """What is found, in how many answers and how many bytes on the wire both ways."""
    search, held, count, size = ranges.Search(sorted(mine)), sorted(theirs.items()), 0, 0
    while question := search.next_question():
        asked = to_wire(Request(1, RangesGet(question)))
        body = from_wire(asked)
        assert isinstance(body, Request)
        assert isinstance(body.body, RangesGet)
        said = to_wire(Response(1, RangesList(ranges.answer(held, body.body.ranges))))
        assert len(said) <= limits.frame_bytes_max
        back = from_wire(said)
        assert isinstance(back, Response)
        assert isinstance(back.body, RangesList)
        search.take(back.body.answers)
        count, size = count + 1, size + len(asked) + len(said)
    assert search.lacking == mine.difference(theirs)
    return search.found, count, size


# Names that share long beginnings as well as names far apart: bounds are cut short between them.
names = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.builds(lambda fill, last: fill * 30 + last, st.sampled_from([b"\0", b"\x7f", b"\xff"]),
              st.binary(min_size=2, max_size=2)))


@settings(max_examples=150, deadline=None)
@given(st.sets(names, max_size=300), st.sets(names, max_size=300), st.sets(names, max_size=300))
def test_exactly_the_difference_is_found(both: set[bytes], only_mine: set[bytes], only_theirs: set[bytes]) -> None:
    mine, theirs = both | only_mine, {name: len(name) + name[0] for name in both | only_theirs}
    found, _, _ = find(mine, theirs)
    assert found == {name: size for name, size in theirs.items() if name not in mine}


@pytest.mark.parametrize(("mine", "theirs"), [(0, 20_000), (20_000, 0), (20_000, 20_000), (5_000, 40_000)])
def test_large_sets_are_compared_within_frames_whatever_lacks(mine: int, theirs: int) -> None:
    found, _, _ = find({pack(number) for number in range(mine)}, {pack(number): 65_536 for number in range(theirs)})
    assert found.keys() == {pack(number) for number in range(mine, theirs)}


def test_one_new_pack_among_a_hundred_thousand_costs_a_few_kilobytes_in_a_few_answers() -> None:
    mine = {pack(number) for number in range(100_000)}
    theirs = dict.fromkeys(mine, 65_536) | {pack(100_000): 65_536}
    found, count, size = find(mine, theirs)
    assert found == {pack(100_000): 65_536}
    assert count <= 4
    assert size < 10_000
    assert find(mine, dict.fromkeys(mine, 1))[2] < 300


def test_fingerprints_and_answers_are_those_of_the_vectors() -> None:
    for one in VECTORS["fingerprints"]:
        assert ranges.fingerprint([bytes.fromhex(name) for name in one["names"]]).hex() == one["fingerprint"]
    held = [(bytes.fromhex(name), size) for name, size in VECTORS["held"]]
    for one in VECTORS["answers"]:
        asked = tuple(bytes.fromhex(part) for part in one["asked"])
        assert to_wire(RangesList(ranges.answer(held, [asked]))).hex() == one["hex"]  # type: ignore[list-item]


def test_a_full_answer_fits_into_a_frame() -> None:
    many = [(pack(number), 2**63 - 1) for number in range(60_000)]
    many.sort()
    cuts = [*(many[at][0] for at in range(0, len(many), 60)), b""]
    asked = [(lower, upper, bytes(16)) for lower, upper in itertools.pairwise(cuts)]
    said = ranges.answer(many, asked)
    assert len(to_wire(Response(2**63 - 1, RangesList(said)))) <= limits.frame_bytes_max
    asked = [(lower, upper, b"") for lower, upper, _ in asked]
    assert len(to_wire(Response(2**63 - 1, RangesList(ranges.answer(many, asked))))) <= limits.frame_bytes_max


def begun(held: Sequence[bytes] = ()) -> ranges.Search:
    search = ranges.Search(sorted(held))
    search.next_question()
    return search


SIXTEEN = bytes(16)
BAD: dict[str, Any] = {
    "no row": (),
    "two rows": ((0, (), False, ()), (0, (), False, ())),
    "same with names": ((0, ((pack(1), 1),), False, ()),),
    "names with parts": ((1, (), False, ((b"", SIXTEEN),)),),
    "out of order": ((1, ((b"b" * 32, 1), (b"a" * 32, 1)), False, ()),),
    "twice": ((1, ((b"b" * 32, 1), (b"b" * 32, 1)), False, ()),),
    "nothing and more": ((1, (), True, ()),),
    "one part": ((2, (), False, ((b"", SIXTEEN),)),),
    "an open end": ((2, (), False, ((b"a", SIXTEEN), (b"b", SIXTEEN))),),
    "parts out of order": ((2, (), False, ((b"b", SIXTEEN), (b"a", SIXTEEN), (b"", SIXTEEN))),),
    "an empty part": ((2, (), False, ((b"", SIXTEEN), (b"", SIXTEEN))),),
    "parts and more": ((2, (), True, ((b"b", SIXTEEN), (b"", SIXTEEN))),),
}


@pytest.mark.parametrize("answers", BAD.values(), ids=BAD)
def test_an_answer_that_can_not_be_is_refused(answers: Any) -> None:
    with pytest.raises(MessageError):
        begun().take(answers)


def test_names_and_parts_outside_the_range_are_refused() -> None:
    for second in ((1, ((b"\xf0" * 32, 1),), False, ()), (2, (), False, ((b"\xf0", SIXTEEN), (b"", SIXTEEN)))):
        search = begun([b"a" * 32])
        search.take(((2, (), False, ((b"b", SIXTEEN), (b"", ranges.fingerprint([])))),))
        assert search.next_question()[0][:2] == (b"", b"b")
        with pytest.raises(MessageError):
            search.take((second,))


def test_a_sibling_that_splits_without_end_is_left_after_twelve_times() -> None:
    search, splits = begun(), 0

    def split(lower: bytes) -> Any:
        return 2, (), False, ((lower + b"\1", ranges.fingerprint([])), (b"", SIXTEEN))

    search.take((split(b""),))
    while splits < 11:
        splits += 1
        search.take(tuple(split(lower) for lower, _, _ in search.next_question()))
    last = tuple(split(lower) for lower, _, _ in search.next_question())
    with pytest.raises(MessageError, match="splits"):
        search.take(last)


def test_a_sibling_that_lists_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "range_answers_max", 50)
    search = begun()
    for number in range(1, 51):
        search.take(((1, ((number.to_bytes(32, "big"), 1),), True, ()),))
        search.next_question()
    with pytest.raises(MessageError, match="no end"):
        search.take(((1, ((b"\1" * 32, 1),), True, ()),))
    monkeypatch.setattr(limits, "ranges_found_max", 10)
    with pytest.raises(MessageError, match="more packs"):
        begun().take(((1, tuple((number.to_bytes(32, "big"), 1) for number in range(11)), False, ()),))


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.tuples(names, st.integers(0, 9)), max_size=4).map(tuple),
                          st.booleans(), st.lists(st.tuples(st.binary(max_size=33), st.just(SIXTEEN)),
                                                  max_size=4).map(tuple)), max_size=3), st.sets(names, max_size=40))
def test_whatever_is_answered_ends_in_a_message_error_or_a_bounded_search(answers: Any, held: set[bytes]) -> None:
    search = begun(held)
    try:
        search.take(tuple(answers))
    except MessageError:
        return
    assert len(search.next_question()) <= 4 * len(answers)
    assert search.found.keys().isdisjoint(held)
