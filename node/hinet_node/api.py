"""The agent's local API: verbs with progress, dispatchable with or without the socket.

A verb is a name such as `vault.status` and an async handler `(args, emit) -> result`. Parts of the agent register
their verbs (`@api.verb("name")`, or `api.add_all(handlers)`); `local_socket` carries them to the command line;
simnet and the tests call `dispatch` directly. Values are what canonical msgpack can say: None, bool, int, str, bytes,
lists and maps with text keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from hinet_node.errors import TryAgain, UsageError

Emit = Callable[[Mapping[str, Any]], None]
"""Sends one progress value to whoever asked; never blocks, may drop values when the reader is slow."""

Handler = Callable[[Mapping[str, Any], Emit], Awaitable[dict[str, Any]]]
"""One verb: arguments, progress, result. Errors: `NodeError`."""

CALLS_MAX = 64
"""Calls under way at once; one more is refused, not queued."""


def drop(progress: Mapping[str, Any]) -> None:
    """An `Emit` for callers that want no progress."""


class Api:
    """The verbs of one agent."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._calls = 0

    def verb(self, name: str) -> Callable[[Handler], Handler]:
        """Register the decorated handler under `name`. A name taken twice is our own bug."""

        def register(handler: Handler) -> Handler:
            assert name not in self._handlers, f"the verb {name} is registered twice"
            self._handlers[name] = handler
            return handler

        return register

    def add_all(self, handlers: Mapping[str, Handler]) -> None:
        """Register several verbs at once."""
        for name, handler in handlers.items():
            self.verb(name)(handler)

    @property
    def names(self) -> list[str]:
        return sorted(self._handlers)

    async def dispatch(self, name: str, args: Mapping[str, Any] | None = None, emit: Emit = drop) -> dict[str, Any]:
        """Run a verb to its end.

        Errors: `UsageError` for an unknown verb; `TryAgain` when too many calls are under way; what the handler raises.
        Cancelling the caller cancels the handler.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise UsageError(f"this agent knows no verb {name!r}; it may be older than the command",
                             next_step="restart the agent: hinet-node down; hinet-node up", code="E_UNKNOWN_VERB")
        if self._calls >= CALLS_MAX:
            raise TryAgain(f"the agent is busy with {CALLS_MAX} calls already", next_step="try again in a moment")
        self._calls += 1
        try:
            await trio.lowlevel.checkpoint()
            return await handler(args or {}, emit)
        finally:
            self._calls -= 1


def text_of(args: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text argument. Errors: `UsageError` when it is missing or no text."""
    return str(_typed(args, name, str, default))


def whole_number_of(args: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole-number argument. Errors: `UsageError`."""
    return int(_typed(args, name, int, default))


def bytes_of(args: Mapping[str, Any], name: str) -> bytes:
    """A bytes argument. Errors: `UsageError`."""
    return bytes(_typed(args, name, bytes, None))


def _typed(args: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = args.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"the argument {name!r} must be {kind.__name__}, not {type(value).__name__}")
    return value

