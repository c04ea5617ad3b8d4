"""The inviter's actions where the invitation changed while the owner was asked."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hinet_node.belonging.invitation_store import InvitationStore, Policy
from hinet_node.belonging.join_work import JoinWork
from hinet_node.belonging.membership import Membership, draw_root
from hinet_node.ports import Ports
from hinet_protocol import join
from hinet_protocol.invitations import Invitation, make_code
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness

NOBODY: Any = None
CODE = make_code(bytes(range(16)))


@pytest.mark.parametrize("meanwhile", ["cancelled", "used by another", "expired", "nothing"])
def test_what_happened_to_an_invitation_while_the_owner_was_asked_counts(meanwhile: str) -> None:
    """The machine judged the record when the joiner came; the store has the last word before a certificate is made."""
    async def main() -> None:
        disk, randomness, clock = MemoryDisk(), SeededRandomness(1, "work"), VirtualClock()
        membership = Membership.found(disk, randomness, clock, name="anna", tier="cloud", root=draw_root(randomness))
        ports = Ports(clock=clock, randomness=randomness, disk=disk, network=NOBODY, discovery=NOBODY, compute=NOBODY)
        store = InvitationStore(disk, clock)
        lifetime_s = -1 if meanwhile == "expired" else 600
        record = Invitation.for_code(CODE, role="member", tier=None, expires_at_s=int(clock.monotonic_s()) + lifetime_s)
        store.add(record, Policy(accept=True))
        if meanwhile == "cancelled":
            store.save(record.cancel())
        elif meanwhile == "used by another":
            store.save(record.consume(b"o" * 32).certify())
        work = JoinWork(store, membership, ports, NOBODY)
        machine = join.Inviter.start(membership.chain(), [record], public=membership.device_public, peer=b"j" * 32,
                                     entropy=bytes(32), now_s=0.0)
        async with trio.open_nursery() as nursery:
            outcome = await work.perform(join.ConsumeInvitation(record.consume(b"j" * 32)), machine, NOBODY, nursery)
        assert isinstance(outcome, join.Consumed if meanwhile == "nothing" else join.Aborted)
        kept = store.get(record.selector)
        assert kept is not None
        assert (kept.joiner == b"j" * 32) == (meanwhile == "nothing")

    virtual_run(main, seed=1)
