"""Events and actions of the two join machines, and what the inviter offers. SPEC.md, 4.4."""

from __future__ import annotations

from dataclasses import dataclass

from hinet_protocol.chain import Chain, Device
from hinet_protocol.errors import ProtocolError
from hinet_protocol.invitations import Invitation
from hinet_protocol.messages import JoinEntries, Message

# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A message came from the other side."""

    message: Message


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class PeerGone:
    """The stream ended."""


@dataclass(frozen=True)
class Approved:
    """The person at the inviter answered AskApproval."""

    accepted: bool


@dataclass(frozen=True)
class Consumed:
    """The consumed invitation is on disk."""


@dataclass(frozen=True)
class Certified:
    """The certificate is in the inviter's chain and on disk; `entries` are all raw entries of that chain."""

    entries: tuple[bytes, ...]


@dataclass(frozen=True)
class Stored:
    """The joiner's chain and keys are on disk."""


@dataclass(frozen=True)
class Aborted:
    """An action failed, or the owner interrupts: tell the other side and end."""

    error: ProtocolError


Event = Received | Tick | PeerGone | Approved | Consumed | Certified | Stored | Aborted

# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send this message."""

    message: Message


@dataclass(frozen=True)
class SendEntries:
    """Send these messages in order: the chain with the new certificate."""

    messages: tuple[JoinEntries, ...]


@dataclass(frozen=True)
class RecordFailure:
    """Write this record to disk before the next action: a wrong try was made."""

    invitation: Invitation


@dataclass(frozen=True)
class AskApproval:
    """Ask the owner, then report Approved. `fingerprint` is also shown on the joiner."""

    name: str
    fingerprint: str
    tier: str
    role: str


@dataclass(frozen=True)
class ConsumeInvitation:
    """Write this record to disk, if the stored one is still open, then report Consumed; otherwise Aborted."""

    invitation: Invitation


@dataclass(frozen=True)
class Certify:
    """Make the certificate with these fields, put it into the chain on disk, then report Certified."""

    name: str
    public: bytes
    box_public: bytes
    role: str
    tier: str


@dataclass(frozen=True)
class AwaitApproval:
    """Show this to the person at the joiner: the other side now asks its owner."""

    fingerprint: str
    offer: Offer


@dataclass(frozen=True)
class StoreChain:
    """Write the verified chain and the device keys to disk, then report Stored."""

    chain: Chain
    device: Device


@dataclass(frozen=True)
class Finished:
    """The join is complete on this side. Close the stream."""


@dataclass(frozen=True)
class Failed:
    """The join ended with this error. Close the stream. Nothing was granted unless Certify came before."""

    error: ProtocolError


Action = (
    Send
    | SendEntries
    | RecordFailure
    | AskApproval
    | ConsumeInvitation
    | Certify
    | AwaitApproval
    | StoreChain
    | Finished
    | Failed
)


@dataclass(frozen=True)
class Offer:
    """What the inviter reveals once the joiner has proved the secret."""

    identity_id: bytes
    root_public: bytes
    genesis: bytes
    heads: tuple[bytes, ...]
    role: str
    tier: str | None
    inviter_name: str
