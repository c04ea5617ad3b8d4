"""The agent's local socket: `run/agent.sock`, 0600, frames of msgpack.

    request   {id, verb, args}
    answer    {id, progress: {...}}*  then  {id, result: {...}}  or  {id, error: {code, what, next, exit_code}}

One call per connection at a time; a caller that hangs up cancels its call. Floats are allowed here (seconds, rates),
unlike on the wire between devices. The agent's side runs in trio; the command line's side is plain sockets, so that
`status` needs no event loop. SPEC "Local API".
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from hinet_node.errors import AgentNotRunning, NetworkError, NodeError

REQUEST_BYTES_MAX = 1_048_576
ANSWER_BYTES_MAX = 8 * 1_048_576
PROGRESS_QUEUED_MAX = 256
CONNECTIONS_MAX = 128
REQUEST_S_MAX = 30.0
"""How long a request may take to come, from the connection or from the answer before. A call has no such limit."""
HEADER_BYTES = 4


def encode(value: Mapping[str, Any], bytes_max: int) -> bytes:
    """One frame. Errors: `NodeError` when it would be longer than `bytes_max`."""
    body = msgpack.packb(dict(value), use_bin_type=True, unicode_errors="surrogateescape")
    if len(body) > bytes_max:
        raise NodeError(f"the answer is too long for the local socket ({len(body)} bytes, at most {bytes_max})",
                        next_step="ask for less at once", code="E_TOO_LONG")
    return len(body).to_bytes(HEADER_BYTES, "big") + bytes(body)


def decode(body: bytes) -> dict[str, Any]:
    """The map in a frame's body. Errors: `ValueError` for anything else."""
    limit = len(body)
    value = msgpack.unpackb(body, raw=False, strict_map_key=True, unicode_errors="surrogateescape", max_str_len=limit,
                            max_bin_len=limit, max_array_len=limit, max_map_len=limit)
    if not isinstance(value, dict):
        raise ValueError("a frame of the local socket holds a map")
    return value


# ---- the command line's side ------------------------------------------------------------------------------------


class Client:
    """A connection to the running agent. Blocking; use as a context manager."""

    def __init__(self, folder: str | Path, *, start_line: str = "hinet-node up") -> None:
        """Errors: `AgentNotRunning` with the line that starts it."""
        from hinet_node.home import socket_path

        path = socket_path(folder)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC
                                     if hasattr(socket, "SOCK_CLOEXEC") else socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            why = "nothing listens on its socket" if path.exists() else "it has not been started"
            raise AgentNotRunning(f"no agent is running in {folder} ({why})",
                                  next_step=f"start it: {start_line}   or for good: hinet-node service install",
                                  ) from error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *reason: object) -> None:
        self._socket.close()

    def call(self, verb: str, args: Mapping[str, Any] | None = None, *,
             on_progress: Callable[[Mapping[str, Any]], None] | None = None, timeout_s: float | None = None,
             ) -> dict[str, Any]:
        """Run a verb in the agent and return its result.

        `timeout_s` bounds the silence between two frames. Errors: what the verb raised, as `NodeError` with its code
        and exit code; `NetworkError` when the agent hung up or stayed silent.
        """
        try:
            self._socket.settimeout(timeout_s)
            request = encode({"id": 1, "verb": verb, "args": dict(args or {})}, REQUEST_BYTES_MAX)
            with suppress(BrokenPipeError, ConnectionResetError):  # an agent that turned us away has said why
                self._socket.sendall(request)
            while True:
                frame = decode(self._receive_frame())
                if "progress" in frame:
                    if on_progress is not None:
                        on_progress(frame["progress"])
                elif "error" in frame:
                    raise _error_from(frame["error"])
                else:
                    result: dict[str, Any] = frame["result"]
                    return result
        except TimeoutError:
            raise NetworkError(f"the agent did not answer within {timeout_s:.0f} s",
                               next_step="look at its log, or restart it", code="E_AGENT_SILENT") from None
        except OSError as error:
            raise NetworkError(f"the agent went away during the call ({error.strerror or error})",
                               next_step="start it again: hinet-node up", code="E_AGENT_GONE") from error

    def _receive_frame(self) -> bytes:
        size = int.from_bytes(self._receive_exactly(HEADER_BYTES), "big")
        if size > ANSWER_BYTES_MAX:
            raise NetworkError("the agent's answer is too long",
                               next_step="restart the agent: hinet-node down; hinet-node up")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(min(65_536, size - len(parts)))
            if not part:
                raise NetworkError("the agent stopped during the call", next_step="start it again: hinet-node up",
                                   code="E_AGENT_GONE")
            parts += part
        return bytes(parts)


def agent_answers(folder: str | Path) -> bool:
    """Whether an agent listens in this home."""
    with suppress(AgentNotRunning), Client(folder):
        return True
    return False


def _error_from(described: Mapping[str, Any]) -> NodeError:
    error = NodeError(str(described.get("what", "the agent reported a failure")), next_step=described.get("next"),
                      code=str(described.get("code", "E_FAILED")))
    error.exit_code = int(described.get("exit_code", 1))
    return error


def prepare(path: Path) -> None:
    """Make the socket's folder (0700, ours) and take away a dead agent's socket. The home's lock must be held.

    Errors: `NodeError` when the folder belongs to somebody else.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise NodeError(f"{path.parent} is open to other users, so the agent's socket can't stand there",
                        next_step=f"chmod 700 {path.parent}", code="E_SOCKET_PLACE")
    path.unlink(missing_ok=True)
