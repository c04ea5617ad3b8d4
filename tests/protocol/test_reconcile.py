"""What is pulled from a sibling: only what verified heads need, lists first, nothing twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import limits, reconcile
from hinet_protocol.heads import Head
from hinet_protocol.reconcile import Needs, heads_behind, needs_of, plan_pull, whole_heads

names_st = st.sampled_from([bytes([number]) * 32 for number in range(12)])


def head(packs: Any = (), lists: Any = (), tree_pack: bytes = b"t" * 32) -> Head:
    return Head(b"", b"h" * 32, b"i" * 32, b"d" * 32, 1, b"", b"e" * 32, b"c" * 32, tree_pack, tuple(packs),
                tuple(lists), ((b"d" * 32, 1),), 0)


def test_a_head_needs_its_packs_its_tree_its_lists_and_what_those_name() -> None:
    held = {b"l" * 32: (b"x" * 32, b"y" * 32)}
    needs = needs_of([head([b"p" * 32], [b"l" * 32, b"m" * 32])], held.get)
    assert needs.packs == {b"p" * 32, b"t" * 32, b"l" * 32, b"m" * 32, b"x" * 32, b"y" * 32}
    assert needs.unknown_lists == {b"m" * 32}


@given(st.frozensets(names_st), st.frozensets(names_st), st.dictionaries(names_st, st.integers(-1, 200)),
       st.frozensets(names_st))
def test_a_plan_takes_what_is_needed_missing_offered_and_of_a_possible_size(
        needed: frozenset[bytes], held: frozenset[bytes], offered: dict[bytes, int], started: frozenset[bytes]) -> None:
    plan = plan_pull(Needs(needed, needed & started), held, offered, size_bytes_max=100, started=started)
    taken = [name for name, _ in plan.packs]
    assert len(set(taken)) == len(taken)
    assert set(taken) == {name for name in needed - held if 0 < offered.get(name, 0) <= 100}
    assert set(taken) | set(plan.absent) == needed - held
    assert plan.size_bytes == sum(offered[name] for name in taken)


def test_lists_come_first_then_what_was_begun() -> None:
    names = [bytes([number]) * 32 for number in range(4)]
    plan = plan_pull(Needs(frozenset(names), frozenset([names[3]])), (), dict.fromkeys(names, 1), size_bytes_max=9,
                     started=[names[2]])
    assert [name for name, _ in plan.packs] == [names[3], names[2], names[0], names[1]]


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(1, 999))
def test_pieces_cover_the_rest_once_and_in_order(size: int, begin: int, piece: int) -> None:
    rows = reconcile.pieces(size, begin, piece)
    at = begin
    for offset, length in rows:
        assert offset == at
        assert 1 <= length <= piece
        at += length
    assert at == max(size, begin)


def test_a_piece_fits_into_a_frame() -> None:
    assert reconcile.pieces_bytes == limits.pack_read_bytes_max


def test_a_head_is_whole_only_with_all_of_its_packs_and_lists() -> None:
    lists = {b"l" * 32: (b"x" * 32,)}
    needing = head([b"p" * 32], [b"l" * 32])
    everything = {b"p" * 32, b"t" * 32, b"l" * 32, b"x" * 32}
    assert whole_heads([needing], everything, lists.get) == [needing]
    for missing in everything:
        assert whole_heads([needing], everything - {missing}, lists.get) == []
        assert whole_heads([needing], everything - {missing}, lists.get, lost={missing}) == [needing]
        assert whole_heads([needing], everything - {missing}, lists.get, lost=everything - {missing}) == []
    assert whole_heads([needing], everything, {}.get) == []
    assert whole_heads([needing], everything, {}.get, lost={b"l" * 32}) == [needing]


def test_being_behind_is_counted_by_numbers() -> None:
    assert heads_behind([(b"a", 3)], {b"a": 5, b"b": 2}) == 4
    assert heads_behind([(b"a", 9)], {b"a": 5}) == 0
