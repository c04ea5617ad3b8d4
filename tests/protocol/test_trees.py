"""Trees: merging without clocks or luck, pages that agree, strict reading."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hinet_protocol import canonical, trees
from hinet_protocol.errors import LimitError, TreeMalformed
from hinet_protocol.trees import Version, Versions, merge_trees, merge_versions, next_version, shown

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "6-trees.json").read_text())
A, B, C = b"A" * 32, b"B" * 32, b"C" * 32


def version(device: bytes = A, counter: int = 1, content: bytes = b"x", **more: Any) -> Version:
    return Version(device, counter, (), (), more.pop("time", 0), digest=content.ljust(32, b"."), size=len(content),
                   **more)


class Device:
    """A device that edits and merges trees as the node does."""

    def __init__(self, key: bytes) -> None:
        self.key, self.counter = key, 0
        self.tree: dict[bytes, Versions] = {}

    def edit(self, name: bytes, content: bytes, *, deleted: bool = False, settle: int = 0) -> Version:
        self.counter += 1
        before = self.tree.get(name, ())
        new = (Version(self.key, self.counter, (), (), 0, deleted=True) if deleted
               else version(self.key, self.counter, content))
        new = next_version(before, new, before[1:1 + settle])
        trees.merge_into(self.tree, {name: (new,)})
        return new


steps = st.lists(st.tuples(st.sampled_from(["edit", "delete", "settle", "merge"]), st.integers(0, 2),
                           st.integers(0, 2), st.sampled_from([b"n", b"m"])), max_size=30)


def play(moves: list[tuple[str, int, int, bytes]]) -> tuple[list[Device], list[dict[bytes, Versions]], list[Version]]:
    """A history of three devices: the devices, every state that was seen, every version that was written."""
    devices = [Device(key) for key in (A, B, C)]
    states, written = [], []
    for number, (what, at, other, name) in enumerate(moves):
        device = devices[at]
        if what == "merge":
            trees.merge_into(device.tree, devices[other].tree)
        else:
            written.append(device.edit(name, b"%d" % number, deleted=what == "delete", settle=int(what == "settle")))
        states.append(dict(device.tree))
    return devices, states, written


@given(steps, st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_order_grouping_or_repetition(moves: Any, random: Any) -> None:
    _, states, _ = play(moves)
    whole = merge_trees(states)
    shuffled = states * 2
    random.shuffle(shuffled)
    cut = random.randint(0, len(shuffled))
    assert merge_trees([merge_trees(shuffled[:cut]), merge_trees(shuffled[cut:])]) == whole
    assert merge_trees([whole, whole]) == whole
    assert shown(merge_trees(shuffled)) == shown(whole)


@given(steps)
def test_no_version_is_lost_unless_somebody_who_had_it_replaced_it(moves: Any) -> None:
    devices, _, written = play(moves)
    whole = merge_trees(device.tree for device in devices)
    left = {item for versions in whole.values() for item in versions}
    for item in written:
        if item not in left:
            assert any(other.has_seen(item.dot) for other in written)
    for device in devices:  # what a device wrote last and nobody replaced is there
        mine = [item for item in written if item.device == device.key]
        assert not mine or mine[-1] in left or any(other.has_seen(mine[-1].dot) for other in written)


@given(steps)
def test_a_new_edit_is_the_one_shown_and_leaves_other_edits_beside_it(moves: Any) -> None:
    devices, _, _ = play(moves)
    device = devices[0]
    before = device.tree.get(b"n", ())
    new = device.edit(b"n", b"newest")
    assert device.tree[b"n"][0] == new
    assert set(device.tree[b"n"][1:]) == {item for item in before[1:] if not item.deleted}
    # And it stays so after one more edit elsewhere.
    trees.merge_into(devices[1].tree, device.tree)
    others = set(devices[1].tree[b"n"][1:])
    devices[1].edit(b"n", b"newer still")
    assert {item for item in devices[1].tree[b"n"][1:] if not item.deleted} == {
        item for item in others if not item.deleted}


def test_an_edit_survives_later_edits_by_its_own_device_beside_it() -> None:
    """The writer's counters go on, so a vector alone would claim that its earlier, still open edit was replaced."""
    for contents in itertools.permutations((b"1", b"2")):
        left, right = Device(A), Device(B)
        left.edit(b"n", b"base")
        trees.merge_into(right.tree, left.tree)
        both = {left.edit(b"n", contents[0]), right.edit(b"n", contents[1])}
        trees.merge_into(left.tree, right.tree)
        loser = left.tree[b"n"][1]
        for round_number in range(4):
            for device, other in ((left, right), (right, left)):
                new = device.edit(b"n", b"later %d" % round_number)
                trees.merge_into(other.tree, device.tree)
                assert left.tree[b"n"] == right.tree[b"n"] == (new, loser)
        assert loser in both
        left.edit(b"n", b"settled", settle=1)
        trees.merge_into(right.tree, left.tree)
        assert len(right.tree[b"n"]) == 1


@given(steps)
def test_every_concurrent_edit_is_shown_under_a_name_of_its_own(moves: Any) -> None:
    devices, _, _ = play(moves)
    whole = merge_trees(device.tree for device in devices)
    alive = sum(not item.deleted for versions in whole.values() for item in versions)
    assert len(shown(whole)) == alive
    for versions in whole.values():
        assert not versions[0].deleted or all(item.deleted for item in versions), "an edit is shown before a deletion"


def test_time_decides_nothing() -> None:
    for times in itertools.permutations((0, 10**10)):
        left, right = version(A, time=times[0]), version(B, time=times[1])
        assert set(merge_versions([left, right])) == {left, right}
    old = version(A, time=10**12)
    assert merge_versions([old, next_version((old,), version(B, time=5))])[0].device == B


def test_two_contents_under_one_dot_are_both_kept() -> None:
    left, right = version(content=b"one"), version(content=b"other")
    assert set(merge_versions([left, right])) == {left, right}


# --- versions that lie about what they have seen ---


dots_st = st.tuples(st.sampled_from([A, B, C]), st.integers(1, 4))
liars_st = st.lists(st.builds(
    lambda dot, seen, beside, generation, deleted: Version(
        *dot, tuple(sorted(seen.items())), tuple(sorted(beside)), 0, generation, deleted, digest=b"" if deleted
        else b"d" * 32),
    dots_st, st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 4)), st.sets(dots_st, max_size=3),
    st.integers(1, 3), st.booleans(),
).filter(lambda one: not one.has_seen(one.dot)), min_size=1, max_size=8)


def test_of_two_versions_that_each_say_to_have_seen_the_other_both_stay() -> None:
    one, other = replace(version(A, 3, b"1"), seen=((B, 5),)), replace(version(B, 5, b"2"), seen=((A, 3),))
    merged = merge_trees([{b"n": (one,)}, {b"n": (other,)}])
    assert set(merged[b"n"]) == {one, other}
    assert len(shown(merged)) == 2
    assert trees.decode_page(trees.encode_page(merged, [b"n"])) == merged


def test_what_two_versions_keep_does_not_depend_on_one_that_went_before() -> None:
    """The third replaced the second, which had replaced the first; that it saw the first it does not say."""
    first, second, third = (version(A), replace(version(B), seen=((A, 1),)), replace(version(C), seen=((B, 1),)))
    for order in itertools.permutations((first, second, third)):
        left: Versions = ()
        for one in order:
            left = merge_versions((*left, one))
        assert left == merge_versions([first, second, third])


@given(liars_st, st.randoms(use_true_random=False))
def test_merging_lies_does_not_depend_on_order_grouping_or_repetition(versions: Any, random: Any) -> None:
    whole = merge_versions(versions)
    assert whole
    shuffled = versions * 2
    random.shuffle(shuffled)
    cut = random.randint(0, len(shuffled))
    assert merge_versions((*merge_versions(shuffled[:cut]), *merge_versions(shuffled[cut:]))) == whole
    for gone in set(versions) - set(whole):
        assert any(other.replaces(gone) for other in whole), "what went is replaced by what stayed"


MUTUAL = [replace(version(A, 3), seen=((B, 5),), generation=2), replace(version(B, 5), seen=((A, 3),))]


@given(liars_st, st.integers(0, 2))
@example(MUTUAL, 0)
def test_an_edit_among_lies_is_shown_replaces_nothing_unseen_and_does_not_pile_up(versions: Any, settle: int) -> None:
    before = merge_versions(versions)
    most = len(before) + 1
    for number in range(4):
        settled = before[1:1 + settle] if not number else ()
        new = next_version(before, version(b"D" * 32, 1 + number, b"%d" % number), settled)
        after = merge_versions((*before, new))
        assert after[0] == new
        for at, one in enumerate(before):
            assert one in after or at == 0 or one.deleted or any(
                one.same_content(other) for other in (before[0], *settled))
        assert len(after) <= most
        before = after


@given(steps)
def test_where_nobody_lies_what_was_seen_is_what_is_replaced(moves: Any) -> None:
    _, states, _ = play(moves)
    for left, right in itertools.combinations(states, 2):
        for name in (b"n", b"m"):
            both = {*left.get(name, ()), *right.get(name, ())}
            assert set(merge_versions(both)) == {
                one for one in both if not any(other.has_seen(one.dot) for other in both if other is not one)}


def test_the_same_content_from_two_devices_is_shown_once_and_the_next_edit_replaces_both() -> None:
    left, right, other = version(A), version(B), version(C, content=b"other")
    both = merge_versions([left, right])
    assert len(both) == 2, "merging keeps both: only what is shown is one"
    assert list(shown({b"n": both})) == [b"n"]
    new = next_version(both, version(A, 2, b"new"))
    assert merge_versions((*both, new)) == (new,)
    three = merge_versions([*both, other])
    assert len(shown({b"n": three})) == 2
    settled = next_version(three, version(A, 3, b"chosen"), trees.contents(three)[1:])
    assert merge_versions((*three, settled)) == (settled,)


@given(steps)
def test_no_two_shown_versions_of_a_name_have_one_content(moves: Any) -> None:
    devices, _, _ = play([(what, at, other, name) for what, at, other, name in moves])
    whole = merge_trees(device.tree for device in devices)
    found = [(of or name, item.size, item.digest) for name, (item, of) in shown(whole).items()]
    assert len(found) == len(set(found))
    alive = {(name, item.size, item.digest) for name, items in whole.items() for item in items if not item.deleted}
    assert set(found) == alive


def test_twins_of_a_cloned_device_have_names_of_their_own_whichever_comes_first() -> None:
    twins = [version(A, 6, b"1"), version(A, 6, b"2"), version(B, 1, b"3", generation=9)]
    names = {item: name for name, (item, _) in shown({b"n.md": merge_versions(twins)}).items()}
    for item in twins[:2]:
        assert names[item] == b"n.conflict-41414141-6-%s.md" % trees.version_hash(item).hex()[:8].encode()


def test_a_name_that_is_taken_is_not_used_for_a_conflict() -> None:
    left, right = version(A, content=b"1"), version(B, content=b"2")
    both = merge_versions([left, right])
    beside = trees.conflict_name(b"dog.md", both[1])
    tree = {b"dog.md": both, beside: (version(C),)}
    assert set(shown(tree)) == {b"dog.md", beside, beside + b"~"}


@pytest.mark.parametrize(("name", "expected"), [
    (b"a/dog.md", b"a/dog.conflict-41414141-1.md"), (b"dog", b"dog.conflict-41414141-1"),
    (b"a.b/.hidden", b"a.b/.hidden.conflict-41414141-1"), (b"x.tar.gz", b"x.tar.conflict-41414141-1.gz"),
])
def test_a_conflict_keeps_the_folder_and_the_ending(name: bytes, expected: bytes) -> None:
    assert trees.conflict_name(name, version()) == expected


# --- pages ---


versions_st = st.builds(
    lambda device, counter, seen, deleted, content, time, generation: Version(
        device, counter, tuple(sorted((key, min(high, counter - 1) if key == device else high)
                                      for key, high in seen.items() if key != device or counter > 1)),
        (), time, generation, deleted, 0 if deleted else 5, b"" if deleted else content, False,
        b"" if deleted else content),
    st.sampled_from([A, B, C]), st.integers(1, 2**62), st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 9)),
    st.booleans(), st.binary(min_size=32, max_size=32), st.integers(0, 2**40), st.integers(0, 9))
trees_st = st.dictionaries(st.binary(min_size=1, max_size=40),
                           st.lists(versions_st, min_size=1, max_size=3).map(merge_versions), max_size=20)


@given(trees_st)
def test_pages_come_back_and_are_canonical(tree: Any) -> None:
    names = sorted(tree)
    raw = trees.encode_page(tree, names)
    assert trees.decode_page(raw) == tree
    rows = [[name, [item.row() for item in tree[name]]] for name in names]
    assert raw == canonical.encode(["page", 1, rows])


@given(trees_st, st.data())
def test_a_changed_page_is_refused_or_means_something_valid(tree: Any, data: Any) -> None:
    raw = bytearray(trees.encode_page(tree, sorted(tree)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    try:
        again = trees.decode_page(bytes(raw))
    except TreeMalformed:
        return
    assert trees.encode_page(again, sorted(again)) == bytes(raw)


@given(st.binary(max_size=400))
def test_random_bytes_are_no_page_and_no_root(raw: bytes) -> None:
    for read in (trees.decode_page, trees.decode_root):
        with pytest.raises(TreeMalformed):
            read(raw)


@pytest.mark.parametrize("value", [
    ["page", 2, []], ["root", 1, []], ["page", 1, [[b"", [version().row()]]]], ["page", 1, [[b"a", []]]],
    ["page", 1, [[b"b", [version().row()]], [b"a", [version().row()]]]],
    ["page", 1, [[b"a", [replace(version(), seen=((A, 1),)).row()]]]],
    ["page", 1, [[b"a", [replace(version(), chunks=b"short").row()]]]],
    ["page", 1, [[b"a", [replace(version(), deleted=True).row()]]]],
    ["page", 1, [[b"a", [replace(version(), counter=0).row()]]]],
    ["page", 1, [[b"a", [version(B).row(), version(B, 2).row(), version(A).row()]]]],
    ["page", 1, {"a": 1}], ["page", True, []], "page",
])
def test_malformed_pages_are_refused(value: Any) -> None:
    with pytest.raises(TreeMalformed):
        trees.decode_page(canonical.encode(value))


def test_a_deep_or_padded_page_is_refused() -> None:
    for raw in (b"\x91" * 100_000, trees.encode_page({}, []) + b"\0", b"\x93\xa4page\xcc\x01\x90"):
        with pytest.raises(TreeMalformed):
            trees.decode_page(raw)


@given(trees_st)
def test_an_entry_weighs_no_less_than_its_bytes(tree: Any) -> None:
    """Else a page of well-formed entries could be too long for a reader."""
    for name, versions in tree.items():
        assert len(trees.encode_page(tree, [name])) - 10 <= trees.entry_weight(name, versions)


def test_what_versions_have_seen_ends_a_page_too() -> None:
    seen = tuple((b"%032d" % device, 2**40) for device in range(1_000))
    tree = {b"%03d" % number: (replace(version(), seen=seen),) for number in range(120)}
    pages = list(trees.cut_pages(tree, sorted(tree)))
    assert len(pages) > 3
    assert all(trees.decode_page(trees.encode_page(tree, page)) for page in pages)


def test_a_page_of_millions_of_empty_lists_takes_little_memory() -> None:
    crowded = b"\x93\xa4page\x01" + b"\xdd\x00\x00\x00\x3f" + (b"\xdc\xff\xff" + b"\x90" * 65_535) * 63
    for raw in (crowded, crowded.replace(b"\x90", b"\x80")):
        tracemalloc.start()
        with pytest.raises(TreeMalformed):
            trees.decode_page(raw)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 32 << 20


def test_a_page_that_is_not_what_its_root_says_is_refused() -> None:
    tree = {b"a": (version(),), b"b": (version(),)}
    raw = trees.encode_page(tree, sorted(tree))
    assert trees.PageRef(b"a", b"1" * 32, 2).decode(raw) == tree
    for first, entries in ((b"a", 1), (b"a", 3), (b"b", 2)):
        with pytest.raises(TreeMalformed, match="root says"):
            trees.PageRef(first, b"1" * 32, entries).decode(raw)
    with pytest.raises(TreeMalformed):
        trees.PageRef(b"a", b"1" * 32, 1).decode(trees.encode_page({}, []))


def test_a_root_of_too_many_names_is_refused() -> None:
    pages = [trees.PageRef(b"%06d" % at, b"%032d" % at, trees.page_entries_max) for at in range(513)]
    assert len(trees.decode_root(trees.encode_root(pages[:-1]))) == 512
    with pytest.raises(TreeMalformed, match=r"1050624 names, and 1048576 are the most"):
        trees.decode_root(trees.encode_root(pages))


def test_there_is_room_for_so_many_names_versions_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "names_max", 3)
    tree = {b"a": (version(),), b"b": (version(),)}
    trees.check_room(tree, {b"b": (version(B),), b"c": (version(),)})
    with pytest.raises(LimitError, match="4 names"):
        trees.check_room(tree, {b"c": (version(),), b"d": (version(),)})
    many = {b"a": tuple(version(B, number) for number in range(1, 256))}
    trees.check_room(tree, many)
    with pytest.raises(LimitError, match="257 concurrent versions"):
        trees.check_room(tree, {b"a": (*many[b"a"], version(C))})
    trees.check_room({b"a": many[b"a"]}, {b"a": (replace(version(C), seen=((B, 255),)), version(A))})
    long = {b"a": tuple(replace(version(B, number), chunks=b"c" * 32_768) for number in range(1, 65))}
    with pytest.raises(LimitError, match="2 MiB"):
        trees.check_room(tree, long)


def test_a_change_touches_few_pages() -> None:
    names = [b"folder/name-%05d" % number for number in range(20_000)]
    tree = {name: (version(),) for name in names}
    before = {tuple(page) for page in trees.cut_pages(tree, sorted(tree))}
    tree[b"folder/name-10000-new"] = (version(),)
    after = {tuple(page) for page in trees.cut_pages(tree, sorted(tree))}
    assert 40 < len(before) < 160
    assert len(after - before) <= 2
    assert sorted(name for page in after for name in page) == sorted(tree)


def test_roots_come_back_and_disorder_is_refused() -> None:
    pages = [trees.PageRef(b"a", b"1" * 32, 3), trees.PageRef(b"b", b"2" * 32, 1)]
    assert trees.decode_root(trees.encode_root(pages)) == tuple(pages)
    for wrong in (pages[::-1], [pages[0], pages[0]], [replace(pages[0], entries=0)], [replace(pages[0], chunk_id=b"")]):
        with pytest.raises(TreeMalformed):
            trees.decode_root(trees.encode_root(wrong))


def read_version(row: dict[str, Any]) -> Version:
    def dots(rows: Any) -> tuple[tuple[bytes, int], ...]:
        return tuple((bytes.fromhex(key), counter) for key, counter in rows)

    binary = {key: bytes.fromhex(row[key]) for key in ("device", "digest", "chunks", "attributes")}
    return Version(**{**row, **binary, "seen": dots(row["seen"]), "beside": dots(row["beside"])})


def test_the_vectors_hold() -> None:
    known = {key: read_version(row) for key, row in VECTORS["versions"].items()}
    for merge in VECTORS["merges"]:
        assert merge_versions(known[key] for key in merge["of"]) == tuple(known[key] for key in merge["gives"])
    for page in VECTORS["pages"]:
        tree = {bytes.fromhex(name): tuple(known[key] for key in keys) for name, keys in page["entries"]}
        assert trees.encode_page(tree, sorted(tree)).hex() == page["raw"]
        assert trees.decode_page(bytes.fromhex(page["raw"])) == tree
        seen = [[name.hex(), item, beside and beside.hex()] for name, (item, beside) in sorted(shown(tree).items())]
        assert seen == [[name, known[key], beside] for name, key, beside in VECTORS["shown"]]
    for one in VECTORS["shown_once"]:
        tree = {bytes.fromhex(name): tuple(known[key] for key in keys) for name, keys in one["entries"]}
        assert merge_trees([tree]) == tree
        assert [[name.hex(), item, beside and beside.hex()] for name, (item, beside) in sorted(shown(tree).items())] \
            == [[name, known[key], beside] for name, key, beside in one["shown"]]
    for root in VECTORS["roots"]:
        pages = [trees.PageRef(bytes.fromhex(first), bytes.fromhex(chunk), n) for first, chunk, n in root["pages"]]
        assert trees.encode_root(pages).hex() == root["raw"]
    for name, keys, weight in VECTORS["weights"]:
        assert trees.entry_weight(bytes.fromhex(name), tuple(known[key] for key in keys)) == weight
    for name, ends in VECTORS["page_ends"]:
        assert trees.ends_page(bytes.fromhex(name)) is ends
