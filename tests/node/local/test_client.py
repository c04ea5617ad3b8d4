"""The agent's local socket: real sockets, both sides."""

import socket
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.api import Api, Emit
from hinet_node.errors import AgentNotRunning, ConflictError, NetworkError, NodeError
from hinet_node.home import socket_path
from hinet_node.local.client import REQUEST_BYTES_MAX, Client, agent_answers, encode
from hinet_node.local.server import serve
from hinet_protocol.errors import CodeWrong


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@asynccontextmanager
async def serving(folder: Path, api: Api) -> AsyncIterator[list[str]]:
    unexpected: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, api, socket_path(folder),
                            lambda verb, error: unexpected.append(f"{verb}: {error!r}"))
        yield unexpected
        nursery.cancel_scope.cancel()


async def in_thread(work: Callable[[], Any]) -> Any:
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def example_api() -> Api:
    api = Api()

    @api.verb("echo")
    async def echo(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        emit({"step": 1, "seconds": 0.5})
        return dict(args)

    @api.verb("refuse")
    async def refuse(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        raise ConflictError("two of them", next_step="remove one", code="E_TWO")

    @api.verb("foreign")
    async def foreign(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        raise CodeWrong("The words do not match.")

    @api.verb("break")
    async def broken(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        raise RuntimeError("our own bug")

    @api.verb("thread")
    async def thread(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        await trio.to_thread.run_sync(lambda: [emit({"step": step}) for step in range(1000)])
        return {"done": True}

    @api.verb("flood")
    async def flood(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        for step in range(10_000):
            emit({"step": step})
        return {"size": b"x" * args["bytes"]}

    return api


def test_values_come_through_in_both_directions(folder: Path) -> None:
    args = {"text": "ö\udc80", "raw": b"\x00", "number": -5, "seconds": 1.5, "list": [None, True, {"a": []}]}

    def work() -> None:
        seen: list[Mapping[str, Any]] = []
        with Client(folder) as client:
            assert client.call("echo", args, on_progress=seen.append) == args
            assert client.call("echo", {}) == {}
        assert seen == [{"step": 1, "seconds": 0.5}]

    async def main() -> None:
        async with serving(folder, example_api()):
            assert stat.S_IMODE(socket_path(folder).stat().st_mode) == 0o600
            assert stat.S_IMODE(socket_path(folder).parent.stat().st_mode) == 0o700
            await in_thread(work)
        assert not socket_path(folder).exists()

    trio.run(main)


@pytest.mark.parametrize(("verb", "code", "exit_code", "next_step"), [
    ("refuse", "E_TWO", 6, "remove one"), ("foreign", "E_CODE_WRONG", 4, "check each word"),
    ("fly", "E_UNKNOWN_VERB", 2, "restart"), ("break", "E_UNEXPECTED", 1, "log")])
def test_errors_keep_their_code_exit_code_and_next_step(folder: Path, verb: str, code: str, exit_code: int,
                                                        next_step: str) -> None:
    def work() -> None:
        with Client(folder) as client, pytest.raises(NodeError) as caught:
            client.call(verb)
        assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
        assert next_step in (caught.value.next_step or "")

    async def main() -> None:
        async with serving(folder, example_api()) as unexpected:
            await in_thread(work)
        assert bool(unexpected) == (verb == "break")

    trio.run(main)


def test_a_slow_reader_loses_progress_and_not_the_result(folder: Path) -> None:
    def work() -> None:
        with Client(folder) as client:
            seen: list[Mapping[str, Any]] = []
            assert len(client.call("flood", {"bytes": 1000}, on_progress=seen.append)["size"]) == 1000
            assert len(seen) < 10_000
            with pytest.raises(NodeError) as caught:
                client.call("flood", {"bytes": 9 * 1_048_576})
            assert caught.value.code == "E_TOO_LONG"

    async def main() -> None:
        async with serving(folder, example_api()):
            await in_thread(work)

    trio.run(main)


def test_progress_may_come_from_a_worker_thread(folder: Path) -> None:
    def work() -> None:
        seen: list[Mapping[str, Any]] = []
        with Client(folder) as client:
            assert client.call("thread", on_progress=seen.append, timeout_s=10.0) == {"done": True}
        steps = [progress["step"] for progress in seen]
        assert steps == sorted(steps)
        assert steps

    async def main() -> None:
        async with serving(folder, example_api()) as unexpected:
            await in_thread(work)
        assert not unexpected

    trio.run(main)


def test_a_caller_that_hangs_up_cancels_its_call(folder: Path) -> None:
    api, ended = Api(), trio.Event()

    @api.verb("wait")
    async def wait(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        emit({"begun": True})
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        return {}

    class HangUp(Exception):
        pass

    def work() -> None:
        def hang_up(progress: Mapping[str, Any]) -> None:
            raise HangUp

        with pytest.raises(HangUp), Client(folder) as client:
            client.call("wait", on_progress=hang_up)

    async def main() -> None:
        async with serving(folder, api):
            await in_thread(work)
            with trio.fail_after(5):
                await ended.wait()

    trio.run(main)


@pytest.mark.parametrize("sent", [
    b"\xff\xff\xff\xff", (REQUEST_BYTES_MAX + 1).to_bytes(4, "big"), b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x01",
    b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_nonsense_costs_only_its_own_connection(folder: Path, sent: bytes) -> None:
    def work() -> None:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(socket_path(folder)))
            raw.sendall(sent)
            raw.settimeout(5)
            assert raw.recv(100) == b""
        with Client(folder) as client:
            assert client.call("echo", {"a": 1}) == {"a": 1}

    async def main() -> None:
        async with serving(folder, example_api()) as unexpected:
            await in_thread(work)
        assert not unexpected

    trio.run(main)


def test_a_request_without_arguments_is_refused(folder: Path) -> None:
    def work() -> None:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(socket_path(folder)))
            raw.sendall(encode({"id": 1, "verb": "echo", "args": 5}, 1000))
            assert b"E_USAGE" in raw.recv(1000)

    async def main() -> None:
        async with serving(folder, example_api()):
            await in_thread(work)

    trio.run(main)


def test_no_agent_is_said_with_the_line_that_starts_it(folder: Path) -> None:
    with pytest.raises(AgentNotRunning) as caught:
        Client(folder)
    assert caught.value.exit_code == 9
    assert "hinet-node up" in (caught.value.next_step or "")
    assert not agent_answers(folder)


def test_a_dead_agents_socket_is_said_and_replaced(folder: Path) -> None:
    path = socket_path(folder)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(AgentNotRunning, match="nothing listens"):
        Client(folder)

    async def main() -> None:
        async with serving(folder, example_api()):
            assert await in_thread(lambda: agent_answers(folder))

    trio.run(main)


def test_a_socket_folder_that_is_open_to_others_is_refused(folder: Path) -> None:
    socket_path(folder).parent.mkdir(mode=0o755)
    socket_path(folder).parent.chmod(0o755)

    async def main() -> None:
        async with serving(folder, example_api()):
            pass

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(NodeError, match="chmod 700|open to other users", depth=None)


def test_an_agent_that_stops_during_a_call_is_a_network_error(folder: Path) -> None:
    path = socket_path(folder)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        with Client(folder) as client:
            accepted, _ = listening.accept()
            accepted.close()
            with pytest.raises(NetworkError) as caught:
                client.call("status")
            assert caught.value.exit_code == 5
        with Client(folder) as client, pytest.raises(NetworkError, match="did not answer"):
            client.call("status", timeout_s=0.05)
