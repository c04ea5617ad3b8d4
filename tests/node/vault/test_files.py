"""Files outside the home: what a name from another device may never do, and what a target keeps through failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, UsageError
from hinet_node.vault.files import write_file
from hinet_node.vault.packstore import pack_path


@pytest.mark.parametrize("name", [b"../out", b"/etc/x", b"a/../../x", b"a//b", b"a/", b".", b"a/./b", b"nul\0"])
def test_a_name_that_leaves_the_folder_can_be_had_by_a_path_of_ones_own(world: Any, tmp_path: Path,
                                                                        name: bytes) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({name: b"2"})
        await node.vault.get_to(name, tmp_path / "mine")
        assert (tmp_path / "mine").read_bytes() == b"2"
    trio.run(main)


def test_a_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "target").symlink_to(tmp_path / "victim")
    write_file(tmp_path / "target", [b"new"], lambda count: None)
    assert not (tmp_path / "target").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_target_is_replaced_whole_or_not_at_all(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", os.urandom(50_000))
        (tmp_path / "out").write_bytes(b"before")
        (name,) = node.vault.core.store.on_disk()
        raw = bytearray(node.disk.read(pack_path(name)))
        raw[30_000] ^= 1
        node.disk.write_atomic(pack_path(name), bytes(raw))
        with pytest.raises(IntegrityError):
            await node.vault.get_to(b"a", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"before"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
    trio.run(main)


def test_unusable_sources_and_targets_are_named(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        for source in (tmp_path / "nothing", tmp_path):
            with pytest.raises(UsageError) as caught:
                await node.vault.put(b"a", source)
            assert str(source) in caught.value.what
        await node.vault.put(b"a", b"1")
        for target in (tmp_path, tmp_path / "no such folder" / "x"):
            with pytest.raises(UsageError) as caught:
                await node.vault.get_to(b"a", target)
            assert caught.value.next_step
        assert await node.names() == [b"a"]
    trio.run(main)


def test_a_source_that_vanishes_takes_the_whole_put_back(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await world.node("laptop")

        def vanish(progress: Any) -> None:
            (tmp_path / "two").unlink(missing_ok=True)
        (tmp_path / "one").write_bytes(os.urandom(8 << 20))
        (tmp_path / "two").write_bytes(b"2")
        with pytest.raises(UsageError):
            await node.vault.put_many({b"one": tmp_path / "one", b"two": tmp_path / "two"}, on_progress=vanish)
        assert (await node.vault.status()).packs == 0
        assert node.disk.list("vault/parts") == []
        assert await node.names() == []
    trio.run(main)
