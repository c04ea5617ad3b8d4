"""The joining side of a join, a pure machine. SPEC.md, 4.4 to 4.6; the package's docstring draws the exchange."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hinet_protocol import PROTOCOL_VERSION, canonical, limits, schema
from hinet_protocol.chain import Chain, Device
from hinet_protocol.errors import CodeWrong, JoinError, JoinInterrupted, ProtocolError, VersionUnsupported
from hinet_protocol.identity import SIGN_JOIN_REQUEST, DeviceKeys, fingerprint, identity_id
from hinet_protocol.invitations import Code, Ticket
from hinet_protocol.join.events import (
    Aborted,
    Action,
    AwaitApproval,
    Event,
    Failed,
    Finished,
    Offer,
    PeerGone,
    Received,
    Send,
    StoreChain,
    Stored,
    Tick,
)
from hinet_protocol.join.secrets import JoinSecrets, exchange_share, joint_secret
from hinet_protocol.join.wire import entries_of_batch, offer_fields, refusal, request_bytes
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
            return replace(self, phase="failed", secrets=None), (refusal(error), Failed(error))

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
        offer = Offer(**schema.fields(canonical.decode(plain), offer_fields, "join offer"))
        if identity_id(offer.root_public) != offer.identity_id:
            raise JoinError("The offer names an identity that does not belong to its root key.")
        ticket = self.invitation
        if isinstance(ticket, Ticket) and (offer.identity_id, offer.role) != (ticket.identity_id, ticket.role):
            raise JoinError("The offer differs from the ticket in identity or role. Nothing was joined.")
        tier = offer.tier or self.tier
        proved = request_bytes(secrets.transcript, self.keys.box_public, self.name, tier)
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
        entries = self.entries + entries_of_batch(value[1], "join entries")
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
