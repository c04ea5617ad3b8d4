"""Lies about the chain: old ones, entries without the right to make them, two futures told to two siblings.

All are told in a greeting, where the victim asks for what the liar's hello says it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from hinet_protocol.chain import Chain
from hinet_protocol.chain.bodies import DEVICE_ADD, DEVICE_REVOKE, EPOCH_NEW
from hinet_protocol.chain.build import make_epoch
from hinet_protocol.chain.entries import entry_hash, sign_entry
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.messages import ChainEntries, ChainGet, ChainNotice, Hello, Ready
from hinet_simnet.adversary.mask import Liar, Mask, Victim, masked

TURNS_MAX = 16


async def old_chain(liar: Liar) -> None:
    """A greeting and notices with the chain's beginning as its newest, and no entry to give."""
    genesis = liar.agent.membership.chain().genesis.hash

    async def lie(victim: Victim) -> None:
        async with masked(liar, victim) as mask:
            await mask.say(liar.hello(height=0, heads=(genesis,)), ChainNotice(0, (genesis,)))
            await _greet(mask, ())
            await mask.until_closed(2)
    await liar.each(lie)


async def forged_entry(liar: Liar) -> None:
    """Grants and revocations that the device has no right to make, or with a signature that is not its own."""
    chain, keys = liar.agent.membership.chain(), liar.agent.membership.keys
    thief = DeviceKeys.from_entropy(liar.randomness.draw(64))
    now_s = int(liar.agent.ports.clock.now_unix_s())
    admin = next(device for device in chain.members() if device.role == "admin")
    grant = {"name": "thief", "sign": thief.public, "box": thief.box_public, "role": "admin", "tier": "laptop",
             "expires": 0, "ephemeral": None, "epochs": []}
    revoke = {"device": admin.public, "reason": "mine now"}
    forged = [sign_entry(thief, chain.identity_id, chain.heads, DEVICE_ADD, grant, now_s),
              sign_entry(thief, chain.identity_id, chain.heads, DEVICE_REVOKE, revoke, now_s)]
    if not chain.can_sign(keys.public):
        forged += [sign_entry(keys, chain.identity_id, chain.heads, DEVICE_ADD, grant, now_s),
                   sign_entry(keys, chain.identity_id, chain.heads, DEVICE_REVOKE, revoke, now_s)]
    good = forged[0]
    forged.append(good[:-1] + bytes([good[-1] ^ 1]))  # the signature does not fit

    async def lie(victim: Victim) -> None:
        for raw in forged:
            await _offer(liar, victim, [raw])
    await liar.each(lie)


async def fork(liar: Liar) -> None:
    """Two entries at one height, each told to every other victim. An admin's are valid, and all devices have to end
    with both; anybody else's are forged."""
    membership = liar.agent.membership
    futures = [_future(liar, membership.chain()) for _ in range(2)]

    async def lie(victim: Victim) -> None:
        await _offer(liar, victim, [futures[liar.victims.index(victim) % 2]])
    await liar.each(lie)


def _future(liar: Liar, chain: Chain) -> bytes:
    keys, now_s = liar.agent.membership.keys, int(liar.agent.ports.clock.now_unix_s())
    key, ephemeral = liar.randomness.draw(32), liar.randomness.draw(32)
    try:
        return make_epoch(chain, keys, key=key, ephemeral_seed=ephemeral, keyring=liar.agent.membership.keyring,
                          time_s=now_s)
    except ProtocolError:
        body = {"ephemeral": ephemeral, "check": key, "wraps": [(chain.root_public, liar.randomness.draw(48))],
                "previous": []}
        return sign_entry(keys, chain.identity_id, chain.heads, EPOCH_NEW, body, now_s)


async def _offer(liar: Liar, victim: Victim, raws: Sequence[bytes]) -> None:
    async with masked(liar, victim) as mask:
        chain = liar.agent.membership.chain()
        await mask.say(liar.hello(height=chain.height + 1, heads=tuple(sorted(map(entry_hash, raws)))))
        await _greet(mask, raws)
        await mask.until_closed(2)


async def _greet(mask: Mask, raws: Sequence[bytes]) -> None:
    """Answer what the victim asks until it is content or closes."""
    for _ in range(TURNS_MAX):
        message = await mask.heard()
        if message is None:
            return
        if isinstance(message, ChainGet):
            await mask.say(ChainEntries(tuple(raws), False))
        elif isinstance(message, Ready):
            await mask.say(Ready())
            return
        elif not isinstance(message, Hello | ChainNotice):
            return
