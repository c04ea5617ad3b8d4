"""Events and actions of the session machine. SPEC.md, 5.4."""

from __future__ import annotations

from dataclasses import dataclass

from hinet_protocol.chain import Chain, Device, Rejected
from hinet_protocol.errors import ProtocolError
from hinet_protocol.messages import Hello, Message

# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A message came from the peer."""

    message: Message


@dataclass(frozen=True)
class Tick:
    """Time has passed; to be given at `Session.wake_ms` at the latest."""


@dataclass(frozen=True)
class ChainChanged:
    """Our chain is now this one, and it is on disk. While `Session.importing`, only the end of that import is reported,
    with what was refused of it in `rejected`."""

    chain: Chain
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Ask:
    """Send this question; the number it gets is `Session.next_number` before the step."""

    body: Message


@dataclass(frozen=True)
class Forget:
    """Nobody waits for the answer to this number any more."""

    number: int


@dataclass(frozen=True)
class Answer:
    """The answer to a question of the peer."""

    number: int
    body: Message


@dataclass(frozen=True)
class AnswerError:
    """A question of the peer failed."""

    number: int
    error: ProtocolError


@dataclass(frozen=True)
class Push:
    """Send a notice that has no answer (VaultChanged)."""

    body: Message


@dataclass(frozen=True)
class Probe:
    """Send a Ping now, numbered with `now_ms`: does the other end still live? See `session_verdict`."""


@dataclass(frozen=True)
class PeerGone:
    """The stream ended."""


@dataclass(frozen=True)
class Shut:
    """End the session: in order (None), or because of an error."""

    error: ProtocolError | None = None


Event = Received | Tick | ChainChanged | Ask | Forget | Answer | AnswerError | Push | Probe | PeerGone | Shut

# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send this message."""

    message: Message


@dataclass(frozen=True)
class ImportEntries:
    """Merge these raw entries into the chain, write it to disk, then report ChainChanged (even if nothing changed)."""

    entries: tuple[bytes, ...]


@dataclass(frozen=True)
class Opened:
    """The session is open: the peer is this device, and it said this hello."""

    device: Device
    hello: Hello


@dataclass(frozen=True)
class Asked:
    """The peer asks; report Answer or AnswerError with this number."""

    number: int
    body: Message


@dataclass(frozen=True)
class Noticed:
    """The peer sent a notice that needs no answer."""

    body: Message


@dataclass(frozen=True)
class Answered:
    """The answer to our question of this number came."""

    number: int
    body: Message


@dataclass(frozen=True)
class AskFailed:
    """Our question of this number got an error, or the session ended before its answer."""

    number: int
    error: ProtocolError


@dataclass(frozen=True)
class Closed:
    """The session is over; close the stream. `error` is None for an orderly end."""

    error: ProtocolError | None


Action = Send | ImportEntries | Opened | Asked | Noticed | Answered | AskFailed | Closed
