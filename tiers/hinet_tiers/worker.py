"""A worker: answers verbs over its standard input and output, one at a time (SPEC section 7.4).

Frames are the protocol's (4-byte big-endian length, at most 1 MiB); bodies are msgpack maps:

    {id, verb, args}  →  {id, progress: {step, total, note, ...}}*  →  {id, result: {...}}
                                                                    or {id, error: {code, exit_code, message}}

The process is meant to be lost: a crash, an abort or a memory limit costs the job, never the node, and cancelling is
killing it. Whatever libraries print goes to standard error, because descriptor 1 is moved out of their way first.
Starting it imports no engine; a verb imports its own.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO

QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
"""Set before any engine is imported: no spinning threads (they slow a shared machine a hundredfold), no network."""

FRAME_BYTES_MAX = 1 << 20
PROGRESS_EVERY_S = 0.05
MESSAGE_CHARS_MAX = 2000
NOTE_CHARS_MAX = 400


class BrokenPipe(Exception):
    """The other side went away, or sent what is no frame."""


class Pipe:
    """Frames over two descriptors."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer

    def receive(self) -> Any | None:
        """The next body, or None at the end. Raises BrokenPipe for a bad length, a cut frame or a body not msgpack."""
        import msgpack

        head = self._reader.read(4)
        if not head:
            return None
        length = int.from_bytes(head, "big")
        if len(head) < 4 or not 1 <= length <= FRAME_BYTES_MAX:
            raise BrokenPipe(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} are allowed")
        body = self._reader.read(length)
        if len(body) < length:
            raise BrokenPipe("the input ended inside a frame")
        try:
            return msgpack.unpackb(body, raw=False, strict_map_key=True)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise BrokenPipe(f"a body that is no msgpack: {error}") from error

    def send(self, body: Mapping[str, Any]) -> None:
        """Send one body. Raises ValueError or TypeError when it can't be sent, BrokenPipe when nobody reads."""
        import msgpack

        raw = msgpack.packb(body, default=_plain)
        if len(raw) > FRAME_BYTES_MAX:
            raise ValueError(f"an answer of {len(raw)} bytes, at most {FRAME_BYTES_MAX} fit a frame")
        try:
            self._writer.write(len(raw).to_bytes(4, "big") + raw)
            self._writer.flush()
        except (BrokenPipeError, OSError) as error:
            raise BrokenPipe("nobody reads the answers") from error


def serve(pipe: Pipe) -> int:
    """Answer requests until the input ends. Returns the process's exit code."""
    while True:
        try:
            request = pipe.receive()
        except BrokenPipe as error:
            print(f"worker: {error}", file=sys.stderr)  # noqa: T201
            return 1
        if request is None:
            return 0
        try:
            _answer(pipe, request)
        except BrokenPipe:
            return 1


def _answer(pipe: Pipe, request: Any) -> None:
    identifier = request.get("id") if isinstance(request, dict) else None
    try:
        verb, args = _parts(request)
        from hinet_tiers import registry

        result = registry.find(verb)(args, _progress(pipe, identifier))
        pipe.send({"id": identifier, "result": result})
    except BrokenPipe:
        raise
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BaseException as error:
        pipe.send({"id": identifier, "error": describe(error)})
        if isinstance(error, SystemExit):
            raise


def _parts(request: Any) -> tuple[str, dict[str, Any]]:
    from hinet_tiers.errors import BadRequest

    if not isinstance(request, dict) or type(request.get("id")) is not int:
        raise BadRequest("A request to a worker is a map with the keys id, verb and args.")
    verb, args = request.get("verb"), request.get("args", {})
    if not isinstance(verb, str) or not isinstance(args, dict):
        raise BadRequest("A request's verb is a text and its args are a map.")
    return verb, args


def _progress(pipe: Pipe, identifier: Any) -> Any:
    last = 0.0

    def progress(step: int, total: int, note: str = "", **more: Any) -> None:
        """Send an event, unless one was sent just now; the last step is always sent."""
        nonlocal last
        now = time.monotonic()
        if now - last < PROGRESS_EVERY_S and step < total:
            return
        last = now
        event = {**more, "step": int(step), "total": int(total), "note": str(note)[:NOTE_CHARS_MAX]}
        pipe.send({"id": identifier, "progress": event})

    return progress


def describe(error: BaseException) -> dict[str, Any]:
    """An error as it goes over the pipe: a known one by its own code, a stranger with its trace on standard error."""
    code, exit_code, message = getattr(error, "code", None), getattr(error, "exit_code", 1), str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in message):
        code, message = "E_WORKER_MEMORY", "The job needs more memory than it was allowed: choose a smaller recipe."
    elif isinstance(error, KeyError) and not isinstance(code, str):
        code, message = "E_WORKER_REQUEST", f"The request lacks {error}."
        traceback.print_exception(error, file=sys.stderr)
    elif isinstance(error, OSError) and not isinstance(code, str):
        import errno

        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        code, exit_code = ("E_NO_SPACE", 8) if full else ("E_WORKER_IO", 1)
    elif not isinstance(code, str):
        code, message = "E_WORKER_FAILED", f"{type(error).__name__}: {error}"
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(code, str) and code.startswith("E_TAU"):
        exit_code = 7
    return {
        "code": code if isinstance(code, str) else "E_WORKER_FAILED",
        "exit_code": exit_code if isinstance(exit_code, int) else 1,
        "message": (message or type(error).__name__)[:MESSAGE_CHARS_MAX],
    }


def _plain(value: Any) -> Any:
    """What msgpack doesn't know: paths and numpy or torch scalars, as plain values."""
    from pathlib import PurePath

    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a result holds a {type(value).__name__}")


def limit_memory(limit_bytes: int) -> None:
    """Bound this process's address space; above it an allocation fails and the job ends with E_WORKER_MEMORY."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def main(arguments: list[str] | None = None) -> int:
    """`python -m hinet_tiers.worker [--memory-bytes-max N]`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--memory-bytes-max"] and len(arguments) == 2 and arguments[1].isdigit():
        limit_memory(int(arguments[1]))
    elif arguments:
        print("usage: python -m hinet_tiers.worker [--memory-bytes-max N]", file=sys.stderr)  # noqa: T201
        return 2
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return serve(Pipe(requests, answers))


if __name__ == "__main__":
    sys.exit(main())
