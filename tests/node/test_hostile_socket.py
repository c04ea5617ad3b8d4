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
from hinet_node.home import socket_path
from hinet_node.local.client import CONNECTIONS_MAX, Client
from hinet_node.local.server import serve


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

    async with trio.open_nursery() as nursery:
        await nursery.start(serve, api, socket_path(folder), lambda verb, error: None)
        yield str(socket_path(folder))
        nursery.cancel_scope.cancel()


async def answers(folder: Path) -> bool:
    def ask() -> bool:
        with Client(folder) as client:
            return client.call("echo", {"n": 1}) == {"n": 1}
    return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)


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


def test_the_socket_and_its_folder_are_the_users_alone(folder: Path) -> None:
    async def main() -> None:
        async with serving(folder) as path:
            assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
            assert not stat.S_IMODE(Path(path).parent.stat().st_mode) & 0o077
    trio.run(main)
