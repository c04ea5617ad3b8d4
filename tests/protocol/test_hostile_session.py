"""Peers that lie, repeat themselves, send without end or choose odd keys: what a session and a join do about it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from hinet_protocol import join, limits, session
from hinet_protocol import messages as m
from hinet_protocol.chain import Chain, make_epoch, open_keyring
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import (
    EntryMalformed,
    FrameError,
    ProtocolError,
    SessionBusy,
    SessionViolation,
    Stranger,
)
from hinet_protocol.frames import FrameDecoder
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.invitations import Invitation, make_code
from hinet_protocol.session import Session

SMALL_ORDER = [bytes(32), b"\1" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f",
               bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")]


def wire(tag: int, **fields: Any) -> m.Message:
    """A message from bytes that our own writer has not touched."""
    ordered = {name: fields[name] for name in sorted(fields)}
    return m.from_wire(msgpack.packb([tag, ordered], use_bin_type=True))


class End:
    """One honest end; what its caller would do is done at once."""

    def __init__(self, own: DeviceKeys, peer: bytes, chain: Chain) -> None:
        self.now_ms = 1_000
        self.done: list[session.Action] = []
        self.out: list[m.Message] = []
        self.state, actions = Session.start(hello(own, chain), peer, chain, self.now_ms)
        self.act(actions)

    def act(self, actions: tuple[session.Action, ...]) -> None:
        self.done += actions
        for action in actions:
            if isinstance(action, session.Send):
                self.out.append(action.message)
            elif isinstance(action, session.ImportEntries):
                merged = self.state.chain.merge(action.entries)
                self.step(session.ChainChanged(merged.chain, merged.rejected))

    def step(self, event: session.Event) -> None:
        self.state, actions = self.state.step(event, self.now_ms)
        self.act(actions)

    def hear(self, *messages: m.Message) -> End:
        for message in messages:
            self.step(session.Received(m.from_wire(m.to_wire(message))))
        return self

    @property
    def error(self) -> ProtocolError | None:
        return next((action.error for action in self.done if isinstance(action, session.Closed)), None)


def hello(keys: DeviceKeys, chain: Chain, **lies: Any) -> m.Message:
    honest = {
        "versions": [1], "identity_id": chain.identity_id, "device": keys.public, "boot_nonce": keys.public[:16],
        "height": chain.height, "heads": list(chain.heads[:64]), "tier": "laptop", "backends": [], "memory_bytes": 1,
        "bases": [], "addresses": [], "agent": "other", "time_s": 1,
    }  # fmt: skip
    return wire(1, **{**honest, **lies})


def run(left: End, right: End) -> int:
    """Carry messages until nobody says anything; the number of turns."""
    for turn in range(200):
        if not left.out and not right.out:
            return turn
        if left.out:
            right.hear(left.out.pop(0))
        if right.out:
            left.hear(right.out.pop(0))
    raise AssertionError("the two never come to rest")


@pytest.fixture
def bert(household: Any) -> DeviceKeys:
    return household.add("bert")


@pytest.fixture
def opened(household: Any, bert: DeviceKeys) -> End:
    """Anna's end of an open session with bert."""
    end = End(household.admin, bert.public, household.chain).hear(hello(bert, household.chain), m.Ready())
    assert end.state.phase == "open"
    end.out.clear()
    return end


# ---- lies in the hello -----------------------------------------------------------------------------------------------


def test_rights_and_tier_come_from_the_certificate_and_not_from_the_hello(household: Any) -> None:
    keeper = household.add("keeper", role="keeper", tier="pocket")
    end = End(household.admin, keeper.public, household.chain)
    end.hear(hello(keeper, household.chain, tier="cloud", agent="admin", height=2**63 - 1), m.Ready())
    (opened,) = [action for action in end.done if isinstance(action, session.Opened)]
    assert (opened.device.role, opened.device.tier) == ("keeper", "pocket")


def test_heads_that_nobody_can_show_cost_one_question(household: Any, bert: DeviceKeys) -> None:
    end = End(household.admin, bert.public, household.chain)
    end.hear(hello(bert, household.chain, heads=[bytes([number]) * 32 for number in range(64)]))
    assert [type(sent) for sent in end.out[1:]] == [m.ChainGet]
    end.hear(m.ChainEntries((), False), m.Ready())
    assert end.state.phase == "open"
    for number in range(100):
        end.hear(m.ChainNotice(number, (bytes([number]) * 32,)))
    assert sum(isinstance(sent, m.ChainGet) for sent in end.out) == 2


def test_a_stranger_with_every_entry_of_the_chain_is_still_a_stranger(
    household: Any, bert: DeviceKeys, keys_of: Callable[[str], DeviceKeys]
) -> None:
    """Knowing the chain is no proof of belonging to it, and the answer to its ChainGet never comes."""
    thief = keys_of("thief")
    end = End(household.admin, thief.public, household.chain)
    end.hear(hello(thief, household.chain))
    assert isinstance(end.error, Stranger)
    assert not [sent for sent in end.out if isinstance(sent, m.ChainEntries | m.Ready)]
    late = End(household.admin, thief.public, household.chain)
    late.hear(hello(thief, household.chain, heads=[b"?" * 32]), m.ChainGet(()), m.Ready(), m.ChainEntries((), False))
    assert isinstance(late.error, Stranger)
    assert not [sent for sent in late.out if isinstance(sent, m.ChainEntries | m.Ready)]


def test_a_certificate_forged_during_the_greeting_opens_nothing(
    household: Any, bert: DeviceKeys, keys_of: Callable[[str], DeviceKeys]
) -> None:
    thief, chain = keys_of("thief"), household.chain
    body = {"name": "thief", "sign": thief.public, "box": thief.box_public, "role": "admin", "tier": "cloud",
            "expires": 0, "ephemeral": None, "epochs": []}
    for signer in (thief, bert):
        forged = sign_entry(signer, chain.identity_id, chain.heads, "device.add", body, 1)
        end = End(household.admin, thief.public, chain).hear(hello(thief, chain, heads=[b"?" * 32]))
        end.hear(m.ChainEntries((forged,), False))
        assert end.error is not None
        assert end.state.chain.heads == chain.heads
        assert not [sent for sent in end.out if isinstance(sent, m.Ready | m.ChainEntries)]


# ---- too many, too often, out of turn --------------------------------------------------------------------------------


def test_a_flood_of_questions_is_answered_with_busy_and_numbers_never_come_back(opened: End) -> None:
    opened.hear(*(m.Request(number, m.HeadsGet(b"")) for number in range(1, 300)))
    assert sum(isinstance(action, session.Asked) for action in opened.done) == limits.requests_outstanding_max
    busy = [sent for sent in opened.out if isinstance(sent, m.ErrorReply)]
    assert {reply.code for reply in busy} == {SessionBusy.code}
    assert len(busy) == 299 - limits.requests_outstanding_max
    assert isinstance(opened.hear(m.Request(299, m.HeadsGet(b""))).error, SessionViolation)


def test_the_highest_number_is_a_number_and_nothing_follows_it(opened: End) -> None:
    assert opened.hear(m.Request(2**63 - 1, m.HeadsGet(b""))).error is None
    with pytest.raises(ProtocolError):
        wire(20, number=2**63, body=[40, {"digest": b""}])
    assert isinstance(opened.hear(m.Request(2**63 - 2, m.HeadsGet(b""))).error, SessionViolation)


@pytest.mark.parametrize("message", [
    m.Response(1, m.HeadsGet(b"")), m.ErrorReply(0, "E_X", ""), m.ChainEntries((), False), m.Ready(),
    m.ChainEntries((b"x",), True), m.HeadsGet(b""), m.PackRead(bytes(32), 0, 1), m.JoinConfirm(bytes(32)),
    m.PackBytes(bytes(32), 0, 0, b""), m.JoinOpen((1,), "code", "1", bytes(33)), m.JoinRefuse("E_X", ""),
])
def test_what_nobody_asked_for_ends_an_open_session(opened: End, message: m.Message) -> None:
    assert isinstance(opened.hear(message).error, SessionViolation)


def test_entries_without_end_are_cut_off(household: Any, bert: DeviceKeys) -> None:
    end = End(household.admin, bert.public, household.chain).hear(hello(bert, household.chain, heads=[b"?" * 32]))
    same = m.ChainEntries(household.chain.raws(), True)
    for _ in range(limits.chain_pull_rounds_max + 1):
        end.hear(same)
    assert isinstance(end.error, SessionViolation)


@pytest.mark.parametrize("length", [0, 1_048_577, 2**31, 2**32 - 1])
def test_a_length_outside_the_bounds_takes_no_memory_and_ends_the_stream(length: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.feed(b"\0\0\0\1x" + struct.pack(">I", length))
    with pytest.raises(FrameError):
        decoder.feed(b"\0\0\0\1x")
    assert decoder.pending_bytes < 16


# ---- many branches ---------------------------------------------------------------------------------------------------


def test_a_device_that_was_away_catches_up_with_any_number_of_branches(household: Any, bert: DeviceKeys) -> None:
    """A stolen admin key can make hundreds of branches; the entry that removes it must still get through."""
    stolen = household.add("stolen", role="admin")
    before = household.chain
    body = {"base": bytes(32), "previous": None, "commune": None, "round": 0, "x-note": "n" * 3_000}
    branches = [sign_entry(stolen, before.identity_id, before.heads, "base.adopt", body, number)
                for number in range(700)]
    grown = before.with_entries(branches)
    removal = {"device": stolen.public, "reason": ""}
    grown = grown.with_entries([sign_entry(household.admin, before.identity_id, grown.heads[:8], "device.revoke",
                                           removal, 1)])
    away, knowing = End(bert, household.admin.public, before), End(household.admin, bert.public, grown)
    assert run(away, knowing) < 20
    assert away.state.phase == knowing.state.phase == "open"
    assert not away.state.chain.is_member(stolen.public)
    assert away.state.chain.heads == grown.heads


# ---- odd keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("box", SMALL_ORDER, ids=["zero", "one", "minus one", "order eight"])
def test_no_device_with_an_unusable_key_can_keep_all_others_from_a_new_epoch(household: Any, box: bytes) -> None:
    """Nothing can be wrapped to such a key. As a member of the chain it would have stopped every rotation of keys."""
    chain = household.chain
    body = {"name": "weak", "sign": b"w" * 32, "box": box, "role": "member", "tier": "laptop", "expires": 0,
            "ephemeral": None, "epochs": []}
    with pytest.raises(EntryMalformed, match="box"):
        sign_entry(household.admin, chain.identity_id, chain.heads, "device.add", body, 1)
    household.take(make_epoch(chain, household.admin, key=b"k" * 32, ephemeral_seed=b"e" * 32, time_s=2,
                              keyring=open_keyring(chain, household.admin)))


class OddKeys(DeviceKeys):
    """A joiner that names an X25519 key of its choice."""

    @property
    def box_public(self) -> bytes:
        return bytes(32)


@pytest.mark.parametrize("role", ["member", "keeper"])
def test_a_joiner_with_an_unusable_key_gets_no_certificate(household: Any, keys_of: Any, role: str) -> None:
    keys, code = keys_of("bert"), make_code(bytes(16))
    joiner, (opening,) = join.Joiner.start(code, OddKeys(keys.sign_seed, keys.box_seed), peer=household.admin.public,
                                           entropy=b"j" * 32, name="bert", tier="laptop", now_s=1.0)
    inviter: Any = join.Inviter.start(
        household.chain, [Invitation.for_code(code, role=role, tier=None, expires_at_s=600)],
        public=household.admin.public, peer=keys.public, entropy=b"i" * 32, now_s=1.0)  # fmt: skip
    messages, asked = [opening.message], []
    while messages:
        inviter, actions = inviter.step(join.Received(messages.pop(0)), 1.0)
        asked += [action for action in actions if isinstance(action, join.AskApproval | join.Certify)]
        for answer in [action.message for action in actions if isinstance(action, join.Send)]:
            joiner, replies = joiner.step(join.Received(answer), 1.0)
            messages += [reply.message for reply in replies if isinstance(reply, join.Send)]
    assert (asked, inviter.phase) == ([], "failed")
