"""Verbs of the local API, without the socket."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from hinet_node.api import CALLS_MAX, Api, Emit, bytes_of, text_of, whole_number_of
from hinet_node.errors import TryAgain, UsageError


def test_a_verb_gets_its_arguments_and_reports_progress() -> None:
    api = Api()

    @api.verb("count")
    async def count(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        for step in range(whole_number_of(args, "to")):
            emit({"step": step})
        return {"done": True}

    seen: list[Mapping[str, Any]] = []
    assert trio.run(api.dispatch, "count", {"to": 3}, seen.append) == {"done": True}
    assert seen == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert api.names == ["count"]


def test_an_unknown_verb_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'fly'"):
        trio.run(Api().dispatch, "fly")


def test_arguments_of_the_wrong_kind_are_named() -> None:
    args = {"text": 1, "number": "x", "flag": True, "raw": "x"}
    for read, name in ((text_of, "text"), (whole_number_of, "number"), (whole_number_of, "flag"), (bytes_of, "raw"),
                       (text_of, "missing")):
        with pytest.raises(UsageError, match=name):
            read(args, name)
    assert text_of({}, "missing", "x") == "x"


def test_calls_are_bounded_and_a_cancelled_one_frees_its_place() -> None:
    api = Api()

    @api.verb("wait")
    async def wait(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        await trio.sleep_forever()
        return {}

    @api.verb("quick")
    async def quick(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return {}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(CALLS_MAX):
                nursery.start_soon(api.dispatch, "wait")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(TryAgain) as caught:
                await api.dispatch("quick")
            assert caught.value.exit_code == 75
            nursery.cancel_scope.cancel()
        assert await api.dispatch("quick") == {}

    trio.run(main)
