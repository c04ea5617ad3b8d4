"""Other programs of the same user at the agent's local socket: garbage, giants, silence, crowds, nosy modes."""

from __future__ import annotations

import contextlib
import socket
import stat
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from hinet_node.api import Api, Emit
from hinet_node.errors import NodeError
from hinet_node.home import socket_path
from hinet_node.local import server
from hinet_node.local.client import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Client


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    api = Api()

    @api.verb("echo")
    async def echo(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return dict(args)

    @api.verb("sleep")
    async def sleep(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        await trio.sleep_forever()
        return {}

    @api.verb("rest")
    async def rest(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        await trio.sleep(0.5)
        return {"rested": True}

    @api.verb("talk")
    async def talk(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        while True:
            emit({"state": "talking", "filling": "x" * 10_000})
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, api, socket_path(folder), lambda verb, error: None)
        yield str(socket_path(folder))
        nursery.cancel_scope.cancel()


async def ask(folder: Path, args: dict[str, Any], verb: str = "echo") -> dict[str, Any]:
    def call() -> dict[str, Any]:
        with Client(folder) as client:
            return client.call(verb, args)
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


async def answers(folder: Path) -> bool:
    return await ask(folder, {"n": 1}) == {"n": 1}


def connected(path: str, sent: bytes = b"") -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(5)
    caller.connect(path)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        caller.sendall(sent)
    return caller


def frame(value: Any) -> bytes:
    raw = msgpack.packb(value)
    return struct.pack(">I", len(raw)) + raw


GARBAGE = [
    b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff" + b"x" * 1_000, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\0\0\0\5abc", frame({"id": 1, "verb": "echo\n\x1b[2J", "args": {"x" * 99_999: None}}),
    frame(None), frame([]), frame({}), frame({"verb": 1, "args": {}}), frame({"verb": "echo", "args": []}),
    frame({"id": 1, "verb": "nothing", "args": {}}), frame({"id": 2**64 - 1, "verb": "echo", "args": {}}),
    struct.pack(">I", 4_000) + b"\x91" * 4_000, struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff",
    struct.pack(">I", 5) + b"\xc6\xff\xff\xff\xff",
]


def test_garbage_gets_an_error_or_the_door_and_the_next_caller_an_answer(folder: Path) -> None:
    async def main() -> None:
        async with serving(folder) as path:
            for sent in GARBAGE:
                with connected(path, sent) as caller:
                    with trio.move_on_after(0.02):
                        await trio.sleep_forever()
                    caller.close()
                assert await answers(folder), sent
    trio.run(main)


def test_a_crowd_that_says_nothing_keeps_nobody_else_out(folder: Path) -> None:
    async def main() -> None:
        async with serving(folder) as path:
            crowd = []
            for _ in range(CONNECTIONS_MAX - 1):
                crowd.append(connected(path, b"\0\0"))
                await trio.sleep(0)
            assert await answers(folder)
            for caller in crowd:
                caller.close()
            assert await answers(folder)
    trio.run(main)


def test_a_caller_that_never_reads_its_answers_loses_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_S_MAX", 0.2)
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)

    async def main() -> None:
        async with serving(folder) as path:
            answer = frame({"id": 1, "verb": "echo", "args": {"x": "y" * 900_000}})
            deaf = [connected(path, frame({"id": 1, "verb": "talk", "args": {}})), connected(path, answer[:200_000])]
            deaf[1].setblocking(False)
            left = answer[200_000:]
            with deaf[0], deaf[1], trio.fail_after(30):
                while left:
                    with contextlib.suppress(BlockingIOError):
                        left = left[deaf[1].send(left):]
                    await trio.sleep(0.001)
                third = connected(path)
                with third:
                    while True:  # all places are taken until the two that do not read have lost theirs
                        with contextlib.suppress(NodeError):
                            if await answers(folder):
                                break
                        await trio.sleep(0.05)
    trio.run(main)


def test_a_caller_that_stops_reading_while_it_is_told_news_ends_its_own_call_only(folder: Path) -> None:
    async def main() -> None:
        async with serving(folder) as path:
            caller = connected(path, frame({"id": 1, "verb": "talk", "args": {}}))
            with caller, trio.fail_after(30):
                await trio.to_thread.run_sync(caller.recv, 4)
                caller.shutdown(socket.SHUT_RD)  # the next news breaks the pipe; its other direction stays open
                await trio.sleep(0.2)
                assert await answers(folder)

    trio.run(main)


def test_a_full_house_says_so_at_once(folder: Path) -> None:
    """Also to a caller whose request is so long that it is still being sent when the answer comes."""
    async def main() -> None:
        async with serving(folder) as path:
            crowd = []
            for _ in range(CONNECTIONS_MAX):
                crowd.append(connected(path, b"\0\0"))
                await trio.sleep(0)
            for args in ({}, {"text": "x" * 1_000_000}):
                with pytest.raises(NodeError) as refused, trio.fail_after(5):
                    await ask(folder, args)
                assert (refused.value.code, refused.value.exit_code) == ("E_TRY_AGAIN", 75)
            for caller in crowd:
                caller.close()
    trio.run(main)


def test_a_crowd_that_never_finishes_a_request_loses_its_places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that trickle in do not count: only a whole request does."""
    monkeypatch.setattr(server, "REQUEST_S_MAX", 0.5)

    async def main() -> None:
        async with serving(folder) as path:
            crowd = []
            for number in range(CONNECTIONS_MAX):
                crowd.append(connected(path, b"" if number % 2 else b"\0\0\1"))
                await trio.sleep(0)
            with trio.move_on_after(1.5), contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while True:
                    crowd[0].sendall(b"\0")
                    await trio.sleep(0.1)
            assert await answers(folder)
            for caller in crowd:
                caller.close()
    trio.run(main)


def test_a_call_may_take_longer_than_a_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S_MAX", 0.1)

    async def main() -> None:
        async with serving(folder):
            assert await ask(folder, {}, "rest") == {"rested": True}
    trio.run(main)


def test_the_socket_and_its_folder_are_the_users_alone(folder: Path) -> None:
    async def main() -> None:
        async with serving(folder) as path:
            assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
            assert not stat.S_IMODE(Path(path).parent.stat().st_mode) & 0o077
    trio.run(main)


def test_a_request_that_announces_more_than_its_bound_is_hung_up_on_at_once(folder: Path) -> None:
    """Else a caller could make the agent collect four gigabytes."""
    async def main() -> None:
        async with serving(folder) as path:
            with connected(path, struct.pack(">I", REQUEST_BYTES_MAX + 1)) as caller:
                assert await trio.to_thread.run_sync(caller.recv, 1) == b""
    trio.run(main)
