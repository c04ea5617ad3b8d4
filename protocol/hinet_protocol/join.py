"""The join: two pure machines, one for each side of `/hinet/join/1`. SPEC.md, 4.4 to 4.6.

`step(event, now_s)` gives the next state and what to do. The machines draw no randomness, read no clock, write nothing:
32 random bytes come in at the start, the caller carries out the actions *in order* and reports back with events.

    joiner                              inviter
      JoinOpen     ------------------>
                   <------------------    JoinExchange
      JoinConfirm  ------------------>    wrong: RecordFailure, then JoinRefuse
                   <------------------    JoinOffer (its proof; identity, role and head, sealed)
      JoinRequest  ------------------>    AskApproval -> Approved
                                          ConsumeInvitation -> Consumed      (on disk first)
                                          Certify -> Certified               (then the certificate)
      StoreChain   <------------------    JoinEntries …
      JoinDone     ------------------>    Finished

The joiner proves the secret first, so whoever guesses at the inviter uses up a try and learns nothing about the
household. An inviter runs one join at a time; to others it sends `busy_refusal()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hinet_protocol import PROTOCOL_VERSION, canonical, limits, schema
from hinet_protocol.chain import Chain, Device
from hinet_protocol.errors import (
    CodeUnknown,
    CodeWrong,
    JoinDeclined,
    JoinError,
    JoinInterrupted,
    ProtocolError,
    SessionBusy,
    VersionUnsupported,
)
from hinet_protocol.identity import SIGN_JOIN_REQUEST, DeviceKeys, fingerprint, identity_id, verify
from hinet_protocol.invitations import Code, Invitation, Ticket
from hinet_protocol.join_secrets import JoinSecrets, exchange_share, joint_secret
from hinet_protocol.messages import (
    JoinConfirm,
    JoinDone,
    JoinEntries,
    JoinExchange,
    JoinOffer,
    JoinOpen,
    JoinRefuse,
    JoinRequest,
    Message,
)
from hinet_protocol.schema import bytes32, bytes64, list_of, one_of, optional, text

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


_OFFER: dict[str, schema.Check] = {
    "identity_id": bytes32,
    "root_public": bytes32,
    "genesis": bytes32,
    "heads": list_of(bytes32, limits.heads_max, 1),
    "role": one_of("admin", "member", "keeper"),
    "tier": optional(one_of("cloud", "laptop", "pocket")),
    "inviter_name": text(limits.name_bytes_max),
}
_REQUEST: dict[str, schema.Check] = {
    "box": bytes32,
    "name": text(limits.name_bytes_max, 1),
    "tier": one_of("cloud", "laptop", "pocket"),
    "proof": bytes64,
}
_entries_of_batch = list_of(schema.binary(1, limits.entry_bytes_max), limits.chain_batch_entries_max, 1)


def busy_refusal() -> JoinRefuse:
    """The answer to a joiner while another join is under way."""
    return JoinRefuse(SessionBusy.code, "This device is busy with another join. Try again in a moment.")


def _refusal(error: ProtocolError) -> Send:
    return Send(JoinRefuse(error.code, str(error)[: limits.text_bytes_max // 4]))


def _request_bytes(transcript: bytes, box: bytes, name: str, tier: str) -> bytes:
    return canonical.encode([transcript, box, name, tier])


# --- inviter ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inviter:
    """The inviting side. `public` and `peer` are the Ed25519 keys that Noise proved, `entropy` 32 fresh random bytes.

    `invitations` are all records; the joiner's selector picks one. Phases: waiting, exchanged, offered, approving,
    consuming, certifying, sent, done, failed.
    """

    chain: Chain
    invitations: tuple[Invitation, ...]
    public: bytes
    peer: bytes
    entropy: bytes = field(repr=False)
    inviter_name: str
    deadline_s: float
    phase: str = "waiting"
    invitation: Invitation | None = None
    secrets: JoinSecrets | None = field(default=None, repr=False)
    request: Certify | None = None

    @classmethod
    def start(
        cls,
        chain: Chain,
        invitations: Sequence[Invitation],
        *,
        public: bytes,
        peer: bytes,
        entropy: bytes,
        now_s: float,
        inviter_name: str = "",
    ) -> Inviter:
        """The state when a joiner's stream was opened."""
        return cls(chain, tuple(invitations), public, peer, entropy, inviter_name, now_s + limits.join_attempt_s_max)

    def step(self, event: Event, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        """The next state and the actions, to be done in order. Never raises for anything the joiner sent."""
        if self.phase in ("done", "failed"):
            return self, ()
        try:
            return self._step(event, now_s)
        except ProtocolError as error:
            return self._fail(error)

    def _fail(self, error: ProtocolError, *first: Action) -> tuple[Inviter, tuple[Action, ...]]:
        return replace(self, phase="failed", secrets=None), (*first, _refusal(error), Failed(error))

    def _step(self, event: Event, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        if isinstance(event, Tick):
            if now_s < self.deadline_s:
                return self, ()
            raise JoinInterrupted("The join took too long and was ended. Nothing was granted; try again.")
        if isinstance(event, PeerGone):
            return self._gone()
        if isinstance(event, Aborted):
            raise event.error
        if isinstance(event, Received):
            return self._received(event.message, now_s)
        if isinstance(event, Approved) and self.phase == "approving":
            return self._approved(event.accepted, now_s)
        if isinstance(event, Consumed) and self.phase == "consuming" and self.request is not None:
            return replace(self, phase="certifying"), (self.request,)
        if isinstance(event, Certified) and self.phase == "certifying":
            return self._certified(event.entries, now_s)
        raise JoinError(f"The event {type(event).__name__} does not fit the phase {self.phase!r} of the join.")

    def _gone(self) -> tuple[Inviter, tuple[Action, ...]]:
        failed = replace(self, phase="failed", secrets=None)
        if self.phase == "sent":
            text = "The new device went away before it said that it has its certificate. Look at `hinet-node devices`."
        else:
            text = "The other device went away in the middle of the join."
        return failed, (Failed(JoinInterrupted(text)),)

    def _received(self, message: Message, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        if isinstance(message, JoinRefuse):
            failed = replace(self, phase="failed", secrets=None)
            return failed, (Failed(message.error()),)
        if isinstance(message, JoinOpen) and self.phase == "waiting":
            return self._open(message, now_s)
        if isinstance(message, JoinConfirm) and self.phase == "exchanged":
            return self._confirm(message, now_s)
        if isinstance(message, JoinRequest) and self.phase == "offered":
            return self._request(message, now_s)
        if isinstance(message, JoinDone) and self.phase == "sent" and self.secrets is not None:
            self.secrets.check_done(message.mac)
            return replace(self, phase="done", secrets=None), (Finished(),)
        raise JoinError(f"The message {type(message).__name__} does not fit the phase {self.phase!r} of the join.")

    def _open(self, message: JoinOpen, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        if PROTOCOL_VERSION not in message.versions:
            raise VersionUnsupported(
                f"The joining device speaks join versions {list(message.versions)}, this one {PROTOCOL_VERSION}. "
                "Upgrade the older of the two."
            )
        found = [one for one in self.invitations if one.carrier == message.carrier and one.selector == message.selector]
        if not found:
            raise CodeUnknown("Nobody waits here for this code. Check its number, or make a new one.")
        # A nameplate may have been used before; the open record counts.
        invitation = next((one for one in found if one.state == "open"), found[-1])
        invitation.check_usable(now_s)
        share = exchange_share(message.carrier, "inviter", invitation.secret, self.peer, self.public, self.entropy)
        joint = joint_secret(
            message.carrier, "inviter", invitation.secret, self.peer, self.public, self.entropy, message.exchange
        )
        secrets = JoinSecrets.begin(
            joint,
            message.versions,
            PROTOCOL_VERSION,
            message.carrier,
            message.selector,
            self.peer,
            self.public,
            message.exchange,
            share,
        )
        after = replace(self, phase="exchanged", invitation=invitation, secrets=secrets)
        return after, (Send(JoinExchange(PROTOCOL_VERSION, share)),)

    def _confirm(self, message: JoinConfirm, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        invitation, secrets = self.invitation, self.secrets
        assert invitation is not None
        assert secrets is not None
        invitation.check_usable(now_s)
        if not secrets.joiner_proved(message.mac):
            after = invitation.after_failure()
            left = f"{after.tries_left} tries are left." if after.tries_left else "The invitation is closed now."
            error = CodeWrong(f"The words of the code do not match. {left} Check them, or make a new code.")
            return replace(self, invitation=after)._fail(error, RecordFailure(after))
        offer = {
            "identity_id": self.chain.identity_id,
            "root_public": self.chain.root_public,
            "genesis": self.chain.genesis.hash,
            "heads": list(self.chain.heads[: limits.heads_max]),
            "role": invitation.role,
            "tier": invitation.tier,
            "inviter_name": self.inviter_name,
        }
        secrets, sealed = secrets.seal_to_joiner(canonical.encode(offer))
        return replace(self, phase="offered", secrets=secrets), (Send(JoinOffer(secrets.inviter_mac, sealed)),)

    def _request(self, message: JoinRequest, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        invitation = self.invitation
        assert invitation is not None
        assert self.secrets is not None
        transcript = self.secrets.transcript
        secrets, plain = self.secrets.open_to_inviter(message.sealed)
        found = schema.fields(canonical.decode(plain), _REQUEST, "join request")
        proved = _request_bytes(transcript, found["box"], found["name"], found["tier"])
        verify(self.peer, SIGN_JOIN_REQUEST, proved, found["proof"])
        if invitation.tier is not None and found["tier"] != invitation.tier:
            raise JoinError(f"The invitation is for a {invitation.tier} device, the joiner says {found['tier']}.")
        if self.chain.device_named(found["name"]) is not None:
            raise JoinError(
                f"A device named {found['name']!r} belongs to the household already. Join again with --name."
            )
        request = Certify(found["name"], self.peer, found["box"], invitation.role, found["tier"])
        after = replace(
            self,
            phase="approving",
            secrets=secrets,
            request=request,
            deadline_s=now_s + limits.join_approval_s_max,
        )
        return after, (AskApproval(request.name, fingerprint(self.peer), request.tier, request.role),)

    def _approved(self, accepted: bool, now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        if not accepted:
            raise JoinDeclined("The owner declined the join at the inviting device.")
        assert self.invitation is not None
        consumed = self.invitation.consume(self.peer)
        after = replace(self, phase="consuming", invitation=consumed, deadline_s=now_s + limits.join_attempt_s_max)
        return after, (ConsumeInvitation(consumed),)

    def _certified(self, entries: tuple[bytes, ...], now_s: float) -> tuple[Inviter, tuple[Action, ...]]:
        secrets = self.secrets
        assert secrets is not None
        batches = _batches(entries)
        sent = []
        for number, batch in enumerate(batches, start=1):
            more = number < len(batches)
            secrets, sealed = secrets.seal_to_joiner(canonical.encode([more, list(batch)]))
            sent.append(JoinEntries(sealed, more))
        after = replace(self, phase="sent", secrets=secrets, deadline_s=now_s + limits.join_attempt_s_max)
        return after, (SendEntries(tuple(sent)),)


def _batches(entries: Sequence[bytes]) -> list[list[bytes]]:
    batches: list[list[bytes]] = [[]]
    size = 0
    for raw in entries:
        size += len(raw) + 5
        if batches[-1] and (size > limits.chain_batch_bytes_max or len(batches[-1]) >= limits.chain_batch_entries_max):
            batches.append([])
            size = len(raw) + 5
        batches[-1].append(raw)
    return batches


# --- joiner ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joiner:
    """The joining side. `peer` is the Ed25519 key of the inviter that Noise proved, `entropy` 32 fresh random bytes.

    Phases: opened, confirming, requested, storing, done, failed.
    """

    invitation: Code | Ticket = field(repr=False)
    keys: DeviceKeys = field(repr=False)
    peer: bytes
    entropy: bytes = field(repr=False)
    name: str
    tier: str
    deadline_s: float
    phase: str = "opened"
    secrets: JoinSecrets | None = field(default=None, repr=False)
    offer: Offer | None = None
    entries: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def start(
        cls,
        invitation: Code | Ticket,
        keys: DeviceKeys,
        *,
        peer: bytes,
        entropy: bytes,
        name: str,
        tier: str,
        now_s: float,
    ) -> tuple[Joiner, tuple[Action, ...]]:
        """The first state and the first message. Raises JoinError when the peer is not the one that a ticket names."""
        if isinstance(invitation, Ticket):
            if invitation.inviter != peer:
                raise JoinError("The device that answered is not the one that made the ticket. It was left alone.")
            tier = invitation.tier or tier
        joiner = cls(invitation, keys, peer, entropy, name, tier, now_s + limits.join_attempt_s_max)
        opening = JoinOpen((PROTOCOL_VERSION,), joiner._carrier, invitation.selector, joiner._share())
        return joiner, (Send(opening),)

    @property
    def _carrier(self) -> str:
        return "code" if isinstance(self.invitation, Code) else "ticket"

    def _share(self) -> bytes:
        return exchange_share(
            self._carrier, "joiner", self.invitation.secret, self.keys.public, self.peer, self.entropy
        )

    def step(self, event: Event, now_s: float) -> tuple[Joiner, tuple[Action, ...]]:
        """The next state and the actions, to be done in order. Never raises for anything the inviter sent."""
        if self.phase in ("done", "failed"):
            return self, ()
        try:
            return self._step(event, now_s)
        except ProtocolError as error:
            return replace(self, phase="failed", secrets=None), (_refusal(error), Failed(error))

    def _step(self, event: Event, now_s: float) -> tuple[Joiner, tuple[Action, ...]]:
        if isinstance(event, Tick):
            if now_s < self.deadline_s:
                return self, ()
            raise JoinInterrupted("The other device did not answer in time. Try again, or ask for a new code.")
        if isinstance(event, PeerGone):
            failed = replace(self, phase="failed", secrets=None)
            text = "The inviting device went away in the middle of the join. Ask for a new code and try again."
            return failed, (Failed(JoinInterrupted(text)),)
        if isinstance(event, Aborted):
            raise event.error
        if isinstance(event, Stored) and self.phase == "storing" and self.secrets is not None:
            done = Send(JoinDone(self.secrets.done_mac))
            return replace(self, phase="done", secrets=None), (done, Finished())
        if isinstance(event, Received):
            return self._received(event.message, now_s)
        raise JoinError(f"The event {type(event).__name__} does not fit the phase {self.phase!r} of the join.")

    def _received(self, message: Message, now_s: float) -> tuple[Joiner, tuple[Action, ...]]:
        if isinstance(message, JoinRefuse):
            failed = replace(self, phase="failed", secrets=None)
            return failed, (Failed(message.error()),)
        if isinstance(message, JoinExchange) and self.phase == "opened":
            return self._exchange(message)
        if isinstance(message, JoinOffer) and self.phase == "confirming":
            return self._offered(message, now_s)
        if isinstance(message, JoinEntries) and self.phase == "requested":
            return self._entries(message, now_s)
        raise JoinError(f"The message {type(message).__name__} does not fit the phase {self.phase!r} of the join.")

    def _exchange(self, message: JoinExchange) -> tuple[Joiner, tuple[Action, ...]]:
        if message.version != PROTOCOL_VERSION:
            raise VersionUnsupported(f"The inviting device chose join version {message.version}. Upgrade hinet-node.")
        me, carrier, secret = self.keys.public, self._carrier, self.invitation.secret
        joint = joint_secret(carrier, "joiner", secret, me, self.peer, self.entropy, message.exchange)
        secrets = JoinSecrets.begin(
            joint,
            (PROTOCOL_VERSION,),
            message.version,
            carrier,
            self.invitation.selector,
            me,
            self.peer,
            self._share(),
            message.exchange,
        )
        return replace(self, phase="confirming", secrets=secrets), (Send(JoinConfirm(secrets.joiner_mac)),)

    def _offered(self, message: JoinOffer, now_s: float) -> tuple[Joiner, tuple[Action, ...]]:
        assert self.secrets is not None
        if not self.secrets.inviter_proved(message.mac):
            raise CodeWrong(
                "The device that answered does not know the code: the words are mistyped, or somebody is in between. "
                "Nothing was told to it. Ask for a new code."
            )
        secrets, plain = self.secrets.open_to_joiner(message.sealed)
        offer = Offer(**schema.fields(canonical.decode(plain), _OFFER, "join offer"))
        if identity_id(offer.root_public) != offer.identity_id:
            raise JoinError("The offer names an identity that does not belong to its root key.")
        ticket = self.invitation
        if isinstance(ticket, Ticket) and (offer.identity_id, offer.role) != (ticket.identity_id, ticket.role):
            raise JoinError("The offer differs from the ticket in identity or role. Nothing was joined.")
        tier = offer.tier or self.tier
        proved = _request_bytes(secrets.transcript, self.keys.box_public, self.name, tier)
        request = {
            "box": self.keys.box_public,
            "name": self.name,
            "tier": tier,
            "proof": self.keys.sign(SIGN_JOIN_REQUEST, proved),
        }
        secrets, sealed = secrets.seal_to_inviter(canonical.encode(request))
        after = replace(
            self,
            phase="requested",
            secrets=secrets,
            offer=offer,
            tier=tier,
            deadline_s=now_s + limits.join_approval_s_max + 2 * limits.join_attempt_s_max,
        )
        return after, (Send(JoinRequest(sealed)), AwaitApproval(fingerprint(self.keys.public), offer))

    def _entries(self, message: JoinEntries, now_s: float) -> tuple[Joiner, tuple[Action, ...]]:
        assert self.secrets is not None
        secrets, plain = self.secrets.open_to_joiner(message.sealed)
        value = canonical.decode(plain)
        if not isinstance(value, list) or len(value) != 2 or value[0] is not message.more:
            raise JoinError("A batch of chain entries has the wrong form.")
        entries = self.entries + _entries_of_batch(value[1], "join entries")
        if sum(map(len, entries)) > limits.join_chain_bytes_max:
            raise JoinError("The other device sends a chain that is too long.")
        after = replace(self, secrets=secrets, entries=entries, deadline_s=now_s + limits.join_attempt_s_max)
        if message.more:
            return after, ()
        chain, device = after._verify_chain()
        return replace(after, phase="storing", entries=()), (StoreChain(chain, device),)

    def _verify_chain(self) -> tuple[Chain, Device]:
        """The chain must lead from the genesis of the offer to our own certificate, with the role of the offer."""
        offer = self.offer
        assert offer is not None
        chain = Chain.from_entries(self.entries, offer.identity_id)
        if chain.genesis.hash != offer.genesis or chain.missing(offer.heads):
            raise JoinError("The chain that came is not the one that was offered. Nothing was joined.")
        device = chain.device(self.keys.public)
        if device is None or not device.live:
            raise JoinError("The chain that came has no valid certificate for this device. Nothing was joined.")
        if (device.role, device.box_public, device.tier) != (offer.role, self.keys.box_public, self.tier):
            raise JoinError("The certificate that came has another role, key or tier than was agreed.")
        if not chain.is_member(self.peer):
            raise JoinError("The inviting device does not belong to the household that it invites to.")
        return chain, device


__all__ = [
    "Aborted", "Action", "Approved", "AskApproval", "AwaitApproval", "Certified", "Certify", "ConsumeInvitation",
    "Consumed", "Event", "Failed", "Finished", "Inviter", "Joiner", "Offer", "PeerGone", "Received", "RecordFailure",
    "Send", "SendEntries", "StoreChain", "Stored", "Tick", "busy_refusal",
]  # fmt: skip
