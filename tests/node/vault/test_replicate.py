"""Two and three vaults that keep each other in step, over sessions that carry the real message bytes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from hinet_node.errors import NodeError
from hinet_node.vault.packstore import incoming_path, pack_path
from hinet_protocol import limits
from hinet_protocol.messages import HeadsGet, PackBytes, PackRead, PacksGet, RangesGet, RangesList
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness


def noise(size: int, seed: str = "noise") -> bytes:
    return SeededRandomness(seed).draw(size)


def test_what_one_device_puts_the_others_get(world: Any) -> None:
    async def main() -> None:
        cloud, laptop, pocket = [await world.node(name) for name in ("cloud", "laptop", "pocket")]
        await laptop.vault.put(b"before", noise(300_000))
        async with world.running(cloud, laptop, pocket):
            await laptop.vault.put(b"during", b"while connected")
            await cloud.vault.put(b"from the cloud", b"hello")
            await world.until(lambda: world.in_step(cloud, laptop, pocket) and len(cloud.vault.core.shown()) == 3)
            for node in (cloud, laptop, pocket):
                assert await node.names() == [b"before", b"during", b"from the cloud"]
                assert await node.vault.get(b"before") == noise(300_000)
                assert not node.trouble()
        for node in (cloud, laptop, pocket):
            await node.open()
            assert await node.vault.get(b"before") == noise(300_000)
            assert (await node.vault.verify(deep=True)).ok
    trio.run(main)


def test_devices_in_step_stop_talking(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", b"1")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == 1)
            await trio.sleep(0.5)
            seqs = [(await node.vault.status()).head_seq for node in (left, right)]
            sent = [len(node.peers.sessions[0].sent) for node in (left, right)]
            await trio.sleep(1.1)
            assert seqs == [(await node.vault.status()).head_seq for node in (left, right)]
            more = [message for node, before in zip((left, right), sent, strict=True)
                    for message in node.peers.sessions[0].sent[before:]]
            assert {type(message) for message in more} == {HeadsGet}
            assert len(more) <= 8, "one of the two asks every 0.2 s, not both"
    trio.run(main)


def test_a_sibling_takes_up_a_tree_without_storing_it_again(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", b"1")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and right.vault.core.heads.own() is not None)
            statuses = [await node.vault.status() for node in (left, right)]
            assert [status.packs for status in statuses] == [1, 1]
            assert all(state.in_step for status in statuses for state in status.devices)
            assert statuses[0].copies[left.member.public] == 2
    trio.run(main)


def test_a_disk_that_fails_at_one_file_is_told_of_and_ends_neither_agent_nor_replication(
        world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(300_000))
        told: set[str] = set()
        failed: list[str] = []

        def failing(work: str) -> Callable[..., None]:
            good = getattr(right.disk, work)

            def fail_at_first(*arguments: Any) -> None:
                if failed.count(work) < 4:
                    failed.append(work)
                    raise OSError(errno.EIO, "Input/output error")
                good(*arguments)

            return fail_at_first

        for work in ("append", "commit"):
            monkeypatch.setattr(right.disk, work, failing(work))
        async with world.running(left, right):
            async def watch() -> None:
                while True:
                    told.update(right.trouble())
                    await trio.sleep(0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == 1)
                nursery.cancel_scope.cancel()
            assert failed == ["append"] * 4 + ["commit"] * 4
            assert "E_DISK" in told
    trio.run(main)


def test_a_keeper_holds_the_packs_and_no_plaintext(world: Any) -> None:
    async def main() -> None:
        secret = b"The dog is called Bo and lives in Lisbon. " * 50
        laptop, keeper = await world.node("laptop"), await world.node("keeper", keeper=True)
        async with world.running(laptop, keeper):
            await laptop.vault.put(b"notes/dog-secret-name.md", secret)
            await world.until(lambda: world.in_step(laptop, keeper))
            stored = b"".join(bytes(data) for data in keeper.disk._files.values())
            assert len(stored) > 60_000
            for word in (b"Lisbon", b"dog", b"notes", b"secret", secret[:40]):
                assert word not in stored
            status = await keeper.vault.status()
            assert (status.packs, status.missing_packs, status.files) == (1, 0, 0)
            assert (await keeper.vault.verify()).ok
            assert (await laptop.vault.status()).copies[laptop.member.public] == 2
    trio.run(main)


def test_a_new_device_gets_everything_from_a_keeper_alone(world: Any) -> None:
    async def main() -> None:
        laptop, keeper = await world.node("laptop"), await world.node("keeper", keeper=True)
        async with world.running(laptop, keeper):
            await laptop.vault.put(b"a", noise(200_000))
            await world.until(lambda: world.in_step(laptop, keeper))
        await keeper.open()
        pocket = await world.node("pocket")
        async with world.running(keeper, pocket):
            await world.until(lambda: len(pocket.vault.core.shown()) == 1)
            assert await pocket.vault.get(b"a") == noise(200_000)
    trio.run(main)


def test_concurrent_edits_are_both_kept_and_shown_on_both_devices(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        async with world.running(left, right):
            await left.vault.put(b"notes/dog.md", b"base")
            await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == 1)
        for node in (left, right):
            await node.open()
        left.clock.now += 10**6  # a wrong clock must not decide
        await left.vault.put(b"notes/dog.md", b"left's edit")
        await right.vault.put(b"notes/dog.md", b"right's edit")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(left.vault.core.shown()) == 2)
            shown = [await node.names() for node in (left, right)]
            assert shown[0] == shown[1]
            assert shown[0][1] == b"notes/dog.md"
            assert shown[0][0].startswith(b"notes/dog.conflict-")
            assert shown[0][0].endswith(b".md")
            contents = [{await node.vault.get(name) for name in shown[0]} for node in (left, right)]
            assert contents == [{b"left's edit", b"right's edit"}] * 2
            assert (await left.vault.status()).conflicts == 1
            # Writing goes on under the plain name, and settling is removing the other.
            await left.vault.put(b"notes/dog.md", b"merged by hand")
            await world.until(lambda: right.vault.core.shown()[b"notes/dog.md"][0].size == 14)
            assert len(await right.names()) == 2
            (other,) = [name for name in await right.names() if b"conflict" in name]
            await right.vault.remove([other])
            await world.until(lambda: len(left.vault.core.shown()) == 1)
            assert await left.vault.get(b"notes/dog.md") == b"merged by hand"
    trio.run(main)


def test_a_deletion_replicates_and_an_edit_beats_it(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        async with world.running(left, right):
            await left.vault.put_many({b"gone": b"1", b"edited": b"2"})
            await world.until(lambda: len(right.vault.core.shown()) == 2)
            await left.vault.remove([b"gone"])
            await world.until(lambda: len(right.vault.core.shown()) == 1)
        for node in (left, right):
            await node.open()
        await left.vault.remove([b"edited"])
        await right.vault.put(b"edited", b"rather not")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right))
            for node in (left, right):
                assert await node.names() == [b"edited"]
                assert await node.vault.get(b"edited") == b"rather not"
    trio.run(main)


def test_a_transfer_goes_on_after_an_interruption_with_at_most_one_pack_sent_again(world: Any) -> None:
    async def main() -> None:
        settings = replace(world.small, chunk_bytes=256 << 10, pack_bytes=2 << 20, requests_outstanding=2)
        left = await world.node("cloud", settings=settings)
        right = await world.node("laptop", settings=settings)
        await left.vault.put(b"large", noise(9 << 20))
        total = (await left.vault.status()).packs_bytes
        moved = interruptions = 0
        while not right.vault.core.shown():
            async with world.running(left, right):
                session = right.peers.sessions[0]
                session.cut_after = 5
                await world.until(lambda session=session: not session.open or right.vault.core.shown())
            moved += sum(message.length for message in session.sent if isinstance(message, PackRead))
            interruptions += not session.open
            for node in (left, right):
                await node.open()
        assert await right.vault.get(b"large") == noise(9 << 20)
        assert right.disk.list("vault/parts") == []
        assert interruptions >= 3
        assert moved <= total + interruptions * settings.pack_bytes
    trio.run(main)


def test_only_the_rest_of_a_half_fetched_pack_is_asked_for(world: Any) -> None:
    async def main() -> None:
        settings = replace(world.small, chunk_bytes=1 << 20, pack_bytes=4 << 20)
        left = await world.node("cloud", settings=settings)
        right = await world.node("laptop", settings=settings)
        await left.vault.put(b"large", noise(4_000_000))
        (name, *_) = sorted(left.vault.core.store.on_disk(), key=left.vault.core.store.index.pack_size, reverse=True)
        whole = left.disk.read(pack_path(name))
        right.disk.append(incoming_path(name), whole[:3_000_000])
        async with world.running(left, right):
            await world.until(lambda: len(right.vault.core.shown()) == 1)
            asked = [message for message in right.peers.sessions[0].sent
                     if isinstance(message, PackRead) and message.pack == name]
            assert sum(message.length for message in asked) == len(whole) - 3_000_000
    trio.run(main)


def test_a_torn_part_file_is_fetched_anew(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(50_000))
        (name,) = left.vault.core.store.on_disk()
        right.disk.append(incoming_path(name), b"\0" * 30_000)
        async with world.running(left, right):
            await world.until(lambda: len(right.vault.core.shown()) == 1)
            assert await right.vault.get(b"a") == noise(50_000)
            assert right.disk.list("vault/parts") == []
    trio.run(main)


def test_a_corrupted_pack_is_fetched_again_from_a_sibling(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(50_000))
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == 1)
            (name,) = left.vault.core.store.on_disk()
            raw = bytearray(left.disk.read(pack_path(name)))
            raw[1_000] ^= 1
            left.disk.write_atomic(pack_path(name), bytes(raw))
            report = await left.vault.verify()
            assert report.damaged == (name,)
            await world.until(lambda: left.vault.core.store.holds(name))
            assert await left.vault.get(b"a") == noise(50_000)
            assert (await left.vault.verify(deep=True)).ok
            assert not left.trouble()
            assert not left.disk.exists(pack_path(name) + ".damaged")
    trio.run(main)


def test_a_sibling_that_sends_wrong_bytes_is_named_and_nothing_of_it_counts(world: Any) -> None:
    def lie(reply: Any) -> Any:
        if isinstance(reply, PackBytes):
            return replace(reply, data=bytes(reply.data[:-1]) + bytes([reply.data[-1] ^ 1]))
        return reply

    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(50_000))
        async with world.running(left, right):
            right.peers.sessions[0].mangle = lie
            await world.until(lambda: "E_PACK_REFUSED" in right.trouble())
            assert await right.names() == []
            assert list(right.vault.core.store.on_disk()) == []
            (trouble,) = [one for one in (await right.vault.status()).trouble if one.code == "E_PACK_REFUSED"]
            assert "cloud" in trouble.what
            right.peers.sessions[0].mangle = lambda reply: reply
            await world.until(lambda: len(right.vault.core.shown()) == 1)
    trio.run(main)


def test_a_head_counts_only_when_all_of_its_packs_are_here(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(200_000))
        (head,) = left.vault.core.heads.current()
        names = sorted(left.vault.core.store.on_disk())
        assert len(names) > 2
        for name in names:
            assert await right.vault.accept([head]) == []
            assert await right.names() == []
            right.vault.core.store.add_whole(name, left.disk.read(pack_path(name)))
        assert await right.vault.accept([head]) == [head]
        assert await right.vault.get(b"a") == noise(200_000)
    trio.run(main)


def test_a_sibling_that_offers_nonsense_is_refused(world: Any) -> None:
    def swapped(reply: Any) -> Any:
        return PackBytes(b"x" * 32, 0, 0, b"") if isinstance(reply, PackBytes) else reply

    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", b"1")
        async with world.running(left, right):
            right.peers.sessions[0].mangle = swapped
            await world.until(lambda: "E_NETWORK" in right.trouble())
            assert await right.names() == []
    trio.run(main)


def test_heads_of_strangers_and_of_revoked_devices_are_refused(world: Any) -> None:
    async def main() -> None:
        cloud, keeper = await world.node("cloud"), await world.node("keeper", keeper=True)
        lost = await world.node("lost")
        await cloud.vault.put(b"a", b"from the cloud")
        await lost.vault.put(b"b", b"from the lost one")
        async with world.running(lost, keeper):
            await world.until(lambda: world.in_step(lost, keeper))
        world.family.revoked.add(lost.member.public)
        await keeper.open()
        await lost.open()
        async with world.running(cloud, keeper, lost):
            await world.until(lambda: len(keeper.vault.core.offered_heads()) == 1)
            await trio.sleep(0.5)
            assert await cloud.names() == [b"a"]
            assert {head.device for head in cloud.vault.core.heads.current()} == {cloud.member.public}
    trio.run(main)


def test_what_a_device_wrote_before_it_was_revoked_stays(world: Any) -> None:
    async def main() -> None:
        cloud, lost = await world.node("cloud"), await world.node("lost")
        async with world.running(cloud, lost):
            await lost.vault.put(b"b", b"from the lost one")
            await world.until(lambda: len(cloud.vault.core.shown()) == 1 and cloud.vault.core.heads.own() is not None)
        world.family.revoked.add(lost.member.public)
        await cloud.open()
        pocket = await world.node("pocket")
        async with world.running(cloud, pocket):
            await world.until(lambda: len(pocket.vault.core.shown()) == 1)
            assert await pocket.vault.get(b"b") == b"from the lost one"
    trio.run(main)


def test_a_full_disk_stops_the_transfer_and_not_the_replicator(world: Any) -> None:
    async def main() -> None:
        left = await world.node("cloud")
        right = await world.node("laptop", MemoryDisk("laptop", capacity_bytes=1 << 20))
        await left.vault.put(b"large", noise(3 << 20))
        async with world.running(left, right):
            await world.until(lambda: "E_NO_SPACE" in right.trouble())
            assert not any(isinstance(message, PackRead) for message in right.peers.sessions[0].sent)
            right.disk.capacity_bytes = 1 << 30
            await world.until(lambda: len(right.vault.core.shown()) == 1)
            await world.until(lambda: not right.trouble())
            assert await right.vault.get(b"large") == noise(3 << 20)
    trio.run(main)


def test_a_disk_that_fills_during_a_transfer_goes_on_later(world: Any) -> None:
    async def main() -> None:
        left = await world.node("cloud")
        right = await world.node("laptop", MemoryDisk("laptop", capacity_bytes=1 << 20))
        await left.vault.put(b"large", noise(3 << 20))
        free, right.disk.free_bytes = right.disk.free_bytes, lambda: 1 << 40
        async with world.running(left, right):
            await world.until(lambda: "E_NO_SPACE" in right.trouble())
            right.disk.free_bytes = free
            right.disk.capacity_bytes = 1 << 30
            await world.until(lambda: len(right.vault.core.shown()) == 1)
            assert await right.vault.get(b"large") == noise(3 << 20)
    trio.run(main)


def test_a_cloned_device_is_shown_as_a_fork_and_both_states_stay(world: Any) -> None:
    async def main() -> None:
        laptop = await world.node("laptop")
        await laptop.vault.put(b"a", b"common")
        clone = await world.node("laptop", laptop.disk.copy())
        clone.opened = 100
        await clone.open()
        await laptop.vault.put(b"b", b"the one")
        await clone.vault.put(b"c", b"the other")
        cloud = await world.node("cloud")
        for one in (laptop, clone):
            async with world.running(one, cloud):
                await world.until(lambda one=one: world.in_step(one, cloud))
            await cloud.open()
        assert await cloud.names() == [b"a", b"b", b"c"]
        assert "E_FORK" in {trouble.code for trouble in (await cloud.vault.status()).trouble}
    trio.run(main)


def test_a_restored_old_copy_does_not_use_a_number_again(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await laptop.vault.put(b"a", b"1")
        backup = laptop.disk.copy()
        await laptop.vault.put(b"b", b"2")
        await laptop.vault.put(b"c", b"3")
        async with world.running(laptop, cloud):
            await world.until(lambda: world.in_step(laptop, cloud) and len(cloud.vault.core.shown()) == 3)
        highest = (await laptop.vault.status()).head_seq
        await cloud.open()
        restored = await world.node("laptop", backup)
        async with world.running(restored, cloud):
            await world.until(lambda: len(restored.vault.core.shown()) == 3)
            await restored.vault.put(b"d", b"4")
            assert (await restored.vault.status()).head_seq > highest
            await world.until(lambda: len(cloud.vault.core.shown()) == 4)
            assert "E_FORK" not in {trouble.code for trouble in (await cloud.vault.status()).trouble}
    trio.run(main)


def test_more_packs_than_a_head_can_name_go_into_a_pack_list(world: Any) -> None:
    async def main() -> None:
        settings = replace(world.small, chunk_bytes=40_000, pack_bytes=40_000)
        left, right = await world.node("cloud", settings=settings), await world.node("laptop", settings=settings)
        await left.vault.put(b"large", noise(140 * 40_000))
        own = left.vault.core.heads.own()
        assert len(own.lists) == 1
        assert len(own.packs) == 0
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == 1)
            assert await right.vault.get(b"large") == noise(140 * 40_000)
            await right.vault.put(b"more", noise(100_000, "more"))
            await world.until(lambda: len(left.vault.core.shown()) == 2)
        await left.open()
        assert (await left.vault.status()).missing_packs == 0
    trio.run(main)


def test_two_siblings_share_the_work_of_a_third(world: Any) -> None:
    async def main() -> None:
        cloud, laptop = await world.node("cloud"), await world.node("laptop")
        async with world.running(cloud, laptop):
            await cloud.vault.put(b"large", noise(4 << 20))
            await world.until(lambda: world.in_step(cloud, laptop) and len(laptop.vault.core.shown()) == 1)
        for node in (cloud, laptop):
            await node.open()
        pocket = await world.node("pocket")
        async with world.running(pocket, cloud, laptop):
            await world.until(lambda: len(pocket.vault.core.shown()) == 1)
            packs = [{message.pack for message in session.sent if isinstance(message, PackRead)}
                     for session in pocket.peers.sessions]
            assert all(packs)
            assert len(packs[0] & packs[1]) <= 2
    trio.run(main)


def test_an_epoch_key_that_comes_later_opens_what_waits(world: Any) -> None:
    async def main() -> None:
        cloud, laptop = await world.node("cloud"), await world.node("laptop")
        laptop.member.lacks_epochs = {b"1" * 32}
        await laptop.open()
        await cloud.vault.put(b"a", b"1")
        async with world.running(cloud, laptop):
            await world.until(lambda: world.in_step(cloud, laptop))
            assert laptop.vault.core.view.tree == {}
            laptop.member.lacks_epochs = set()
            await world.until(lambda: len(laptop.vault.core.view.tree) == 1)
            assert await laptop.vault.get(b"a") == b"1"
    trio.run(main)


def test_requests_beyond_what_is_held_get_a_clear_refusal(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(200_000))
        _, there = world.connect(left, right)
        (name, *_) = sorted(left.vault.core.store.on_disk())
        whole = left.disk.read(pack_path(name))
        reply = await there.request(PackRead(name, len(whole) - 10, 1_000))
        assert (reply.data, reply.size) == (whole[-10:], len(whole))
        for message in (PackRead(b"x" * 32, 0, 10), PackRead(name, len(whole) + 1, 10)):
            with pytest.raises(NodeError) as caught:
                await there.request(message)
            assert caught.value.code == "E_NO_SUCH_PACK"
        rows, after = [], b""
        while True:
            page = await there.request(PacksGet(after, 2))
            rows += page.packs
            if not page.more:
                break
            after = page.packs[-1][0]
        assert [row[0] for row in rows] == sorted(left.vault.core.store.on_disk())
    trio.run(main)


def test_a_vault_of_many_packs_is_compared_by_ranges_and_comes_into_step_all_the_same(
        world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ranges_packs_min", 4)

    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"first", noise(600_000, "first"))
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right))
            session = right.peers.sessions[0]
            session.sent.clear()
            await left.vault.put(b"second", noise(600_000, "second"))
            await right.vault.put(b"third", noise(300_000, "third"))
            await world.until(lambda: world.in_step(left, right) and len(left.vault.core.shown()) == 3)
            kinds = {type(message) for message in session.sent}
            assert RangesGet in kinds
            assert PacksGet not in kinds
            assert await right.vault.get(b"second") == noise(600_000, "second")
            assert await left.vault.get(b"third") == noise(300_000, "third")
    trio.run(main)


def test_a_sibling_that_answers_about_ranges_with_nonsense_is_told_of(
        world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ranges_packs_min", 0)

    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"a", noise(300_000))

        async def lie(session: Any, message: RangesGet) -> RangesList:
            return RangesList(((1, (), True, ()),) * len(message.ranges))

        left.peers.handlers[RangesGet] = lie
        async with world.running(left, right):
            await world.until(lambda: "E_NETWORK" in right.trouble())
            assert not right.vault.core.store.incoming()
    trio.run(main)
