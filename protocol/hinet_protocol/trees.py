"""Trees: which files the vault holds, in which versions, and how the views of several devices merge. SPEC.md, 6.3.

A tree is a map from names (bytes, kept as they are) to the versions of that file. It is cut into pages at names whose
hash says so, so that equal trees have equal pages whoever wrote them; a root lists the pages. Pages and roots are
chunks: nothing of this is ever seen without the epoch's key. Leaves sealing to `packs`, signing to `heads`, versions
that were replaced to `past`.

Merging is a join: every version stays unless another one has seen it and all that it has seen. A version is named by
its dot (the device that wrote it and that device's counter) and says which dots it has seen: a vector, less the
concurrent edits that it stands `beside`. Order, repetition and clocks do not matter, nor do lies about what was seen:
of any versions at least one stays, and all devices keep the same ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack
from blake3 import blake3

from hinet_protocol.attributes import attributes_bytes_max, no_attributes
from hinet_protocol.errors import LimitError, TreeMalformed

name_bytes_max = 4_096
names_max = 1_048_576
versions_max = 256
name_weight_max = 2 << 20
tree_bytes_max = 512 << 20
vector_devices_max = 1_024
page_entries_max = 2_048
page_bytes_target = 1 << 20
page_bytes_max = 4 << 20
pages_max = 65_536
lists_max = 131_072
chunks_direct_max = 1_024
_PAGE, _ROOT = "page", "root"

Dot = tuple[bytes, int]
"""Device public key and counter: the name of one version."""
Vector = tuple[tuple[bytes, int], ...]
"""Device public key -> counter, as sorted rows: every dot of that device up to the counter."""


def join(vectors: Iterable[Vector]) -> Vector:
    """The smallest vector that has seen all of these."""
    highest: dict[bytes, int] = {}
    for vector in vectors:
        for device, counter in vector:
            if counter > highest.get(device, 0):
                highest[device] = counter
    return tuple(sorted(highest.items()))


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one file.

    `device` and `counter` are its dot; the counter is the number of the head that the device first put it into. `seen`
    and `beside` are as the module says; a dot beside is one of a concurrent edit that `seen` would cover. `chunks` is
    chunk ids of 32 bytes, one after the other; with `indirect` they name CHUNK_LIST chunks that hold such ids
    themselves (files of more than 1,024 chunks). `generation` is one more than that of all versions that the writer
    saw under this name: the highest is the one shown. A deletion is a version too: `deleted`, without content.
    `attributes` is a map that `attributes` reads and makes, kept as it came.
    """

    device: bytes
    counter: int
    seen: Vector
    beside: tuple[tuple[bytes, int], ...]
    time: int
    generation: int = 1
    deleted: bool = False
    size: int = 0
    digest: bytes = b""
    indirect: bool = False
    chunks: bytes = b""
    attributes: bytes = no_attributes

    @property
    def dot(self) -> Dot:
        return self.device, self.counter

    def has_seen(self, dot: Dot) -> bool:
        """Whether its writer says to have seen the version with this dot, and does not leave it beside."""
        return dot not in self.beside and any(key == dot[0] and counter >= dot[1] for key, counter in self.seen)

    def replaces(self, other: Version) -> bool:
        """Whether it has seen the other version and everything that the other one has seen.

        An honest writer's version does so for all that it has seen. This is an order (no version replaces itself, and
        what replaces a replacing one replaces the replaced one too) whatever anybody writes, which having seen is not.
        """
        if not self.has_seen(other.dot) or any(other.has_seen(dot) for dot in self.beside):
            return False
        numbers = dict(self.seen)
        return all(numbers.get(device, 0) >= counter for device, counter in other.seen)

    def chunk_ids(self) -> Iterator[bytes]:
        """The ids in `chunks`, in order."""
        return (self.chunks[at:at + 32] for at in range(0, len(self.chunks), 32))

    def row(self) -> list[Any]:
        """The canonical row; its encoding is what the version's rank is taken from."""
        return [self.device, self.counter, [list(pair) for pair in self.seen], [list(dot) for dot in self.beside],
                self.time, self.generation, self.deleted, self.size, self.digest, self.indirect, self.chunks,
                self.attributes]

    def same_content(self, other: Version) -> bool:
        return (self.deleted, self.size, self.digest) == (other.deleted, other.size, other.digest)


Versions = tuple[Version, ...]
Tree = Mapping[bytes, Versions]


@functools.lru_cache(maxsize=65_536)
def version_hash(version: Version) -> bytes:
    """BLAKE3 of the encoded row (32 bytes): what tells this version from every other one."""
    return blake3(pack_rows(version.row())).digest()


def _rank(version: Version) -> tuple[bool, int, bytes]:
    return version.deleted, -version.generation, version_hash(version)


def merge_versions(versions: Iterable[Version]) -> Versions:
    """What is left of these versions: none that another one replaces, none twice. The first is the one shown under
    the file's own name: an edit before a deletion, then the highest generation, then the lowest hash; never by time.
    The order is the same on every device."""
    distinct = list(dict.fromkeys(versions))
    if len(distinct) < 2:
        return tuple(distinct)
    left = [one for one in distinct
            if not any(other.replaces(one) for other in distinct if other is not one)]
    return tuple(sorted(left, key=_rank))


def merge_trees(trees: Iterable[Tree]) -> dict[bytes, Versions]:
    """The join of several trees; a new dict."""
    merged: dict[bytes, Versions] = {}
    for tree in trees:
        merge_into(merged, tree)
    return merged


def merge_into(merged: dict[bytes, Versions], tree: Tree) -> list[bytes]:
    """Join `tree` into `merged` in place; the names whose versions changed."""
    changed = []
    for name, versions in tree.items():
        before = merged.get(name)
        if before == versions:
            continue
        after = merge_versions((*before, *versions)) if before else versions
        if after != before:
            merged[name] = after
            changed.append(name)
    return changed


def check_room(tree: Tree, more: Tree) -> None:
    """Whether `more` can be merged into `tree` and the result still be written as a tree that others can read.

    Raises LimitError for more than 1,048,576 names (deleted ones count), or a name with more than 256 versions or of
    more than 2 MiB.
    """
    names = len(tree) + sum(name not in tree for name in more)
    if names > names_max:
        raise LimitError(f"The vault would hold {names} names; {names_max}, deleted ones included, are the most.")
    for name, versions in more.items():
        together = (*tree.get(name, ()), *versions)
        if len(together) <= versions_max and entry_weight(name, together) <= name_weight_max:
            continue
        merged = merge_versions(together)
        if len(merged) > versions_max or entry_weight(name, merged) > name_weight_max:
            raise LimitError(f"The file {name.decode('utf-8', 'backslashreplace')[:100]!r} would have {len(merged)} "
                             f"concurrent versions; {versions_max} of 2 MiB together are the most.")


def shown(tree: Tree) -> dict[bytes, tuple[Version, bytes | None]]:
    """What a person sees: name -> version and, for a concurrent edit, the name it competes for."""
    found: dict[bytes, tuple[Version, bytes | None]] = {
        name: (versions[0], None) for name, versions in tree.items() if not versions[0].deleted}
    found.update(shown_beside(tree, tree))
    return found


def shown_beside(tree: Tree, names: Iterable[bytes]) -> dict[bytes, tuple[Version, bytes]]:
    """The concurrent edits of these names: name shown -> version and the name it competes for.

    The first version has the name itself; each other one with a content of its own is shown beside it as
    `note.conflict-<8 digits of the device key>-<counter>.md`, with `~` added while that name is taken.
    """
    extra = [(name, version) for name in names for version in contents(tree[name])[1:]]
    found: dict[bytes, tuple[Version, bytes]] = {}
    for name, version in sorted(extra, key=lambda pair: (pair[0], _rank(pair[1]))):
        beside = conflict_name(name, version, tree[name])
        while beside in found or (beside in tree and not tree[beside][0].deleted):
            beside += b"~"
        found[beside] = (version, name)
    return found


def contents(versions: Versions) -> Versions:
    """The edits among the versions of one name, in their order, each content once: what a person has to choose from.
    Two devices that wrote the same bytes do not disagree."""
    found: dict[tuple[int, bytes], Version] = {}
    for version in versions:
        if not version.deleted:
            found.setdefault((version.size, version.digest), version)
    return tuple(found.values())


def conflict_name(name: bytes, version: Version, versions: Versions = ()) -> bytes:
    """The name beside `name` that a concurrent edit is shown under. Where a cloned device wrote two of `versions` with
    one number, the name tells their contents apart."""
    stem, ending = split_ending(name)
    mark = b".conflict-%s-%d" % (version.device.hex()[:8].encode(), version.counter)
    if sum(other.dot == version.dot for other in versions) > 1:
        mark += b"-" + version_hash(version).hex()[:8].encode()
    return stem + mark + ending


def split_ending(name: bytes) -> tuple[bytes, bytes]:
    """A name before and from the last dot of its last part; a dot in front belongs to the name."""
    folder, slash, last = name.rpartition(b"/")
    stem, dot, ending = last.rpartition(b".")
    return (folder + slash + stem, dot + ending) if stem else (name, b"")


# --- pages -----------------------------------------------------------------------------------------------------------


def cut_pages(tree: Tree, names: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Names of the tree, sorted, cut into pages: after each name whose hash begins with a zero byte, else after 2,048
    names or about 1 MiB of chunk ids. Equal trees are cut alike, and a change moves few borders. The cut depends on
    nothing before the page, so it may begin at the first name of any page."""
    page: list[bytes] = []
    weight = 0
    for name in names:
        page.append(name)
        weight += entry_weight(name, tree[name])
        if ends_page(name) or len(page) >= page_entries_max or weight >= page_bytes_target:
            yield page
            page, weight = [], 0
    if page:
        yield page


def is_closed(tree: Tree, page: Sequence[bytes]) -> bool:
    """Whether a page that was cut ends where it does whatever name follows."""
    return (ends_page(page[-1]) or len(page) >= page_entries_max
            or sum(entry_weight(name, tree[name]) for name in page) >= page_bytes_target)


def entry_weight(name: bytes, versions: Versions) -> int:
    """No less than the bytes of the entry, so that a page stays below its limit whatever versions have seen."""
    return len(name) + sum(160 + len(version.chunks) + len(version.attributes)
                           + 48 * (len(version.seen) + len(version.beside)) for version in versions)


generation_max = 2**63 - 1


@functools.lru_cache(maxsize=16_384)
def ends_page(name: bytes) -> bool:
    """Whether a page ends after this name: on average after every 256th."""
    return blake3(name).digest(1)[0] == 0


def encode_page(tree: Tree, names: Sequence[bytes]) -> bytes:
    """The plaintext of one page chunk."""
    return pack_rows([_PAGE, 1, [[name, [version.row() for version in tree[name]]] for name in names]])


def decode_page(raw: bytes) -> dict[bytes, Versions]:
    """The entries of one page. Raises TreeMalformed."""
    entries = open_rows(raw, _PAGE, page_entries_max)
    found: dict[bytes, Versions] = {}
    last = b""
    for entry in entries:
        _require(isinstance(entry, list) and len(entry) == 2, "an entry is no pair")
        name, rows = entry
        _require(isinstance(name, bytes) and 1 <= len(name) <= name_bytes_max, "a name has a wrong length")
        _require(name > last, "names are not sorted")
        _require(isinstance(rows, list) and 1 <= len(rows) <= versions_max, "a file has no or too many versions")
        versions = tuple(version_of_row(row) for row in rows)
        _require(entry_weight(name, versions) <= name_weight_max, "the versions of a file are too long")
        _require(len(versions) == 1 or merge_versions(versions) == versions, "versions are not in merged order")
        found[name] = versions
        last = name
    return found


@dataclass(frozen=True, slots=True)
class PageRef:
    """Where a page begins, which chunk it is, and how many names it has."""

    first: bytes
    chunk_id: bytes
    entries: int

    def decode(self, raw: bytes) -> dict[bytes, Versions]:
        """The entries of this page. Raises TreeMalformed, also for another page than the root says."""
        page = decode_page(raw)
        _require(len(page) == self.entries and next(iter(page)) == self.first, "a page is not what its root says")
        return page


def encode_root(pages: Sequence[PageRef]) -> bytes:
    """The plaintext of the root chunk."""
    return pack_rows([_ROOT, 1, [[page.first, page.chunk_id, page.entries] for page in pages]])


def decode_root(raw: bytes) -> tuple[PageRef, ...]:
    """The pages of a tree. Raises TreeMalformed."""
    found: list[PageRef] = []
    last = b""
    for row in open_rows(raw, _ROOT, pages_max):
        _require(isinstance(row, list) and len(row) == 3, "a page row has a wrong form")
        first, chunk, entries = row
        _require(isinstance(first, bytes) and last < first and len(first) <= name_bytes_max, "pages are not sorted")
        _require(isinstance(chunk, bytes) and len(chunk) == 32, "a page has no chunk id")
        _require(type(entries) is int and 1 <= entries <= page_entries_max, "a page has a wrong count")
        found.append(PageRef(first, chunk, entries))
        last = first
    _require(len({page.chunk_id for page in found}) == len(found), "a page is there twice")
    names = sum(page.entries for page in found)
    _require(names <= names_max, f"it has {names} names, and {names_max} are the most")
    return tuple(found)


def encode_chunk_list(ids: Sequence[bytes]) -> bytes:
    """The plaintext of one CHUNK_LIST chunk: up to 131,072 chunk ids, one after the other."""
    return b"".join(ids)


# --- strict reading --------------------------------------------------------------------------------------------------


def pack_rows(value: Any) -> bytes:
    """Canonical bytes of nested lists. The C coder gives the same bytes as `canonical.encode` where there are no maps,
    at twenty times the speed, and a page has many thousand values."""
    raw = msgpack.packb(value, use_bin_type=True)
    assert isinstance(raw, bytes)
    return raw


def open_rows(raw: bytes, kind: str, items_max: int) -> list[Any]:
    if len(raw) > page_bytes_max:
        raise TreeMalformed("A tree chunk is too large.")
    try:
        value = msgpack.unpackb(raw, raw=False, strict_map_key=True, max_map_len=0, max_ext_len=0,
                                max_array_len=pages_max, list_hook=_Lists().more, object_hook=_no_map)
        _require(pack_rows(value) == raw, "it is not written in the canonical form")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TreeMalformed(f"A tree chunk can't be read: {error}.") from None
    if not isinstance(value, list) or len(value) != 3 or value[0] != kind:
        raise TreeMalformed(f"A tree chunk is no {kind}.")
    if value[1] != 1 or type(value[1]) is not int:
        raise TreeMalformed("A tree chunk has another version; a newer hinet-node is needed to read it.")
    if not isinstance(value[2], list) or len(value[2]) > items_max:
        raise TreeMalformed("A tree chunk has no list, or one that is too long.")
    return value[2]


class _Lists:
    """Counts the lists of a chunk while they are made: a byte may be one, and take seventy bytes of memory."""

    def __init__(self) -> None:
        self._left = lists_max

    def more(self, made: list[Any]) -> list[Any]:
        self._left -= 1
        _require(self._left >= 0, f"it has more than {lists_max:,} lists")
        return made


def _no_map(made: dict[Any, Any]) -> None:
    raise TreeMalformed("A tree chunk can't be read: it holds a map.")


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise TreeMalformed(f"A tree chunk is malformed: {what}.")


def _dots(rows: Any, what: str, rows_min: int = 0) -> tuple[tuple[bytes, int], ...]:
    if rows == [] and not rows_min:  # most versions have replaced none
        return ()
    _require(isinstance(rows, list) and rows_min <= len(rows) <= vector_devices_max, f"{what} has a wrong size")
    found: list[tuple[bytes, int]] = []
    for pair in rows:
        _require(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], bytes) and len(pair[0]) == 32
                 and type(pair[1]) is int and 1 <= pair[1] < 2**63, f"{what} has a wrong row")
        found.append((pair[0], pair[1]))
    if len(found) > 1:
        _require(all(left < right for left, right in itertools.pairwise(found)), f"{what} is not sorted")
    return tuple(found)


@functools.lru_cache(maxsize=4_096)
def _shared(rows: tuple[tuple[bytes, int], ...]) -> tuple[tuple[bytes, int], ...]:
    """The same rows, made once: the versions of one head have their dot and often what they have seen in common, and a
    vault has very many."""
    return rows


def version_of_row(row: Any) -> Version:
    _require(isinstance(row, list) and len(row) == 12, "a version row has a wrong form")
    device, counter, seen, beside, time, generation, deleted, size, digest, indirect, chunks, attributes = row
    (dot,) = _shared(_dots([[device, counter]], "a dot"))
    vector = _shared(_dots(seen, "a version vector"))
    _require(len(vector) < 2 or len({key for key, _ in vector}) == len(vector),
             "a device is in a version vector twice")
    for number in (time, generation, size):
        _require(type(number) is int and 0 <= number < 2**63, "a time, generation or size has a wrong form")
    _require(isinstance(deleted, bool) and isinstance(indirect, bool), "a mark is neither true nor false")
    _require(isinstance(chunks, bytes) and len(chunks) % 32 == 0 and len(chunks) <= 32 * chunks_direct_max,
             "a list of chunks has a wrong length")
    _require(isinstance(attributes, bytes) and 1 <= len(attributes) <= attributes_bytes_max, "attributes are too long")
    if deleted:
        _require(digest == b"" and size == 0 and not chunks and not indirect, "a deletion has content")
    _require(isinstance(digest, bytes) and len(digest) == (0 if deleted else 32), "a digest has a wrong length")
    version = Version(*dot, vector, _dots(beside, "a list of dots"), time, generation, deleted, size, digest, indirect,
                      chunks, attributes)
    _require(not vector or not version.has_seen(version.dot), "a version has seen itself")
    return version


def replaced_by_edit(before: Versions, settled: Sequence[Version] = ()) -> Versions:
    """What an edit made where `before` was shown replaces: the version shown, all deletions and `settled`, and those of
    the same content as one of these, which nobody was shown."""
    chosen = [version for at, version in enumerate(before) if at == 0 or version.deleted or version in settled]
    return tuple(version for version in before if any(version.same_content(one) for one in chosen))


def next_version(before: Versions, content: Version, settled: Sequence[Version] = ()) -> Version:
    """`content` (whose device, counter and content count) as an edit made where `before` was shown.

    It replaces what `replaced_by_edit` says; other concurrent edits stay beside it until they are settled one by one.
    Its generation is above all of them, so it is the one shown. Where a faulty device left versions that say to have
    seen each other, one that can't be replaced without another that is to stay stays too.
    """
    if not before:  # a new name, as thousands are in one put
        return content if (content.seen, content.beside, content.generation) == ((), (), 1) else replace(
            content, seen=(), beside=(), generation=1)
    replaced = replaced_by_edit(before, settled)
    kept = [version for version in before if version not in replaced]
    seen = join([*(version.seen for version in replaced), tuple(version.dot for version in replaced)])
    counters = dict(seen)
    beside = {version.dot for version in kept if counters.get(version.device, 0) >= version.counter
              and not before[0].has_seen(version.dot)}
    new = replace(content, seen=seen, beside=tuple(sorted(beside)),
                  generation=min(1 + max((version.generation for version in before), default=0), generation_max))
    beside.update(version.dot for version in kept if new.replaces(version))  # none where every device is honest
    return replace(new, beside=tuple(sorted(beside)))
