"""Starting and stopping the agent of a home: by its service where one is installed, else as a process of its own.

Both ways end the same: `start` returns when the agent answers, `stop` when it has ended. Leaves the service manager to
`unit` and what to say to the command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hinet_node import home
from hinet_node.errors import AgentNotRunning, NetworkError, NodeError, TryAgain
from hinet_node.local import unit as services
from hinet_node.local.client import Client, agent_answers
from hinet_node.local.unit import Service

START_S = 60.0
STOP_S = 30.0
POLL_S = 0.05
SETTLED_S = 3.0
LOCKED = "E_HOME_LOCKED"
AGENT_MODULE = b"hinet_node.cli.agent_process"
"""What `run` becomes: the module in the command line of every agent's process."""
START_LOG = "log/start.log"
ERROR_BYTES_MAX = 65_536


@dataclass(frozen=True)
class Outcome:
    """What was done: `changed` is false when it was so already; `by` is service or process."""

    changed: bool
    by: str
    process_id: int | None = None


def start(folder: str, service: Service, arguments: Sequence[str] = ()) -> Outcome:
    """Start the agent of this home and wait until it answers. `arguments` are for `run`, without a service.

    Errors: what kept it from starting, with its code and exit code; `TryAgain` when it does not answer in time.
    """
    if agent_answers(folder):
        return Outcome(False, "service" if service.installed and services.running(service) else "process",
                       home.lock_holder(folder))
    if service.installed:
        services.start(service)
        _wait_until_it_answers(folder, _ended_service(service), "hinet-node service logs")
        return Outcome(True, "service", home.lock_holder(folder))
    log = Path(folder) / START_LOG
    process = _detached(folder, log, arguments)
    try:
        _wait_until_it_answers(folder, lambda: _ended_process(process, log), "hinet-node logs")
    except NodeError as error:
        if error.code != LOCKED or not _answers_soon(folder):
            raise
        return Outcome(False, "process", home.lock_holder(folder))  # another `up` was a moment earlier
    finally:
        process.returncode = process.poll() or 0  # it is left to itself, so nobody will ask for its exit code
    return Outcome(True, "process", process.pid)


def stop(folder: str, service: Service) -> Outcome:
    """Stop the agent of this home and wait until it has ended; none is no error. Errors: `NodeError`."""
    by_service = service.installed and services.running(service)
    holder = home.lock_holder(folder)
    answers = agent_answers(folder)
    if not (by_service or answers):
        return Outcome(False, "process")
    if by_service:
        services.stop(service)
    if agent_answers(folder):
        with suppress(AgentNotRunning, NetworkError), Client(folder) as client:
            client.call("agent.stop", timeout_s=STOP_S)
    deadline_s = time.monotonic() + STOP_S
    while agent_answers(folder) or home.lock_holder(folder) is not None:
        if time.monotonic() > deadline_s:
            raise NodeError(f"the agent did not end within {STOP_S:.0f} s",
                            next_step=f"kill {holder}" if holder else "look at its log: hinet-node logs",
                            code="E_STILL_RUNNING")
        time.sleep(POLL_S)
    return Outcome(True, "service" if by_service else "process", holder)


def _detached(folder: str, log: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """`run` in a session of its own, so that neither the end of this terminal nor Ctrl-C in it is its end."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen([sys.executable, "-m", "hinet_node", "--home", folder, "--json", "run", "--quiet",
                                 *arguments], stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor,
                                start_new_session=True)
    finally:
        os.close(descriptor)


def _ended_process(process: subprocess.Popen[bytes], log: Path) -> NodeError | None:
    code = process.poll()
    return None if code is None else _error_of(log, code)


def _ended_service(service: Service) -> Callable[[], NodeError | None]:
    """Tells, a while after the start, whether the manager sees the service running: one that can't start ends fast."""
    look_s = time.monotonic() + SETTLED_S

    def ended() -> NodeError | None:
        nonlocal look_s
        if time.monotonic() < look_s:
            return None
        look_s = time.monotonic() + SETTLED_S
        if services.running(service):
            return None
        return NodeError(f"{service.name} ended as it started", next_step="hinet-node service logs",
                         code="E_AGENT_ENDED")

    return ended


def _answers_soon(folder: str) -> bool:
    """Whether the process that holds the home turns out to be an agent that has just begun."""
    unsure_s = 0.0 if Path("/proc/self").exists() else SETTLED_S
    deadline_s = time.monotonic() + (START_S if is_agent(home.lock_holder(folder)) else unsure_s)
    while not agent_answers(folder):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def is_agent(process_id: int | None) -> bool:
    """Whether this process was started as one; where there is no /proc that can't be told."""
    try:
        return AGENT_MODULE in Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _wait_until_it_answers(folder: str, ended: Callable[[], NodeError | None], where: str) -> None:
    deadline_s = time.monotonic() + START_S
    while not agent_answers(folder):
        error = ended()
        if error is not None:
            raise error
        if time.monotonic() > deadline_s:
            raise TryAgain(f"the agent did not answer within {START_S:.0f} s of its start", next_step=f"see {where}")
        time.sleep(POLL_S)


def _error_of(log: Path, code: int) -> NodeError:
    """Why a detached agent ended: the error object that it printed, or the last line that it said."""
    lines: list[str] = []
    with suppress(OSError):
        lines = log.read_bytes()[-ERROR_BYTES_MAX:].decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        with suppress(ValueError, AttributeError, TypeError, KeyError):
            found = json.loads(line)
            if found.get("schema") == "hinet.error/1":
                error = NodeError(str(found["what"]), next_step=found["next"], code=str(found["code"]))
                error.exit_code = int(found["exit_code"])
                return error
    why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    said = f": {lines[-1][:200]}" if lines else ""
    return NodeError(f"the agent ended as it started ({why}){said}", next_step=f"see {log}", code="E_AGENT_ENDED")
