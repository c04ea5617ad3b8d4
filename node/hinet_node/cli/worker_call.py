"""One call to a worker of its own, with progress shown: for commands on files that need neither agent nor home.

The process ends with the call. Ctrl-C kills it at once, so what it writes belongs into a `staging` folder, which the
command clears away. What the verbs do is the worker's business (SPEC section 7.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hinet_node.cli import output


def call(verb: str, args: Mapping[str, Any], label: str | None = None, *, in_bytes: bool = False,
         heard: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
    """Run a verb in a fresh worker. `label` shows a progress bar at a terminal, `in_bytes` says what its steps are;
    `heard` is told every report besides.

    Errors: `WorkerFailed` with the code and exit code of the verb's own error; `WorkerDied` when the process ended
    instead of answering.
    """
    import trio

    if label is None:
        return trio.run(_call, verb, args, None)
    with output.progress(label, in_bytes=in_bytes) as show:

        def both(report: Mapping[str, Any]) -> None:
            if heard is not None:
                heard(report)
            show(report)

        return trio.run(_call, verb, args, both)


async def _call(verb: str, args: Mapping[str, Any], show: Callable[[Mapping[str, Any]], None] | None) -> dict[str, Any]:
    from hinet_node.real.compute import ProcessCompute

    async with ProcessCompute().worker() as worker:
        return await worker.call(verb, args, on_progress=show)
