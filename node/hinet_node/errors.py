"""Every error that the node reports to a person, as one tree.

    NodeError                     exit 1   E_FAILED
    ├── WorkerDied                exit 1   E_WORKER_DIED, E_WORKER_MEMORY, E_WORKER_GONE
    ├── WorkerFailed              exit and code of the worker's own error
    ├── JobFailed                 exit and code of what stopped the job
    ├── UsageError                exit 2   E_USAGE
    ├── PartlyDone                exit 3   E_PARTLY_DONE
    ├── NotInitialised            exit 4   E_NOT_INITIALISED
    ├── NotAuthorised             exit 4   E_NOT_AUTHORISED
    ├── NetworkError              exit 5   E_NETWORK
    │   └── PortBusy              exit 5   E_PORT_BUSY
    ├── ConflictError             exit 6   E_CONFLICT
    ├── IntegrityError            exit 7   E_INTEGRITY
    ├── NoSpace                   exit 8   E_NO_SPACE
    ├── AgentNotRunning           exit 9   E_AGENT_NOT_RUNNING
    └── TryAgain                  exit 75  E_TRY_AGAIN

A message says what happened, why, and what to type next; `next_step` is printed on a line of its own. Errors of the
other parts (`hinet_protocol.errors`, `hinet_tiers.errors`) are mapped to an exit code where the command line
reports them. Exit codes: DESIGN section 12, SPEC "Exit codes".
"""

from __future__ import annotations

from collections.abc import Mapping


class NodeError(Exception):
    """Something failed. `code` is stable and may be matched by scripts; `exit_code` is what the command exits with."""

    code = "E_FAILED"
    exit_code = 1
    lines_kept = False
    """Whether `what` holds several faults, one a line."""

    def __init__(self, what: str, *, next_step: str | None = None, code: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step
        if code is not None:
            self.code = code

    def as_json(self) -> dict[str, object]:
        return {"schema": "hinet.error/1", "code": self.code, "what": self.what, "next": self.next_step,
                "exit_code": self.exit_code}


class UsageError(NodeError):
    """The command line was not understood, or an argument can't be used."""

    code, exit_code = "E_USAGE", 2


class PartlyDone(NodeError):
    """Some of the work was done; the message names what was not."""

    code, exit_code = "E_PARTLY_DONE", 3


class NotInitialised(NodeError):
    """The home holds no identity yet."""

    code, exit_code = "E_NOT_INITIALISED", 4


class NotAuthorised(NodeError):
    """The device's role, or the state of the chain, does not allow this."""

    code, exit_code = "E_NOT_AUTHORISED", 4


class NetworkError(NodeError):
    """A peer, an address or the network could not be reached or did not answer as the protocol says."""

    code, exit_code = "E_NETWORK", 5


class PortBusy(NetworkError):
    """Another program listens on the wanted port."""

    code = "E_PORT_BUSY"


class ConflictError(NodeError):
    """Two things exist where one may: an identity, a device key, a running agent, a fork."""

    code, exit_code = "E_CONFLICT", 6


class IntegrityError(NodeError):
    """Bytes are not what their digest or signature says."""

    code, exit_code = "E_INTEGRITY", 7


class NoSpace(NodeError):
    """The disk is full or read-only: nothing was written."""

    code, exit_code = "E_NO_SPACE", 8


class AgentNotRunning(NodeError):
    """The command needs the agent and none answers in this home."""

    code, exit_code = "E_AGENT_NOT_RUNNING", 9


class TryAgain(NodeError):
    """A passing condition; the same command may work a little later."""

    code, exit_code = "E_TRY_AGAIN", 75


WORKER_GONE = "E_WORKER_GONE"
"""Code of a WorkerDied whose process was gone before the call was sent: the call may be made again."""


class WorkerDied(NodeError):
    """A worker process ended instead of answering: a crash, an abort, or too little memory. The agent goes on."""

    code = "E_WORKER_DIED"


class WorkerFailed(NodeError):
    """A worker answered with an error of its own; code and exit code are the worker's."""

    @classmethod
    def from_frame(cls, error: Mapping[str, object], verb: str) -> WorkerFailed:
        """From the `error` part of a worker's answer: {code, exit_code, message, next_step}."""
        next_step = error.get("next_step")
        made = cls(str(error.get("message") or f"the worker failed at {verb!r} and gave no reason"),
                   next_step=str(next_step) if next_step else None, code=str(error.get("code") or cls.code))
        exit_code = error.get("exit_code")
        if isinstance(exit_code, int) and 0 < exit_code < 256:
            made.exit_code = exit_code
        return made


class JobFailed(NodeError):
    """A job ended without its result; the cause's code and exit code are kept."""

    def __init__(self, what: str, *, next_step: str | None = None, code: str | None = None, exit_code: int = 1) -> None:
        super().__init__(what, next_step=next_step, code=code)
        self.exit_code = exit_code
