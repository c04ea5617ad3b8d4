"""Pages kept up by changes are the pages of the whole tree."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hinet_node.vault.pages import PageTable
from hinet_protocol.trees import Version, cut_pages

names_st = st.sets(st.integers(0, 6_000).map(lambda number: b"%d" % number), max_size=60)


def version(weight: int) -> Version:
    return Version(b"A" * 32, 1, (), (), 0, chunks=bytes(32 * weight))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(names_st, st.sampled_from([0, 1, 900])), min_size=1, max_size=5))
def test_pages_after_any_changes_are_those_of_the_whole_tree(changes: list[tuple[set[bytes], int]]) -> None:
    tree = {b"base-%d" % number: (version(1),) for number in range(700)}
    table = PageTable()
    table.update(tree)
    for names, weight in changes:
        tree.update({name: (version(weight),) for name in names})
        table.touch(names)
        assert [page.names for page in table.update(tree)] == list(cut_pages(tree, sorted(tree)))


def test_only_touched_pages_are_sealed_anew() -> None:
    tree = {b"base-%d" % number: (version(1),) for number in range(5_000)}
    table = PageTable()
    for page in table.update(tree):
        page.chunk_id = b"c" * 32
    tree[b"base-77"] = (version(2),)
    table.touch([b"base-77"])
    again = table.update(tree)
    assert len(again) > 10
    assert [b"base-77" in page.names for page in again if page.chunk_id is None] == [True]
    table.forget()
    assert all(page.chunk_id is None for page in table.update(tree))
