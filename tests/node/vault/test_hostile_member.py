"""A member that lies: packs, trees and heads sealed and signed by the text of SPEC.md, section 6, with rightful keys.

A member may write and remove files. It must not be able to stop others from writing, to hide what they write, to use up
their memory or their disk, or to write outside a folder.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hinet_node.errors import IntegrityError, NoSpace
from hinet_protocol import heads, trees
from hinet_protocol.messages import HeadsGet, HeadsList, PackBytes, PackRead, PacksGet, PacksList, VaultChanged

EPOCH, KEY, IDENTITY = b"1" * 32, b"k" * 32, b"I" * 32
MAGIC = b"HINETPK\1"
CONTENT, PAGE, ROOT, LIST, PAST = 1, 2, 3, 4, 5


def derive(label: str, salt: bytes = b"") -> bytes:
    extracted = hmac.new(salt or bytes(32), KEY, hashlib.sha256).digest()
    return hmac.new(extracted, label.encode() + b"\1", hashlib.sha256).digest()


def chunk_id(plain: bytes) -> bytes:
    return blake3(plain, key=derive("hinet/1/epoch/chunk-id")).digest()


@dataclass
class Evil:
    """A member with rightful keys and a mind of its own. Looks like a node to the tests' `connect`."""

    member: Any
    peers: Any
    packs: dict[bytes, bytes] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)
    chunks: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        async def heads(session: Any, question: Any) -> Any:
            return HeadsList(b"?" * 32, tuple(self.heads))

        async def listed(session: Any, question: Any) -> Any:
            self.asked.append(question)
            rows = sorted({name: self.sizes.get(name, len(raw)) for name, raw in self.packs.items()}.items())
            rows = [row for row in rows if row[0] > question.after]
            return PacksList(tuple(rows[:question.limit]), len(rows) > question.limit)

        async def read(session: Any, question: Any) -> Any:
            self.asked.append(question)
            raw = self.packs[question.pack]
            return PackBytes(question.pack, question.offset, self.sizes.get(question.pack, len(raw)),
                             raw[question.offset:question.offset + question.length])

        async def nothing(session: Any, notice: Any) -> None:
            pass

        for kind, handler in ((HeadsGet, heads), (PacksGet, listed), (PackRead, read), (VaultChanged, nothing)):
            self.peers.on(kind, handler)

    def chunk(self, kind: int, plain: bytes, name: bytes | None = None) -> bytes:
        self.chunks.append((kind, plain, name))
        return name or chunk_id(plain)

    def seal(self) -> bytes:
        """A pack of all chunks so far; its name."""
        salt = blake3(b"%d" % len(self.packs)).digest()
        seal = ChaCha20Poly1305(derive("hinet/1/epoch/pack", salt))

        def sealed(number: int, kind: int, name: bytes, plain: bytes) -> bytes:
            bound = MAGIC + bytes([kind]) + struct.pack(">I", number) + name
            return seal.encrypt(number.to_bytes(12, "big"), plain, bound)

        body, rows = MAGIC + EPOCH + salt, b""
        for number, (kind, plain, lie) in enumerate(self.chunks):
            name, small = lie or chunk_id(plain), zstandard.ZstdCompressor(1).compress(plain)
            stored = min(plain, small, key=len)
            body += sealed(number, kind, name, stored)
            rows += struct.pack(">BB32sII", kind, stored is small, name, len(stored), len(plain))
        footer = struct.pack(">I", len(self.chunks)) + rows
        sealed_footer = len(footer) + 16
        padding = -(len(body) + 16 + sealed_footer + 32) % 65_536
        body += sealed(0xFFFFFFFD, 0xF2, bytes(32), bytes(padding))
        trailer = struct.pack(">QII", len(body), sealed_footer, len(self.chunks))
        raw = body + sealed(0xFFFFFFFF, 0xF0, bytes(32), footer) + sealed(0xFFFFFFFE, 0xF1, bytes(32), trailer)
        self.chunks = []
        name = blake3(raw).digest()
        self.packs[name] = raw
        return name

    def head(self, root: bytes, pack: bytes, seq: int = 1, **lies: Any) -> bytes:
        public = self.member.public
        body = {"version": 1, "identity": IDENTITY, "device": public, "seq": seq, "prev": b"", "epoch": EPOCH,
                "tree": [root, pack], "packs": [pack], "lists": [], "vector": [[public, seq]], "time": 1, **lies}
        raw_body = msgpack.packb({key: body[key] for key in sorted(body)}, use_bin_type=True)
        raw: bytes = msgpack.packb([raw_body, self.member.sign(b"vault-head", raw_body)], use_bin_type=True)
        self.heads = [*self.heads, raw]
        return raw

    def row(self, content: bytes = b"evil", **lies: Any) -> list[Any]:
        one = {"device": self.member.public, "counter": 1, "seen": [], "beside": [], "time": 1, "generation": 1,
               "deleted": False, "size": len(content), "digest": blake3(content).digest(), "indirect": False,
               "chunks": self.chunk(CONTENT, content) if content else b"", "attributes": b"\x80", **lies}
        return list(one.values())

    def tree(self, *pages: list[list[Any]], refs: list[list[Any]] | None = None) -> bytes:
        """Pages of [name, [row, …]] in one tree."""
        rows = []
        for page in pages:
            name = self.chunk(PAGE, msgpack.packb(["page", 1, page], use_bin_type=True))
            rows.append([page[0][0], name, len(page)])
        return self.chunk(ROOT, msgpack.packb(["root", 1, rows + (refs or [])], use_bin_type=True))

    def publish(self, *names: tuple[bytes, list[Any]], seq: int = 1, **lies: Any) -> None:
        root = self.tree([[name, [row]] for name, row in sorted(names)])
        self.head(root, self.seal(), seq, **lies)


@pytest.fixture
def evil(world: Any) -> Evil:
    return Evil(world.member("evil"), world.quiet_peers())


async def pulled(world: Any, victim: Any, evil: Evil, condition: Any) -> None:
    """Let the victim sync with evil until a condition holds or something is noted."""
    async with world.running(victim):
        world.connect(victim, evil)
        await world.until(lambda: condition() or victim.trouble())


def test_the_forger_of_these_tests_writes_what_the_text_says(world: Any, evil: Evil) -> None:
    """Else all that follows is refused for the wrong reason."""
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((b"a", evil.row(b"one" * 100)), (b"b", evil.row(b"")))
        await pulled(world, victim, evil, lambda: len(victim.vault.core.shown()) == 2)
        assert not victim.trouble()
        assert await victim.vault.get(b"a") == b"one" * 100
        assert (await victim.vault.verify(deep=True)).ok
    trio.run(main)


# ---- stopping or hiding what others write ----------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [2**63 - 1, 2**62])
def test_a_claim_that_all_of_a_devices_numbers_are_used_does_not_silence_it(
    world: Any, evil: Evil, claimed: int
) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        await victim.vault.put(b"mine", b"1")
        vector = sorted([[evil.member.public, 1], [victim.member.public, claimed]])
        evil.publish((b"a", evil.row()), vector=vector)
        await pulled(world, victim, evil, lambda: b"a" in victim.vault.core.shown())
        for _ in range(2):
            await victim.vault.put(b"mine", b"2" + bytes([_]))
            await victim.open()
        assert await victim.vault.get(b"mine") == b"2\1"
        assert victim.vault.core.heads.own().seq < 2**40
    trio.run(main)


def test_a_version_that_claims_to_have_seen_the_future_hides_nothing(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim, other = await world.node("victim"), await world.node("other")
        await victim.vault.put(b"note", b"first")
        future = sorted([[victim.member.public, 2**40], [other.member.public, 2**40]])
        evil.publish((b"note", evil.row(seen=future)), vector=sorted([[evil.member.public, 1]]))
        async with world.running(victim, other):
            world.connect(victim, evil)
            await world.until(lambda: bool(victim.trouble()) or
                              victim.vault.core.shown()[b"note"][0].device == evil.member.public)
            await victim.vault.put(b"note", b"second")
            await world.until(lambda: b"note" in other.vault.core.shown())
            await world.until(lambda: world.in_step(victim, other))
            for node in (victim, other):
                assert await node.vault.get(b"note") == b"second"
    trio.run(main)


def test_two_versions_that_claim_to_have_seen_each_other_both_stay_on_every_device(world: Any, evil: Evil) -> None:
    """The member writes again under a number that the victim has replaced, and says to have seen the replacement. If
    both went, the file would be lost, and with it every list of files and the tree of whoever met it."""
    async def main() -> None:
        victim, other = await world.node("victim"), await world.node("other")
        evil.publish((b"note", evil.row(b"first", counter=5)), seq=5)
        async with world.running(victim, other):
            world.connect(victim, evil)
            await world.until(lambda: b"note" in victim.vault.core.shown())
            await victim.vault.put(b"note", b"mine")
            mine = victim.vault.core.shown()[b"note"][0]
            seen = [[victim.member.public, mine.counter]]
            evil.publish((b"note", evil.row(b"again", counter=5, seen=seen)), seq=6)
            world.connect(victim, evil)
            await world.until(lambda: len(victim.vault.core.shown()) != 1)
            assert len(victim.vault.core.shown()) == 2
            await world.until(lambda: b"note" in other.vault.core.shown())
            await world.until(lambda: world.in_step(victim, other))
        for node in (victim, other):
            assert {await node.vault.get(name) for name in node.vault.core.shown()} == {b"mine", b"again"}
            await node.open()
            assert not node.trouble()
            assert len(node.vault.core.shown()) == 2
    trio.run(main)


@pytest.mark.parametrize("first", ["evil", "victim"])
def test_a_member_that_settles_anothers_head_hides_nothing_of_it(world: Any, evil: Evil, first: str) -> None:
    """Neither from members nor from keepers: whoever is not settled yet takes it up, and the victim speaks again."""
    async def main() -> None:
        victim, other = await world.node("victim"), await world.node("other")
        keeper = await world.node("keeper", keeper=True)
        await victim.vault.put(b"note", b"mine")
        evil.publish((b"a", evil.row()), settles=[victim.vault.core.heads.own().hash])
        async with world.running(other, keeper, victim) if first == "victim" else world.running(other, keeper):
            if first == "victim":
                await world.until(lambda: b"note" in other.vault.core.shown())
            for node in (other, keeper):
                world.connect(node, evil)
            await world.until(lambda: evil.member.public in {head.device for head in other.vault.core.heads.current()})
        for node in (other, keeper, victim):
            await node.open()
        async with world.running(other, keeper, victim):
            await world.until(lambda: world.in_step(other, keeper, victim))
            await world.until(lambda: set(victim.vault.core.shown()) == {b"a", b"note"})
        await other.open()
        assert await other.vault.get(b"note") == b"mine"
        assert set(victim.vault.core.store.on_disk()) <= set(keeper.vault.core.store.on_disk())
        assert not other.trouble() | victim.trouble()
    trio.run(main)


RUBBISH = {"nothing": b"", "no rows": b"\x93\xa4past\x01\x90", "zeros": bytes(4 << 20), "deep": b"\x91" * 4_000}


@pytest.mark.parametrize("lie", ["something else", *RUBBISH])
def test_a_member_that_lies_about_the_past_makes_a_conflict_at_most(world: Any, evil: Evil, lie: str) -> None:
    """It says to have replaced what the victim wrote, and its past tells of something else, or of nothing."""
    async def main() -> None:
        victim, other = await world.node("victim"), await world.node("other")
        await victim.vault.put(b"note", b"mine")
        mine = victim.vault.core.view.tree[b"note"][0]
        async with world.running(victim, other):
            await world.until(lambda: b"note" in other.vault.core.shown())
            for number in range(1, 5):
                told = RUBBISH.get(lie, msgpack.packb(["past", 1, [[b"note", evil.row(b"never")]]], use_bin_type=True))
                past = evil.chunk(PAST, told)
                row = evil.row(b"evil %d" % number, seen=[[victim.member.public, mine.counter]], counter=number,
                               generation=9 + number, attributes=msgpack.packb({"past": past}))
                evil.publish((b"note", row), seq=number, vector=sorted([
                    [evil.member.public, number], [victim.member.public, mine.counter]]))
                world.connect(victim, evil)
                await world.until(lambda number=number: (evil.member.public, number) in {
                    one.dot for one in victim.vault.core.view.tree[b"note"]})
            await world.until(lambda: world.in_step(victim, other))
        for node in (victim, other):
            shown = [await node.vault.get(name) for name in await node.names()]
            assert (b"mine" in shown) == (lie == "something else"), "else it is an edit like any other"
            assert len(shown) <= 5
            found = await node.vault.look(lambda core: list(core.history.of_file(b"note")))
            assert len(found) <= 12
            assert any(change.ends for change in found) == (lie in RUBBISH)
            assert (await node.vault.status()).head_seq <= 16
            assert not node.trouble()
    trio.run(main)


def test_the_highest_generation_does_not_make_the_next_edit_unreadable(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((b"note", evil.row(generation=2**63 - 1)))
        await pulled(world, victim, evil, lambda: b"note" in victim.vault.core.shown())
        await victim.vault.put(b"note", b"mine")
        await victim.open()
        assert not victim.trouble()
        assert await victim.vault.get(b"note") == b"mine"
    trio.run(main)


# ---- using up memory, processor and disk -----------------------------------------------------------------------------


def test_content_longer_than_its_size_is_stopped_at_the_size(world: Any, evil: Evil) -> None:
    """One chunk, named a million times over two levels, would be terabytes."""
    async def main() -> None:
        victim = await world.node("victim")
        big = evil.chunk(CONTENT, bytes(4 << 20))
        ids = evil.chunk(LIST, big * 131_072)
        evil.publish((b"bomb", evil.row(b"", size=10, indirect=True, chunks=ids * 1_024, digest=b"d" * 32)))
        await pulled(world, victim, evil, lambda: b"bomb" in victim.vault.core.shown())
        opened = []
        read = victim.vault.core.reader.read
        victim.vault.core.reader.read = lambda name: (opened.append(name), read(name))[1]
        with pytest.raises(IntegrityError):
            await victim.vault.get(b"bomb")
        assert len(opened) < 10
    trio.run(main)


def test_a_tree_with_more_names_than_fit_is_left_out_whole(
    world: Any, evil: Evil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader has itself stays, also at the next start, and can be changed; only new names are refused."""
    monkeypatch.setattr(trees, "names_max", 20)

    async def main() -> None:
        victim = await world.node("victim")
        for number in range(3):
            await victim.vault.put(b"mine %d" % number, b"1")
        evil.publish(*((b"%02d" % number, evil.row(b"")) for number in range(18)))
        await pulled(world, victim, evil, lambda: False)
        for _ in range(2):
            assert victim.trouble() == {"E_TREE_UNREADABLE"}
            assert set(victim.vault.core.shown()) == {b"mine 0", b"mine 1", b"mine 2"}
            await victim.open()
        await victim.vault.put(b"mine 0", b"2")
        for number in range(17):
            await victim.vault.put(b"new %d" % number, b"1")
        with pytest.raises(NoSpace, match="21 names") as refused:
            await victim.vault.put(b"one more", b"1")
        assert refused.value.code == "E_LIMIT"
        await victim.open()
        assert len(victim.vault.core.shown()) == 20
        assert await victim.vault.get(b"mine 0") == b"2"
    trio.run(main)


def test_a_tree_of_more_bytes_than_its_names_may_need_is_left_out(
    world: Any, evil: Evil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "tree_bytes_max", 10_000)

    async def main() -> None:
        victim = await world.node("victim")
        pages = [[[b"%d" % page, [evil.row(b"", attributes=b"." * 4_096)]]] for page in range(9)]
        evil.head(evil.tree(*pages), evil.seal())
        opened = []
        read = victim.vault.core.reader.read
        victim.vault.core.reader.read = lambda name: (opened.append(name), read(name))[1]
        await pulled(world, victim, evil, lambda: False)
        assert victim.trouble() == {"E_TREE_UNREADABLE"}
        assert len(opened) % 4 == 0, "the root and three pages, each time that it is tried"
    trio.run(main)


def test_a_page_with_more_names_than_its_root_says_is_refused(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        page = evil.chunk(PAGE, msgpack.packb(["page", 1, [[b"a", [evil.row(b"")]], [b"b", [evil.row(b"")]]]],
                                              use_bin_type=True))
        evil.head(evil.tree(refs=[[b"a", page, 1]]), evil.seal())
        await pulled(world, victim, evil, lambda: bool(victim.vault.core.shown()))
        assert victim.trouble() == {"E_TREE_UNREADABLE"}
    trio.run(main)


def test_more_versions_than_a_name_may_have_do_not_spoil_the_readers_own_tree(world: Any, evil: Evil) -> None:
    """256 concurrent versions fit into a page; with the reader's own they are 257, which nobody reads."""
    async def main() -> None:
        victim = await world.node("victim")
        await victim.vault.put(b"note", b"mine")
        rows = sorted((evil.row(b"", counter=counter) for counter in range(1, 257)),
                      key=lambda row: blake3(msgpack.packb(row, use_bin_type=True)).digest())
        evil.head(evil.tree([[b"note", rows]]), evil.seal(), seq=256)
        await pulled(world, victim, evil, lambda: len(victim.vault.core.shown()) > 1)
        await victim.vault.put(b"other", b"too")
        await victim.open()
        assert await victim.vault.get(b"note") == b"mine"
        assert await victim.vault.get(b"other") == b"too"
    trio.run(main)


def test_one_page_named_many_times_is_no_tree(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        row = evil.row()
        page = [[b"%08d" % number, [row]] for number in range(2_000)]
        name = evil.chunk(PAGE, msgpack.packb(["page", 1, page], use_bin_type=True))
        root = evil.chunk(ROOT, msgpack.packb(["root", 1, [[b"%08d" % at, name, 1] for at in range(50_000)]],
                                              use_bin_type=True))
        evil.head(root, evil.seal())
        opened = []
        read = victim.vault.core.reader.read
        victim.vault.core.reader.read = lambda name: (opened.append(name), read(name))[1]
        await pulled(world, victim, evil, lambda: False)
        assert victim.trouble() == {"E_TREE_UNREADABLE"}
        assert len(opened) < 100
    trio.run(main)


@pytest.mark.parametrize("plain", [b"", b"\xc0", b"\xdd\xff\xff\xff\xff", b"\x91" * 4_000, bytes(4 << 20)],
                         ids=["empty", "nil", "huge array", "deep", "zeros"])
@pytest.mark.parametrize("place", ["root", "page"])
def test_rubbish_for_a_tree_is_noted_and_the_rest_goes_on(world: Any, evil: Evil, plain: bytes, place: str) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        root = evil.chunk(ROOT, plain) if place == "root" else evil.tree(
            refs=[[b"a", evil.chunk(PAGE, plain), 1]])
        evil.head(root, evil.seal())
        await pulled(world, victim, evil, lambda: False)
        assert victim.trouble() == {"E_TREE_UNREADABLE"}
        await victim.vault.put(b"mine", b"still works")
        await victim.open()
        assert await victim.vault.get(b"mine") == b"still works"
    trio.run(main)


@pytest.mark.parametrize("lie", [
    {"size": 2**63}, {"size": -1}, {"counter": 0}, {"counter": 2**63}, {"digest": b""}, {"chunks": b"x"},
    {"seen": [[b"d" * 32, 0]]}, {"seen": [[b"d" * 32, 1], [b"c" * 32, 1]]}, {"beside": [[b"d", 1]]}, {"deleted": 1},
    {"time": 1.5}, {"attributes": b""}, {"generation": None}, {"indirect": True, "chunks": b"c" * 32 * 1_025},
    {"device": b"short"},
])
def test_a_version_of_another_form_is_refused_with_its_tree(world: Any, evil: Evil, lie: dict[str, Any]) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((b"a", evil.row(**lie)))
        await pulled(world, victim, evil, lambda: False)
        assert victim.trouble() == {"E_TREE_UNREADABLE"}
        assert not victim.vault.core.shown()
    trio.run(main)


@pytest.mark.parametrize("size", [10 << 30, 2**63 - 1, 0, 65_537, (64 << 20) + 65_536])
def test_a_pack_of_an_impossible_size_is_never_asked_for(world: Any, evil: Evil, size: int) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((b"a", evil.row()))
        (name,) = evil.packs
        evil.sizes[name] = size
        async with world.running(victim):
            world.connect(victim, evil)
            await world.until(lambda: len(evil.asked) > 2)
            await trio.sleep(0.05)
        assert not [question for question in evil.asked if isinstance(question, PackRead) and question.pack != name]
        assert not [question for question in evil.asked if isinstance(question, PackRead)] or size == 65_537
        assert not victim.vault.core.store.index.packs()
        assert not [path for path in victim.disk._files if "vault/p" in path]
    trio.run(main)


def test_a_list_of_packs_that_never_ends_is_left(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((b"a", evil.row()))
        evil.packs.clear()
        pages = 0

        async def endless(session: Any, question: Any) -> Any:
            nonlocal pages
            pages += 1
            first = int.from_bytes(question.after, "big") + 1
            return PacksList(tuple(((first + at).to_bytes(32, "big"), 65_536) for at in range(4)), True)

        evil.peers.handlers[PacksGet] = endless
        async with world.running(victim):
            _, there = world.connect(victim, evil)
            await world.until(lambda: pages >= 1_024)
            await trio.sleep(0.1)
            assert pages <= 2_100
            there.cut()
    trio.run(main)


def test_a_chunk_under_a_name_that_is_not_its_own_is_not_used(world: Any, evil: Evil) -> None:
    """Else one member could swap the content of another's file: the first pack that names a chunk would win."""
    async def main() -> None:
        victim = await world.node("victim")
        wanted = chunk_id(b"the truth")
        evil.chunk(CONTENT, b"a lie, just", wanted)
        evil.publish((b"a", evil.row()))
        await pulled(world, victim, evil, lambda: b"a" in victim.vault.core.shown())
        await victim.vault.put(b"truth", b"the truth")
        await victim.open()
        assert await victim.vault.get(b"truth") == b"the truth"
    trio.run(main)


@pytest.mark.parametrize("name", [b"../x", b"/etc/x", b"a/../../x", b"a\0b", b"a//b", b"./x", b".."])
def test_names_of_others_never_lead_out_of_the_folder(world: Any, evil: Evil, name: bytes, tmp_path: Any) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((name, evil.row(b"out")), (b"z", evil.row(b"in")))
        await pulled(world, victim, evil, lambda: name in victim.vault.core.shown())
        report = await victim.vault.restore(b"", tmp_path / "deep" / "folder")
        assert [one for one, _ in report.left_out] == [name], "named, and the others are written"
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["z"]
    trio.run(main)


# ---- devices that never were -----------------------------------------------------------------------------------------


def invented(count: int) -> list[bytes]:
    return [blake3(b"no device %d" % number).digest() for number in range(count)]


def test_a_vector_full_of_devices_that_never_were_keeps_nobody_from_writing(world: Any, evil: Evil) -> None:
    """The next head of whoever takes it up counts them too, and would have more rows than a head may have."""
    async def main() -> None:
        victim, other = await world.node("victim"), await world.node("other")
        await victim.vault.put(b"mine", b"1")
        vector = sorted([[evil.member.public, 1], *([name, 7] for name in invented(1_023))])
        evil.publish((b"a", evil.row()), vector=vector)
        await pulled(world, victim, evil, lambda: b"a" in victim.vault.core.shown())
        await victim.vault.put(b"mine", b"2")
        async with world.running(victim, other):
            await world.until(lambda: len(other.vault.core.shown()) == 2)
        assert await other.vault.get(b"mine") == b"2"
        await other.vault.put(b"theirs", b"3")
        assert len(other.vault.core.heads.own().vector) <= 3
    trio.run(main)


@pytest.mark.parametrize("lie", ["device", "seen"])
def test_a_version_of_a_device_that_never_was_is_left_out(world: Any, evil: Evil, lie: str) -> None:
    """Else the next edit of that file has seen more devices than anybody reads, and takes its whole page with it."""
    async def main() -> None:
        victim = await world.node("victim")
        names = invented(1_000)
        vector = sorted([[evil.member.public, 1], *([name, 7] for name in names)])
        rows = (evil.row(seen=sorted([name, 7] for name in names)) if lie == "seen" else
                evil.row(device=names[0], counter=7))
        evil.publish((b"a", rows), vector=vector)
        await pulled(world, victim, evil, lambda: False)
        assert victim.trouble() == {"E_TREE_UNREADABLE"}
        await victim.vault.put(b"a", b"mine")
        await victim.open()
        assert await victim.vault.get(b"a") == b"mine"
    trio.run(main)


# ---- lists, and what is settled --------------------------------------------------------------------------------------


def test_lists_that_name_more_packs_than_fit_into_memory_are_not_read(
    world: Any, evil: Evil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 lists of 262,144 names are sixteen million names: a gigabyte at each comparison, for ever."""
    monkeypatch.setattr("hinet_node.vault.replicate.packs_needed_max", 900)

    async def main() -> None:
        victim = await world.node("victim")
        await victim.vault.put(b"mine", b"1")
        names = []
        for number in range(4):
            raw = heads.encode_pack_list(blake3(b"%d %d" % (number, at)).digest() for at in range(300))
            names.append(blake3(raw).digest())
            evil.packs[names[-1]] = raw
        root = evil.tree([[b"a", [evil.row()]]])
        evil.head(root, evil.seal(), lists=sorted(names))
        read: list[int] = []
        before = victim.vault.core.store.read_list

        def read_list(name: bytes) -> Any:
            found = before(name)
            read.extend([1] * (found is not None))
            return found

        victim.vault.core.store.read_list = read_list
        async with world.running(victim):
            world.connect(victim, evil)
            await world.until(lambda: bool(victim.trouble()))
        assert victim.trouble() == {"E_HEAD"}
        assert read == []
        await victim.vault.put(b"mine", b"2")
        await victim.open()
        assert await victim.vault.get(b"mine") == b"2"
    trio.run(main)


def test_settling_what_others_have_not_taken_up_hides_nothing(world: Any, evil: Evil) -> None:
    """Not from whoever meets the device or anybody who has taken it up; and it makes nobody talk without end."""
    async def main() -> None:
        victim, other = await world.node("victim"), await world.node("other")
        await victim.vault.put(b"mine", b"1")
        for number in range(3):
            newest = victim.vault.core.heads.own()
            root = evil.tree([[b"a", [evil.row(counter=number + 1)]]])
            evil.head(root, evil.seal(), number + 1, settles=[newest.hash])
            evil.heads = evil.heads[-1:]
            await pulled(world, victim, evil, lambda newest=newest: victim.vault.core.heads.own() != newest)
            assert not victim.trouble()
            assert victim.vault.core.heads.own().seq <= newest.seq + 2
        async with world.running(victim, other):
            world.connect(other, evil)
            await world.until(lambda: len(other.vault.core.shown()) == 2)
        assert await other.vault.get(b"mine") == b"1"
        await victim.open()
        assert await victim.vault.get(b"mine") == b"1"
    trio.run(main)


def test_settling_heads_that_never_were_changes_nothing(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        await victim.vault.put(b"mine", b"1")
        evil.publish((b"a", evil.row()), settles=sorted(invented(64)))
        await pulled(world, victim, evil, lambda: b"a" in victim.vault.core.shown())
        assert not victim.trouble()
        await victim.vault.put(b"mine", b"2")
        assert victim.vault.core.heads.own().settles == ()
    trio.run(main)


# ---- the past --------------------------------------------------------------------------------------------------------


def past(evil: Evil, *rows: list[Any]) -> bytes:
    """A chunk of past versions; the attributes that name it."""
    packed = sorted(msgpack.packb(row, use_bin_type=True) for row in rows)
    listed = [msgpack.unpackb(row) for row in packed]
    chunk = evil.chunk(PAST, msgpack.packb(["past", 1, listed], use_bin_type=True))
    return bytes(msgpack.packb({"past": chunk}, use_bin_type=True))


def test_a_past_that_branches_at_every_step_costs_what_is_looked_at(world: Any, evil: Evil) -> None:
    """Thirty steps of eight versions, each of which names all of the step before: 8 to the 30th ways through it."""
    async def main() -> None:
        victim = await world.node("victim")
        attributes = b"\x80"
        for step in range(30):
            rows = [[b"note", evil.row(b"%d-%d" % (step, at), counter=step + 1, time=step, attributes=attributes)]
                    for at in range(8)]
            attributes = past(evil, *rows)
        evil.publish((b"note", evil.row(counter=99, attributes=attributes)), seq=99)
        await pulled(world, victim, evil, lambda: b"note" in victim.vault.core.shown())
        read = []
        before = victim.vault.core.history.read

        def look(core: Any) -> tuple[int, int]:
            core.history.read = lambda chunk: (read.append(chunk), before(chunk))[1]
            first = [change for change, _ in zip(core.history.of_file(b"note"), range(5), strict=False)]
            few = len(read)
            assert len(first) == 5
            return few, sum(1 for _ in core.history.of_file(b"note"))
        few, versions = await victim.vault.look(look)
        assert few <= 6
        assert versions == 1 + 30 * 8, "each version once"
    trio.run(main)


@pytest.mark.parametrize("what", ["content", "page", "not there", "itself a page of a tree"])
def test_a_past_that_is_none_ends_the_history_there(world: Any, evil: Evil, what: str) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        chunk = {"content": lambda: evil.chunk(CONTENT, b"no past"), "page": lambda: evil.chunk(PAGE, b"\x93"),
                 "not there": lambda: b"?" * 32,
                 "itself a page of a tree": lambda: evil.chunk(PAST, msgpack.packb(["page", 1, []]))}[what]()
        attributes = msgpack.packb({"past": chunk}, use_bin_type=True)
        seen = [[evil.member.public, 1]]
        evil.publish((b"note", evil.row(counter=2, seen=seen, attributes=attributes)), seq=2)
        await pulled(world, victim, evil, lambda: b"note" in victim.vault.core.shown())
        changes = await victim.vault.look(lambda core: list(core.history.of_file(b"note")))
        assert [(change.what, change.ends) for change in changes] == [("changed", True)]
        await victim.vault.put(b"note", b"mine")
        await victim.vault.remove([b"note"])
        version = await victim.vault.look(lambda core: core.history.last_content(b"note"))
        await victim.vault.put_back({b"note": version})
        assert await victim.vault.get(b"note") == b"mine"
    trio.run(main)


def test_a_past_that_tells_of_content_that_never_was_is_told_when_it_is_asked_for(world: Any, evil: Evil) -> None:
    async def main() -> None:
        victim = await world.node("victim")
        true = evil.row(b"what stands there")
        lie = evil.row(b"what was said", size=99, digest=b"d" * 32, chunks=evil.chunk(CONTENT, b"another"))
        attributes = past(evil, [b"note", lie])
        evil.publish((b"note", [*true[:-1], attributes]))
        await pulled(world, victim, evil, lambda: b"note" in victim.vault.core.shown())
        _, older = await victim.vault.look(lambda core: list(core.history.of_file(b"note")))
        with pytest.raises(IntegrityError):
            await victim.vault.look(lambda core: b"".join(core.content(older.version)))
        assert await victim.vault.get(b"note") == b"what stands there"
    trio.run(main)


@pytest.mark.parametrize("attributes", [
    b"", b"\xc0", b"\x81", b"\x80\x80", b"\x90", b"\xff" * 4_096, b"\xdf\xff\xff\xff\xff",
    msgpack.packb({"mode": 0o4777, "mtime": 2**63 - 1}), msgpack.packb({"mode": 0o755, "mtime": -(2**63)}),
    msgpack.packb({"mode": "x", "mtime": "y", "past": 7}), msgpack.packb({"mtime": 2**64 - 1}),
])
def test_attributes_of_any_kind_spoil_neither_list_nor_file(
    world: Any, evil: Evil, tmp_path: Path, attributes: bytes
) -> None:
    """A file is never made that runs as another user, whatever mode is claimed."""
    async def main() -> None:
        victim = await world.node("victim")
        evil.publish((b"note", evil.row(attributes=attributes)))
        await pulled(world, victim, evil, lambda: b"note" in victim.vault.core.shown())
        if not attributes:
            assert victim.trouble() == {"E_TREE_UNREADABLE"}
            return
        assert not victim.trouble()
        assert (await victim.vault.restore(b"", tmp_path)).files
        for item in await victim.vault.list():
            made = tmp_path / item.name.decode()
            assert made.read_bytes() == b"evil"
            assert made.stat().st_mode & 0o7022 == 0
        await victim.vault.put(b"note", b"mine")
        assert await victim.vault.get(b"note") == b"mine"
    trio.run(main)
