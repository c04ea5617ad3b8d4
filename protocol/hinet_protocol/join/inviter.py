"""The inviting side of a join, a pure machine. SPEC.md, 4.4 to 4.6; the package's docstring draws the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hinet_protocol import PROTOCOL_VERSION, canonical, limits, schema
from hinet_protocol.chain import Chain
from hinet_protocol.errors import (
    CodeUnknown,
    CodeWrong,
    DeviceRevoked,
    JoinDeclined,
    JoinError,
    JoinInterrupted,
    ProtocolError,
    VersionUnsupported,
)
from hinet_protocol.identity import SIGN_JOIN_REQUEST, fingerprint, verify
from hinet_protocol.invitations import Invitation
from hinet_protocol.join.events import (
    Aborted,
    Action,
    Approved,
    AskApproval,
    Certified,
    Certify,
    Consumed,
    ConsumeInvitation,
    Event,
    Failed,
    Finished,
    PeerGone,
    Received,
    RecordFailure,
    Send,
    SendEntries,
    Tick,
)
from hinet_protocol.join.secrets import JoinSecrets, exchange_share, joint_secret
from hinet_protocol.join.wire import refusal, request_bytes, request_fields
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
        return replace(self, phase="failed", secrets=None), (*first, refusal(error), Failed(error))

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
            "root_public": self.chain.genesis.signer,  # the first root: its hash is the identity, whoever took over
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
        found = schema.fields(canonical.decode(plain), request_fields, "join request")
        proved = request_bytes(transcript, found["box"], found["name"], found["tier"])
        verify(self.peer, SIGN_JOIN_REQUEST, proved, found["proof"])
        if invitation.tier is not None and found["tier"] != invitation.tier:
            raise JoinError(f"The invitation is for a {invitation.tier} device, the joiner says {found['tier']}.")
        self._check_against_chain(found)
        request = Certify(found["name"], self.peer, found["box"], invitation.role, found["tier"])
        after = replace(
            self,
            phase="approving",
            secrets=secrets,
            request=request,
            deadline_s=now_s + limits.join_approval_s_max,
        )
        return after, (AskApproval(request.name, fingerprint(self.peer), request.tier, request.role),)

    def _check_against_chain(self, found: dict[str, Any]) -> None:
        """A joiner that lost the certificate which was made for it comes again with the same keys: it may have it then.
        Raises what stands against a new certificate, or against the old one."""
        known, named = self.chain.device(self.peer), self.chain.device_named(found["name"])
        if known is None:
            if named is not None:
                raise JoinError(
                    f"A device named {named.name!r} ({named.fingerprint}) belongs to the household already. Join again "
                    "with --name, or if that one is gone for ever, revoke it there first."
                )
            return
        if not known.live:
            raise DeviceRevoked("The key of the joining device was removed from the household; it needs a new one.")
        assert self.invitation is not None
        if (known.role, known.tier, known.box_public) != (self.invitation.role, found["tier"], found["box"]):
            raise JoinError(
                f"The joining device has a certificate already, as {known.name!r}, {known.role}, {known.tier}. Invite "
                f"it with --role {known.role} and let it join with --tier {known.tier}, or revoke it first."
            )

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
