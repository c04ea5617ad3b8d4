"""Sessions with the household's other devices: finding, dialling, accepting, and passing messages.

Runs one session machine (`hinet_protocol.session`) for each stream, over the Network, Discovery, Disk, Clock and
Randomness ports. Leaves to others: what messages mean (handlers registered with `on`), the chain on disk
(`ChainStore`, given by the agent), joining (`hinet_node.invite`, through `handlers`). SPEC section 5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import trio

from hinet_node.ports import Ports, StreamHandler

if TYPE_CHECKING:
    from hinet_protocol.chain import Chain, Device
    from hinet_protocol.messages import Message
    from hinet_protocol.session import Hello
    from trio_typing import TaskStatus

SESSION_PROTOCOL = "/hinet/session/1"
SERVICE = "_hinet._tcp"


class ChainStore(Protocol):
    """The chain as the agent keeps it."""

    def chain(self) -> Chain:
        """The current verified chain, durable already."""

    async def absorb(self, entries: Sequence[bytes]) -> None:
        """Verify raw entries, make them durable, then let `chain()` hold them. Entries that are known already are no
        error. Errors: `hinet_protocol.errors.ProtocolError` (nothing changes then), `NoSpace`."""


@dataclass(frozen=True)
class LocalFacts:
    """What this device says of itself in its hello."""

    tier: str
    backends: tuple[str, ...] = ()
    memory_bytes: int = 0
    bases: tuple[bytes, ...] = ()
    agent_version: str = ""


@dataclass(frozen=True)
class PeerEvent:
    """Something happened to a session. `kind` is "opened", "closed" or "refused" (no session came of it)."""

    kind: str
    public: bytes
    reason: str
    session: Session | None = None


class Session:
    """An open session with a member device: both hellos are done, the chains agree, membership was judged."""

    device: Device
    hello: Hello
    address: str

    async def request(self, message: Message, *, timeout_s: float = 30.0) -> Message:
        """Send a request and wait for its reply. Errors: `NetworkError` when the session ends or nothing comes within
        `timeout_s`; the error that the other side sent, as `NodeError` with its code."""
        raise NotImplementedError

    async def notify(self, message: Message) -> None:
        """Send a message that has no reply. Errors: `NetworkError`."""
        raise NotImplementedError

    async def close(self, reason: str = "closed by this device") -> None:
        """Say goodbye and close; never raises."""
        raise NotImplementedError


Handler = Callable[[Session, Any], Awaitable[Any]]
"""`async def handler(session, message) -> reply message, or None for a notice`. A `NodeError` or `ProtocolError` that
it raises goes to the asker with its code and text; anything else crashes the agent (it is our bug)."""


class Peers:
    """All sessions of this device. Everything runs inside `run`, in the caller's nursery."""

    def __init__(self, ports: Ports, device_seed: bytes, store: ChainStore, facts: Callable[[], LocalFacts], *,
                 listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"), static: Sequence[str] = (),
                 handlers: Mapping[str, StreamHandler] | None = None, discover: bool = True) -> None:
        raise NotImplementedError

    async def run(self, *, task_status: TaskStatus[Sequence[str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, announce, dial and keep sessions until cancelled; `started` gives the dialable addresses."""
        raise NotImplementedError

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses that this device can be dialled at now; empty before `run` has started."""
        raise NotImplementedError

    @property
    def sessions(self) -> list[Session]:
        """The open sessions, ordered by device name."""
        raise NotImplementedError

    def session_with(self, public: bytes) -> Session | None:
        """The open session with the device of this Ed25519 key."""
        raise NotImplementedError

    def on(self, message_type: type, handler: Handler) -> None:
        """Answer messages of this class. To be called before `run`; one handler for each class."""
        raise NotImplementedError

    def events(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[PeerEvent]]:
        """Subscribe to sessions opened, closed and refused. A subscriber that falls 256 events behind loses the
        oldest."""
        raise NotImplementedError

    async def dial(self, addresses: Sequence[str], *, expected_public: bytes | None = None,
                   timeout_s: float = 15.0) -> Session:
        """Open a session at the first of these addresses that answers. Errors: `NetworkError` naming each try."""
        raise NotImplementedError

    async def reach(self, public: bytes, *, timeout_s: float = 15.0) -> Session:
        """The session with a device, dialling it at its known addresses when there is none."""
        raise NotImplementedError

    def chain_grew(self) -> None:
        """The agent appended to the chain: push it to all sessions and close those of revoked devices."""
        raise NotImplementedError
