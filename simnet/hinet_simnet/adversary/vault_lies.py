"""Lies about the vault: heads with invented numbers, packs that are not there, bytes that are not theirs.

They are told by the device's agent in its open sessions: its answers are changed for a while, and a notice makes the
siblings ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from hinet_node.errors import NodeError
from hinet_protocol.heads import Head, make_head
from hinet_protocol.messages import HeadsGet, HeadsList, PackBytes, PackRead, PacksGet, PacksList, VaultChanged
from hinet_simnet.adversary.mask import Liar

FALSE_PACKS = 4
PACK_BYTES = 65_536
AHEAD = 5
ABSURD = 1 << 40


async def lying_head(liar: Liar) -> None:
    """Its own tree under numbers that nobody used: far ahead of itself, and having seen of others what they have not
    written yet."""
    own = liar.agent.vault.core.heads.own()
    others = [(victim.public, AHEAD) for victim in liar.victims]
    absurd = [(victim.public, ABSURD) for victim in liar.victims]
    seq = (own.seq if own is not None else 0) + 1
    heads = [_head(liar, number, own, vector)
             for number, vector in ((seq, others), (seq + ABSURD, ()), (seq + 1, absurd), (seq, ()))]
    await _tell(liar, heads, {})


async def false_packs(liar: Liar) -> None:
    """A head that needs packs which do not exist; they are listed, and each read gives other bytes."""
    names = sorted(liar.randomness.draw(32) for _ in range(FALSE_PACKS))
    own = liar.agent.vault.core.heads.own()
    head = _head(liar, (own.seq if own is not None else 0) + 1, None, (), names)
    await _tell(liar, [head], dict.fromkeys(names, PACK_BYTES))


def _head(liar: Liar, seq: int, own: Head | None, vector: Sequence[tuple[bytes, int]],
          packs: Sequence[bytes] = ()) -> Head:
    """A head with a good signature. Without `own` its tree is nowhere."""
    membership = liar.agent.membership
    draw = liar.randomness.draw
    mine = (membership.device_public, seq)
    return make_head(
        membership.sign, identity=membership.identity_id, device=membership.device_public, seq=seq,
        prev=own.hash if own is not None else b"", epoch=membership.current_epoch() or draw(32),
        tree_chunk=own.tree_chunk if own is not None else draw(32),
        tree_pack=own.tree_pack if own is not None else (packs[0] if packs else draw(32)),
        packs=own.packs if own is not None else packs or [draw(32)], lists=own.lists if own is not None else (),
        vector=tuple(sorted((*vector, mine))), time=int(liar.agent.ports.clock.now_unix_s()))


async def _tell(liar: Liar, heads: Sequence[Head], packs: dict[bytes, int]) -> None:
    honest = dict(liar.agent.peers._handlers)

    async def heads_get(session: Any, question: HeadsGet) -> HeadsList:
        return HeadsList(liar.randomness.draw(32), tuple(head.raw for head in heads))

    async def packs_get(session: Any, question: PacksGet) -> PacksList:
        truth = await honest[PacksGet](session, question)
        rows = dict(truth.packs) | {name: size for name, size in packs.items() if name > question.after}
        return PacksList(tuple(sorted(rows.items())[:question.limit]), truth.more)

    async def pack_read(session: Any, question: PackRead) -> PackBytes:
        if question.pack not in packs:
            truth: PackBytes = await honest[PackRead](session, question)
            return PackBytes(truth.pack, truth.offset, truth.size, truth.data[:-1] + b"?")
        length = max(0, min(question.length, packs[question.pack] - question.offset))
        return PackBytes(question.pack, question.offset, packs[question.pack], liar.randomness.draw(length))

    with liar.answering({HeadsGet: heads_get, PacksGet: packs_get, PackRead: pack_read}):
        for _ in range(max(1, int(liar.for_s))):
            for session in liar.sessions():
                try:
                    await session.notify(VaultChanged(liar.randomness.draw(32)))
                except NodeError:
                    continue
            await trio.sleep(1)
