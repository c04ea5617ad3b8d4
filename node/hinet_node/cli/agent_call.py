"""One call to the running agent, with progress shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hinet_node.cli import context, output
from hinet_node.local.client import Client

ANSWER_TIMEOUT_S = 30.0


def connect() -> Client:
    """The running agent of this home.

    Errors: `NotInitialised` when the home holds no identity; `AgentNotRunning` with the line that starts it.
    """
    from hinet_node.errors import AgentNotRunning
    from hinet_node.home import require_identity

    home = context.home_path()
    try:
        return Client(home, start_line=context.typed("up"))
    except AgentNotRunning:
        require_identity(home)
        raise


def call(verb: str, args: Mapping[str, Any] | None = None, *, label: str | None = None, in_bytes: bool = False,
         timeout_s: float | None = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """Run a verb in the agent. `label` shows a progress bar at a terminal, `in_bytes` says what its steps are;
    `timeout_s` bounds the agent's silence.

    Errors: those of `connect`, and what the verb raised.
    """
    with connect() as client:
        if label is None:
            return client.call(verb, args, timeout_s=timeout_s)
        with output.progress(label, in_bytes=in_bytes) as show:
            return client.call(verb, args, on_progress=show, timeout_s=timeout_s)
