"""Vault work from the command line: in the agent when one answers, else in this process under the home's lock.

    report = vault_local.call("vault.verify", {"deep": True}, label="verifying")
    with vault_local.calls() as call:           # several, with the vault opened once
        page = call("vault.ls", {"after": ""})
    found = vault_local.run(work, label="…")    # `async work(vault, report)`, where no verb fits

A verb runs the same code both ways (`hinet_node.local.vault_table`). Ctrl-C ends work at its next report, so that what
is half done is taken back; a second one ends the process at once, which the vault survives as it does a power cut.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hinet_node.cli import agent_call, context, output

if TYPE_CHECKING:
    from hinet_node.vault import Vault

T = TypeVar("T")
Report = Callable[[Mapping[str, Any]], None]
"""Takes `{step, total, note}`, from any thread."""

AGENT_START_S = 20.0
"""How long an agent that holds the home already may take until it answers."""
POLL_S = 0.1

alone = False
"""Whether the last call ran in this process, since no agent answered."""


class Call(Protocol):
    """Runs one verb."""

    def __call__(self, verb: str, args: Mapping[str, Any] | None = None, *, label: str | None = None,
                 ) -> dict[str, Any]: ...


def call(verb: str, args: Mapping[str, Any] | None = None, *, label: str | None = None) -> dict[str, Any]:
    """Run one verb of the vault, with a progress bar when it has a `label`.

    Errors: what the verb raises; `ConflictError` when another process that is no agent holds the home.
    """
    with calls() as one:
        return one(verb, args, label=label)


@contextmanager
def calls() -> Iterator[Call]:
    """Run several verbs, over one connection or on the vault opened once. Errors: as `call`."""
    from hinet_node.errors import ConflictError

    with ExitStack() as stack:
        client = _client(0.0)
        local = None
        if client is None:
            try:
                local = stack.enter_context(_opened())
            except ConflictError as error:
                # Whoever holds the home may be an agent that has just begun.
                client = _client(AGENT_START_S) if error.code == "E_HOME_LOCKED" else None
                if client is None:
                    raise
        global alone
        alone = client is None
        if client is not None:
            stack.enter_context(client)

        def one(verb: str, args: Mapping[str, Any] | None = None, *, label: str | None = None) -> dict[str, Any]:
            with _bar(label) as report:
                if client is not None:
                    answer: dict[str, Any] = client.call(verb, args, on_progress=report)
                    return answer
                assert local is not None, "there is a vault where there is no agent"
                return local.verb(verb, args, report)

        yield one


def run(work: Callable[[Vault, Report], Awaitable[T]], *, label: str | None = None) -> T:
    """Run `work(vault, report)` under the home's lock: for what is no verb, and not to be done beside an agent.

    Errors: `NotInitialised`; `ConflictError` when an agent or another command holds the home; what `work` raises.
    """
    with _opened() as local, _bar(label) as report:
        return local.work(work, report)


@contextmanager
def _bar(label: str | None) -> Iterator[Report]:
    if label is None:
        yield lambda progress: None
        return
    with output.progress(label, in_bytes=True) as show:
        yield show


def _client(wait_s: float) -> Any:
    """The agent of this home; None when none answers in time."""
    from hinet_node.errors import AgentNotRunning

    until_s = time.monotonic() + wait_s
    while True:
        try:
            return agent_call.connect()
        except AgentNotRunning:
            if time.monotonic() >= until_s or (wait_s and not _agent_is_starting()):
                return None
        time.sleep(POLL_S)


def _agent_is_starting() -> bool:
    from hinet_node import home
    from hinet_node.local.background import is_agent

    return is_agent(home.lock_holder(context.home_path()))


@contextmanager
def _opened() -> Iterator[Local]:
    from hinet_node import home

    folder = context.home_path()
    home.require_identity(folder)
    with home.locked(folder):
        local = Local(folder)
        try:
            yield local
        finally:
            local.close()


class Local:
    """The home's vault in this process. The lock must be held."""

    def __init__(self, folder: str) -> None:
        from hinet_node.api import Api
        from hinet_node.belonging.membership import Membership
        from hinet_node.local.vault_table import all_vault_verbs
        from hinet_node.local.vault_watch_verbs import idle_watch_verbs
        from hinet_node.real.disk import RealDisk
        from hinet_node.real.folders import RealFolders
        from hinet_node.real.system import SystemClock, SystemRandomness
        from hinet_node.vault import Vault

        disk, randomness, clock = RealDisk(folder), SystemRandomness(), SystemClock()
        membership = Membership.load(disk, randomness, clock)
        self.vault = _run(lambda: Vault.open(disk, randomness, clock, membership))
        self._api = Api()
        self._api.add_all(all_vault_verbs(self.vault, disk, membership))
        self._api.add_all(idle_watch_verbs(self.vault, disk, RealFolders(), randomness))

    def verb(self, verb: str, args: Mapping[str, Any] | None, report: Report) -> dict[str, Any]:
        return _run(lambda: self._api.dispatch(verb, args, _checked(report)))

    def work(self, work: Callable[[Vault, Report], Awaitable[T]], report: Report) -> T:
        return _run(lambda: work(self.vault, _checked(report)))

    def close(self) -> None:
        _run(self.vault.close)


def _checked(report: Report) -> Report:
    """`report`, which ends work in a thread when Ctrl-C was pressed."""
    import trio

    main = threading.get_ident()

    def checked(progress: Mapping[str, Any]) -> None:
        if threading.get_ident() != main:
            trio.from_thread.check_cancelled()
        report(progress)

    return checked


def _run(work: Callable[[], Awaitable[T]]) -> T:
    import trio

    async def watched() -> T:
        with trio.CancelScope() as scope, _interrupts(scope):
            return await work()
        raise KeyboardInterrupt

    return trio.run(watched)


@contextmanager
def _interrupts(scope: Any) -> Iterator[None]:
    """Ctrl-C cancels the scope, and with it, at its next report, a thread; the second one ends the process."""
    import trio

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    token = trio.lowlevel.current_trio_token()

    def pressed(number: int, frame: object) -> None:
        if scope.cancel_called:
            sys.stderr.write("\ninterrupted\n")
            os._exit(130)
        token.run_sync_soon(scope.cancel)

    former = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
