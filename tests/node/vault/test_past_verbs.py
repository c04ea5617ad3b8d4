"""The verbs of the past and of heads, as the command line calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.errors import ConflictError, NodeError, NotAuthorised, UsageError
from hinet_node.local.vault_heads_verbs import vault_heads_verbs
from hinet_node.local.vault_past_verbs import vault_past_verbs

Call = Callable[..., Any]


def calls(node: Any) -> Call:
    names = node.member.names
    handlers = {**vault_past_verbs(node.vault, names, node.member), **vault_heads_verbs(node.vault, names, node.member)}

    async def call(verb: str, **args: Any) -> Any:
        return await handlers[f"vault.{verb}"](args, lambda progress: None)
    return call


async def filled(world: Any) -> tuple[Any, Call]:
    """A vault in which some things have happened, a minute apart."""
    node = await world.node("laptop")
    for what in ({b"a/1": b"one", b"a/2": b"two", b"b": b"bee"}, {b"a/1": b"one more"}, {b".hinet/x": b"machine's"}):
        node.clock.now += 60
        await node.vault.put_many(what)
    return node, calls(node)


def test_a_folder_is_removed_after_it_was_told_what_goes_and_comes_back_as_a_whole(world: Any) -> None:
    async def main() -> None:
        node, call = await filled(world)
        plan = await call("rm", names=["a", "b"], dry=True)
        assert (plan["files"], plan["bytes"], plan["folders"], plan["dry"]) == (3, 14, ["a/"], True)
        assert plan["names"] == ["a/1", "a/2", "b"]
        assert len(await node.names()) == 4
        done = await call("rm", names=["a/"])
        assert done["restorable_until"] == int(node.clock.now) + 30 * 86_400
        assert await node.names() == [b".hinet/x", b"b"]
        for name in ("a", "never", "b/", "/", "", ".hinet/x", ".hinet"):
            with pytest.raises(UsageError):
                await call("rm", names=[name])
        back = await call("restore", name="a")
        assert (back["files"], back["names"], back["left"]) == (2, ["a/1", "a/2"], [])
        assert await node.vault.get(b"a/1") == b"one more"
        with pytest.raises(UsageError):
            await call("restore", name="a")
    trio.run(main)


def test_a_folder_goes_back_to_a_time_and_what_is_newer_stays(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node, call = await filled(world)
        start = int(node.clock.now) - 180
        node.clock.now += 60
        await node.vault.put(b"a/new", b"new")
        await call("rm", names=["a/2"])
        done = await call("restore", name="/", before=start + 60, to=str(tmp_path / "out"))
        assert (done["files"], done["left"]) == (3, [])
        assert (tmp_path / "out" / "a" / "1").read_bytes() == b"one"
        assert (tmp_path / "out" / "a" / "2").read_bytes() == b"two"
        assert b"a/2" not in await node.names(), "writing to a path leaves the vault alone"
        done = await call("restore", name="a", before=start + 60)
        assert done["names"] == ["a/1", "a/2"]
        assert [await node.vault.get(name) for name in (b"a/1", b"a/2", b"a/new")] == [b"one", b"two", b"new"]
        assert (await call("restore", name="a", before=start + 60))["files"] == 0
        with pytest.raises(UsageError):
            await call("restore", name="a", before=start)
    trio.run(main)


def test_one_version_is_put_back_by_its_id_or_by_its_time_or_written_to_a_path(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node, call = await filled(world)
        rows = (await call("history", name="a/1"))["versions"]
        assert [(row["what"], row["stands"], row["restorable"], row["older_collected"]) for row in rows] == [
            ("changed", True, True, False), ("added", False, True, False)]
        await call("restore", name="a/1", version=rows[1]["id"][:8], to=str(tmp_path / "old"))
        assert (tmp_path / "old").read_bytes() == b"one"
        assert await node.vault.get(b"a/1") == b"one more"
        await call("restore", name="a/1", version=rows[1]["id"][:8])
        assert await node.vault.get(b"a/1") == b"one"
        node.clock.now += 60
        await call("restore", name="a/1", before=int(node.clock.now) - 120)
        assert await node.vault.get(b"a/1") == b"one more"
        await call("restore", name="b", to=str(tmp_path / "b"))
        assert (tmp_path / "b").read_bytes() == b"bee"
        cases: list[dict[str, Any]] = [
            {"name": "a/1"}, {"name": "a/1", "version": "0"}, {"name": "a/1", "version": "zzzzzzzz"},
            {"name": "a", "version": rows[0]["id"]}, {"name": "never"}, {"name": ".hinet/x"},
            {"name": "a/1", "version": rows[0]["id"], "before": 5}, {"name": "a/1", "before": 5},
            {"name": "a/1", "before": "yesterday"}]
        for args in cases:
            with pytest.raises(UsageError) as refused:
                await call("restore", **args)
            assert refused.value.what, args
    trio.run(main)


def test_recent_changes_are_cut_and_say_so_and_leave_the_machines_own_out(world: Any) -> None:
    async def main() -> None:
        _, call = await filled(world)
        found = await call("history", limit=2)
        assert (found["kind"], found["more"], len(found["versions"])) == ("folder", True, 2)
        found = await call("history")
        assert (found["more"], [row["name"] for row in found["versions"]]) == (False, ["a/1", "a/2", "b", "a/1"])
        assert [row["name"] for row in (await call("history", name=".hinet"))["versions"]] == [".hinet/x"]
        with pytest.raises(UsageError):
            await call("history", name="never")
    trio.run(main)


def test_files_and_folders_are_renamed_and_odd_names_are_refused(world: Any) -> None:
    async def main() -> None:
        node, call = await filled(world)
        assert (await call("mv", old="b", new="a/"))["new"] == "a/b"
        assert (await call("mv", old="a", new="deep/er"))["files"] == 3
        assert await node.names() == [b".hinet/x", b"deep/er/1", b"deep/er/2", b"deep/er/b"]
        found = (await call("history", name="deep/er/b"))["versions"]
        assert [(row["what"], row["came_from"]) for row in found] == [
            ("renamed", "a/b"), ("renamed", "b"), ("added", None)]
        for old, new in (("deep/er/1", "../x"), ("deep/er/1", "/x"), ("deep/er/1", "x//y"), ("deep/er/1", ".hinet/y"),
                         ("deep", "deep/in"), ("never", "x"), (".hinet/x", "y"), ("deep/er/1", "")):
            with pytest.raises(UsageError):
                await call("mv", old=old, new=new)
        for new in ("deep/er/2", "deep/er/2/below", "deep"):
            with pytest.raises(ConflictError) as taken:
                await call("mv", old="deep/er/1", new=new)
            assert taken.value.code == "E_NAME_TAKEN"
        assert len(await node.names()) == 4
    trio.run(main)


def test_conflicts_say_how_the_versions_differ(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"n", b"1")
        right.clock.now += 100
        await right.vault.put(b"n", b"longer")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(left.vault.core.shown()) == 2)
        call = calls(left)
        found = await call("conflicts")
        assert found["more"] is False
        (one,) = found["conflicts"]
        assert one["name"] == "n"
        sign = 1 if one["versions"][0]["size"] == 1 else -1
        assert [(row["size_difference"], row["time_difference_s"]) for row in one["versions"]] == [
            (0, 0), (5 * sign, 100 * sign)]
        assert {row["device"]: row["mine"] for row in one["versions"]} == {"cloud": True, "laptop": False}
        assert one["versions"][0]["shown_as"] == "n"
        assert one["versions"][1]["shown_as"] in [name.decode() for name in await left.names()]
        assert (await call("settle", name=one["versions"][1]["shown_as"], keep="mine"))["names"] == ["n"]
        assert (await call("conflicts"))["conflicts"] == []
        assert await left.vault.get(b"n") == b"1"
    trio.run(main)


def test_a_contested_name_that_is_removed_or_renamed_is_told_to_stand_for_the_other_version(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        for name in (b"m", b"n"):
            await left.vault.put(name, b"1")
            await right.vault.put(name, b"2")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(left.vault.core.shown()) == 4)
        call = calls(left)
        assert (await call("rm", names=["m"]))["still_there"] == ["m"]
        assert (await call("mv", old="n", new="o"))["still_there"] == ["n"]
        assert await left.names() == [b"m", b"n", b"o"]
        assert {await left.vault.get(name) for name in (b"n", b"o")} == {b"1", b"2"}
        assert (await call("rm", names=["m", "n"]))["still_there"] == []
    trio.run(main)


def test_answers_fit_whatever_the_names_are(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hinet_node.local import vault_past_verbs as verbs
    monkeypatch.setattr(verbs, "ROWS_BYTES_MAX", 20_000)

    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        names = [b"%02d" % number + b"n" * 4_000 for number in range(20)]
        await left.vault.put_many(dict.fromkeys(names, b"1"))
        await right.vault.put_many(dict.fromkeys(names, b"2"))
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(left.vault.core.shown()) == 40)
        call = calls(left)
        found = await call("history")
        assert (found["more"], 1 <= len(found["versions"]) < 10) == (True, True)
        seen: list[str] = []
        after, more = "", True
        while more:
            page = await call("conflicts", after=after)
            assert 1 <= len(page["conflicts"]) < 10
            seen += [one["name"] for one in page["conflicts"]]
            after, more = seen[-1], page["more"]
        assert [name.encode() for name in seen] == names
        long = b"x" * 4_096
        await left.vault.put(long, b"1")
        await right.vault.put(long, b"2")
        for node in (left, right):
            await node.open()
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(left.vault.core.shown()) == 42)
        made = (await calls(left)("settle", name=long.decode(), keep="both"))["names"]
        assert sorted(map(len, made)) == [4_096, 4_096]
        await left.open()
        assert not left.trouble(), "its own tree can be read"
    trio.run(main)


def test_heads_are_listed_and_a_whole_one_needs_no_accepting(world: Any) -> None:
    async def main() -> None:
        _, call = await filled(world)
        (head,) = (await call("heads"))["heads"]
        assert (head["device"], head["number"], head["state"], head["mine"]) == ("laptop", 3, "whole", True)
        with pytest.raises(NodeError) as refused:
            await call("accept-older", head=head["head"][:8])
        assert refused.value.code == "E_NOTHING_TO_ACCEPT"
    trio.run(main)


def test_a_keeper_is_told_that_it_can_read_nothing(world: Any) -> None:
    async def main() -> None:
        keeper = await world.node("keeper", keeper=True)
        call = calls(keeper)
        for verb, args in (("history", {}), ("restore", {"name": "a"}), ("rm", {"names": ["a"]}), ("conflicts", {}),
                           ("mv", {"old": "a", "new": "b"}), ("settle", {"name": "a", "keep": "mine"})):
            with pytest.raises(NotAuthorised):
                await call(verb, **args)
        assert (await call("heads"))["heads"] == []
    trio.run(main)
