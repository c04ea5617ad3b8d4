"""What the inviting join machine's actions mean on this device: records, the question, the certificate.

Consumed on disk first, then the certificate in the chain on disk, then it may be sent. When the certificate can't be
made, the invitation opens again, because nothing has left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from hinet_node.belonging.certificates import expiry_of
from hinet_node.belonging.invitation_store import InvitationStore
from hinet_node.belonging.join_stream import Post
from hinet_node.belonging.membership import Membership
from hinet_node.errors import NodeError
from hinet_node.ports import Ports
from hinet_protocol import join
from hinet_protocol.chain import make_device_add
from hinet_protocol.errors import InvitationUsed, JoinError, ProtocolError
from hinet_protocol.identity import fingerprint

Ask = Callable[[str, join.AskApproval], Awaitable[bool]]


class JoinWork:
    """The actions of one joiner's machine. `selector` names the invitation once the joiner has proved its secret or
    failed to; `certified` describes the device once its certificate is in the chain."""

    def __init__(self, store: InvitationStore, membership: Membership, ports: Ports, ask: Ask) -> None:
        self._store = store
        self._membership = membership
        self._ports = ports
        self._ask = ask
        self.selector = ""
        self.certified: dict[str, Any] | None = None

    async def perform(self, action: join.Action, machine: join.Inviter | join.Joiner, post: Post,
                      nursery: trio.Nursery) -> join.Event | None:
        """Carry out one action; the order of writes is the order of actions."""
        assert isinstance(machine, join.Inviter)
        if machine.invitation is not None:
            self.selector = machine.invitation.selector
        if isinstance(action, join.RecordFailure):
            self._store.save_if_possible(self._store.follow(action.invitation))
            return None
        if isinstance(action, join.AskApproval):
            nursery.start_soon(self._ask_owner, action, post)
            return None
        if isinstance(action, join.ConsumeInvitation):
            return self._consume(action)
        if isinstance(action, join.Certify):
            return self._certify(action)
        raise AssertionError(f"an inviter has no action {type(action).__name__}")

    async def _ask_owner(self, question: join.AskApproval, post: Post) -> None:
        post(join.Approved(await self._ask(self.selector, question)))

    def _consume(self, action: join.ConsumeInvitation) -> join.Event:
        stored = self._store.get(action.invitation.selector)
        if stored is None or stored.state != "open" or self._store.left_s(stored) <= 0:
            return join.Aborted(InvitationUsed("This invitation was used, withdrawn or has expired. Make a new one."))
        try:
            self._store.save(self._store.follow(action.invitation))
        except NodeError as error:
            return join.Aborted(JoinError(f"The inviting device could not keep the invitation: {error}"))
        return join.Consumed()

    def _certify(self, action: join.Certify) -> join.Event:
        membership, randomness = self._membership, self._ports.randomness
        record = self._store.get(self.selector)
        assert record is not None
        chain, now_s = membership.chain(), int(self._ports.clock.now_unix_s())
        known = chain.device(action.public)
        try:
            # It may have one already: its joiner, or this device, was ended before it arrived.
            membership.take_in([] if known is not None and known.live else [make_device_add(
                chain, membership.keys, name=action.name, public=action.public, box_public=action.box_public,
                role=action.role, tier=action.tier, time_s=now_s, expires_s=expiry_of(action.role, now_s),
                keyring=None if action.role == "keeper" else membership.keyring,
                ephemeral_seed=None if action.role == "keeper" else randomness.draw(32))])
        except (ProtocolError, NodeError) as error:
            self._store.save_if_possible(record.release())
            return join.Aborted(error if isinstance(error, ProtocolError) else
                                JoinError(f"The inviting device could not make the certificate: {error}"))
        name = action.name if known is None else known.name
        self.certified = {"name": name, "role": action.role, "tier": action.tier,
                          "fingerprint": fingerprint(action.public), "public": action.public.hex()}
        self._store.save_if_possible(record.certify())
        return join.Certified(membership.chain().raws())
