from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hinet_protocol import join, limits
from hinet_protocol import messages as m
from hinet_protocol.chain import make_device_add, make_root_rotate, open_keyring
from hinet_protocol.errors import (
    CodeUnknown,
    CodeWrong,
    InvitationBurned,
    InvitationExpired,
    InvitationUsed,
    JoinDeclined,
    JoinError,
    JoinInterrupted,
    ProtocolError,
    VersionUnsupported,
)
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.invitations import Code, Invitation, Ticket, make_code, parse_code

NOW_S = 100.0
CODE = make_code(bytes(range(16)))


def unchanged(message: m.Message) -> m.Message:
    return message


@dataclass
class Table:
    """Both machines and a wire between them. Actions that need a disk or a person are done at once, in order."""

    household: Any
    joiner: join.Joiner
    inviter: join.Inviter
    approve: bool = True
    done: list[str] = field(default_factory=list)
    to_inviter: list[m.Message] = field(default_factory=list)
    to_joiner: list[m.Message] = field(default_factory=list)
    errors: dict[str, ProtocolError] = field(default_factory=dict)
    record: Invitation | None = None
    stored: Any = None
    change: Callable[[m.Message], m.Message] = unchanged
    now_s: float = NOW_S

    def act(self, side: str, actions: tuple[join.Action, ...]) -> None:
        for action in actions:
            self.done.append(f"{side} {type(action).__name__}")
            out = self.to_inviter if side == "joiner" else self.to_joiner
            if isinstance(action, join.Send):
                out.append(action.message)
            elif isinstance(action, join.SendEntries):
                out += action.messages
            elif isinstance(action, join.Failed):
                self.errors[side] = action.error
            elif isinstance(action, join.RecordFailure | join.ConsumeInvitation):
                self.record = action.invitation
                if isinstance(action, join.ConsumeInvitation):
                    self.tell("inviter", join.Consumed())
            elif isinstance(action, join.AskApproval):
                self.tell("inviter", join.Approved(self.approve))
            elif isinstance(action, join.Certify):
                self.certify(action)
            elif isinstance(action, join.StoreChain):
                self.stored = action
                self.tell("joiner", join.Stored())

    def certify(self, action: join.Certify) -> None:
        home = self.household
        raw = make_device_add(
            home.chain, home.admin, name=action.name, public=action.public, box_public=action.box_public,
            role=action.role, tier=action.tier, time_s=5, keyring=open_keyring(home.chain, home.admin),
            ephemeral_seed=b"e" * 32,
        )  # fmt: skip
        home.take(raw)
        self.tell("inviter", join.Certified(home.chain.raws()))

    def tell(self, side: str, event: join.Event) -> None:
        if side == "joiner":
            self.joiner, actions = self.joiner.step(event, self.now_s)
        else:
            self.inviter, actions = self.inviter.step(event, self.now_s)
        self.act(side, actions)

    def run(self) -> Table:
        while self.to_inviter or self.to_joiner:
            if self.to_inviter:
                self.tell("inviter", join.Received(self.over_the_wire(self.to_inviter.pop(0))))
            if self.to_joiner:
                self.tell("joiner", join.Received(self.over_the_wire(self.to_joiner.pop(0))))
        return self

    def over_the_wire(self, message: m.Message) -> m.Message:
        return m.from_wire(m.to_wire(self.change(message)))


@pytest.fixture
def new_table(new_household: Callable[..., Any], keys_of: Callable[[str], DeviceKeys]) -> Callable[..., Table]:
    def make(
        typed: Code | Ticket = CODE, *, record: Invitation | None = None, name: str = "bert", seen_peer: str = "bert",
        rotated: bool = False,
    ) -> Table:  # fmt: skip
        household = new_household()
        if rotated:
            household.take(make_root_rotate(household.chain, household.spare, time_s=1, next_root_public=None))
        if record is None:
            record = Invitation.for_code(CODE, role="member", tier=None, expires_at_s=600)
        keys = keys_of("bert")
        joiner, actions = join.Joiner.start(
            typed, keys, peer=household.admin.public, entropy=b"j" * 32, name=name, tier="laptop", now_s=NOW_S
        )
        inviter = join.Inviter.start(
            household.chain, [record], public=household.admin.public, peer=keys_of(seen_peer).public,
            entropy=b"i" * 32, now_s=NOW_S, inviter_name="anna",
        )  # fmt: skip
        table = Table(household, joiner, inviter, record=record)
        table.act("joiner", actions)
        return table

    return make


def ticket_for(household: Any, **changes: Any) -> Ticket:
    made = Ticket(
        b"t" * 16,
        household.chain.identity_id,
        household.admin.public,
        ("/ip4/10.0.0.1/tcp/4001",),
        "member",
        "pocket",
        600,
    )
    return dataclasses.replace(made, **changes)


def test_a_joiner_with_the_right_code_becomes_a_member(new_table: Callable[..., Table]) -> None:
    table = new_table().run()
    assert table.errors == {}
    assert table.inviter.phase == table.joiner.phase == "done"
    device = table.stored.device
    assert (device.name, device.role, device.tier) == ("bert", "member", "laptop")
    assert table.stored.chain == table.household.chain
    assert len(open_keyring(table.stored.chain, table.joiner.keys)) == 1


def test_a_joiner_comes_in_after_another_root_took_over(new_table: Callable[..., Table]) -> None:
    """The identity is the hash of the first root, not of the one in force."""
    table = new_table(rotated=True).run()
    assert table.errors == {}
    assert table.stored.chain.root_public == table.household.spare.public
    assert table.stored.chain.identity_id == table.household.root.identity_id


def test_the_invitation_is_consumed_before_the_certificate_is_made_and_sent(new_table: Callable[..., Table]) -> None:
    table = new_table().run()
    order = [
        table.done.index(f"inviter {name}") for name in ("AskApproval", "ConsumeInvitation", "Certify", "SendEntries")
    ]
    assert order == sorted(order)
    assert table.record is not None
    assert table.record.state == "consumed"
    assert table.record.joiner == table.joiner.keys.public


def test_a_ticket_joins_without_typing_and_fixes_the_tier(
    new_table: Callable[..., Table], new_household: Callable[..., Any]
) -> None:
    ticket = ticket_for(new_household())
    table = new_table(ticket, record=Invitation.for_ticket(ticket)).run()
    assert table.errors == {}
    assert table.stored.device.tier == "pocket"


def test_a_wrong_code_fails_on_both_sides_and_reveals_nothing(new_table: Callable[..., Table]) -> None:
    wrong = dataclasses.replace(CODE, words=(*CODE.words[:2], "zoo"))
    told: list[m.Message] = []
    table = new_table(wrong)
    table.change = lambda message: told.append(message) or message
    table.run()
    assert isinstance(table.errors["joiner"], CodeWrong)
    assert isinstance(table.errors["inviter"], CodeWrong)
    assert "2 tries are left" in str(table.errors["joiner"])
    assert table.record is not None
    assert (table.record.failures, table.record.state) == (1, "open")
    names = [type(message).__name__ for message in told]
    assert names == ["JoinOpen", "JoinExchange", "JoinConfirm", "JoinRefuse"]
    chain = table.household.chain
    for message in told:
        for secret in (chain.identity_id, chain.root_public, *chain.heads, *map(str.encode, CODE.words)):
            assert secret not in m.to_wire(message)


def test_a_failed_try_is_recorded_before_the_joiner_hears_of_it(new_table: Callable[..., Table]) -> None:
    table = new_table(dataclasses.replace(CODE, words=("zoo", "zoo", "zoo"))).run()
    assert table.done[-4:-1] == ["inviter RecordFailure", "inviter Send", "inviter Failed"]


def test_the_third_wrong_try_burns_the_code_for_the_right_one_too(new_table: Callable[..., Table]) -> None:
    record = None
    for _ in range(limits.code_failures_max):
        table = new_table(dataclasses.replace(CODE, words=("zoo", "zoo", "zoo")), record=record).run()
        record = table.record
    assert record is not None
    assert record.state == "burned"
    table = new_table(record=record).run()
    assert isinstance(table.errors["joiner"], InvitationBurned)
    assert table.stored is None


def test_a_used_code_is_refused(new_table: Callable[..., Table]) -> None:
    table = new_table(record=new_table().run().record).run()
    assert isinstance(table.errors["joiner"], InvitationUsed)
    assert isinstance(table.errors["inviter"], InvitationUsed)


def test_an_expired_code_is_refused(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.now_s = 600.0
    table.inviter = dataclasses.replace(table.inviter, deadline_s=700.0)
    table.run()
    assert isinstance(table.errors["joiner"], InvitationExpired)


def test_a_code_that_expires_during_the_exchange_is_refused(new_table: Callable[..., Table]) -> None:
    table = new_table()

    def late(message: m.Message) -> m.Message:
        if isinstance(message, m.JoinConfirm):
            table.now_s = 601.0
        return message

    table.change = late
    table.run()
    assert isinstance(table.errors["inviter"], InvitationExpired)


def test_an_unknown_nameplate_is_refused(new_table: Callable[..., Table]) -> None:
    other = dataclasses.replace(CODE, nameplate=CODE.nameplate % limits.nameplate_max + 1)
    assert isinstance(new_table(other).run().errors["joiner"], CodeUnknown)


def test_a_man_in_the_middle_with_another_peer_id_fails(new_table: Callable[..., Table]) -> None:
    """The inviter's connection ends at Eve's key, the joiner's messages are passed on: the proofs do not match."""
    table = new_table(seen_peer="eve").run()
    assert isinstance(table.errors["joiner"], CodeWrong)
    assert table.stored is None


def test_a_ticket_with_another_secret_is_refused(
    new_table: Callable[..., Table], new_household: Callable[..., Any]
) -> None:
    ticket = ticket_for(new_household())
    record = dataclasses.replace(Invitation.for_ticket(ticket), secret=b"u" * 16)
    assert isinstance(new_table(ticket, record=record).run().errors["joiner"], CodeWrong)


def test_a_ticket_for_another_identity_or_role_is_not_joined(
    new_table: Callable[..., Table], new_household: Callable[..., Any]
) -> None:
    ticket = ticket_for(new_household())
    for changed in (dataclasses.replace(ticket, identity_id=b"x" * 32), dataclasses.replace(ticket, role="admin")):
        table = new_table(changed, record=Invitation.for_ticket(ticket)).run()
        assert isinstance(table.errors["joiner"], JoinError)
        assert "ticket" in str(table.errors["joiner"])
        assert table.record is not None
        assert table.record.state == "open"


def test_a_device_that_did_not_make_the_ticket_is_not_talked_to(
    new_household: Callable[..., Any], keys_of: Callable[[str], DeviceKeys]
) -> None:
    ticket = ticket_for(new_household())
    with pytest.raises(JoinError, match="not the one"):
        join.Joiner.start(
            ticket, keys_of("bert"), peer=b"p" * 32, entropy=b"j" * 32, name="bert", tier="laptop", now_s=0
        )


def test_an_owner_who_declines_leaves_the_invitation_open(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.approve = False
    table.run()
    assert isinstance(table.errors["joiner"], JoinDeclined)
    assert "inviter ConsumeInvitation" not in table.done
    assert table.record is not None
    assert table.record.state == "open"


def test_a_name_that_is_taken_is_refused_before_the_owner_is_asked(new_table: Callable[..., Table]) -> None:
    table = new_table(name="Anna").run()
    assert "--name" in str(table.errors["joiner"])
    assert "inviter AskApproval" not in table.done


def test_versions_without_overlap_are_refused_by_name(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.to_inviter = [dataclasses.replace(table.to_inviter[0], versions=(7, 8))]
    table.run()
    assert isinstance(table.errors["joiner"], VersionUnsupported)
    assert "[7, 8]" in str(table.errors["joiner"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (m.JoinOpen, "exchange"), (m.JoinExchange, "exchange"), (m.JoinConfirm, "mac"), (m.JoinOffer, "mac"),
        (m.JoinOffer, "sealed"), (m.JoinRequest, "sealed"), (m.JoinEntries, "sealed"), (m.JoinDone, "mac"),
    ],
)  # fmt: skip
def test_a_changed_message_ends_the_join_and_grants_nothing_more(
    new_table: Callable[..., Table], kind: type[m.Message], name: str
) -> None:
    def flip(message: Any) -> m.Message:
        if not isinstance(message, kind):
            return message
        value = getattr(message, name)
        return dataclasses.replace(message, **{name: value[:-1] + bytes([value[-1] ^ 1])})

    table = new_table()
    table.change = flip
    table.run()
    assert table.errors
    if kind is not m.JoinDone:
        assert table.stored is None


def test_a_downgraded_list_of_versions_is_noticed(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.to_inviter = [dataclasses.replace(table.to_inviter[0], versions=(1, 2))]
    assert isinstance(table.run().errors["joiner"], CodeWrong)


def test_a_replayed_transcript_is_refused(new_table: Callable[..., Table]) -> None:
    heard: list[m.Message] = []
    table = new_table()
    table.change = lambda message: heard.append(message) or message
    table.run()
    again = new_table()
    again.inviter = dataclasses.replace(again.inviter, entropy=b"n" * 32)
    for message in heard:
        if isinstance(message, m.JoinOpen | m.JoinConfirm | m.JoinRequest):
            again.tell("inviter", join.Received(message))
    assert isinstance(again.errors["inviter"], CodeWrong)


def test_two_joiners_with_one_code_end_with_one_member(
    new_table: Callable[..., Table], keys_of: Callable[[str], DeviceKeys]
) -> None:
    """The store hands out the stored record; the second attempt finds it consumed."""
    first = new_table().run()
    second = new_table(record=first.record).run()
    assert second.stored is None
    assert isinstance(second.errors["joiner"], InvitationUsed)


def test_an_invitation_that_can_not_be_stored_grants_nothing(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.act = lambda side, actions: Table.act(  # type: ignore[method-assign]
        table, side, tuple(one for one in actions if not isinstance(one, join.ConsumeInvitation))
    )
    table.run()
    assert table.inviter.phase == "consuming"
    table.tell("inviter", join.Aborted(InvitationUsed("Taken by another attempt.")))
    table.run()
    assert isinstance(table.errors["joiner"], InvitationUsed)
    assert "inviter Certify" not in table.done


@pytest.mark.parametrize(
    "after", ["JoinOpen", "JoinExchange", "JoinConfirm", "JoinOffer", "JoinRequest", "JoinEntries"]
)
def test_whoever_loses_the_other_side_is_told(new_table: Callable[..., Table], after: str) -> None:
    table = new_table()

    class Cut(Exception):
        pass

    def cut(message: m.Message) -> m.Message:
        if type(message).__name__ == after:
            raise Cut
        return message

    table.change = cut
    with pytest.raises(Cut):
        table.run()
    for side in ("joiner", "inviter"):
        table.tell(side, join.PeerGone())
        assert isinstance(table.errors[side], JoinInterrupted)
    assert table.stored is None


def test_a_silent_other_side_ends_the_join_at_its_deadline(new_table: Callable[..., Table]) -> None:
    table = new_table()
    for side in ("joiner", "inviter"):
        table.now_s = NOW_S + limits.join_attempt_s_max - 1
        table.tell(side, join.Tick())
        assert side not in table.errors
        table.now_s = NOW_S + limits.join_attempt_s_max
        table.tell(side, join.Tick())
        assert isinstance(table.errors[side], JoinInterrupted)


def test_an_inviter_that_certifies_with_another_role_is_not_joined(new_table: Callable[..., Table]) -> None:
    table = new_table()
    honest = table.certify
    table.certify = lambda action: honest(dataclasses.replace(action, role="admin"))  # type: ignore[method-assign]
    table.run()
    assert "another role" in str(table.errors["joiner"])
    assert table.stored is None


def test_a_chain_without_our_certificate_is_not_joined(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.certify = lambda action: table.tell(  # type: ignore[method-assign]
        "inviter", join.Certified(table.household.chain.raws())
    )
    table.run()
    assert "no valid certificate" in str(table.errors["joiner"])


def test_a_long_chain_comes_in_several_batches(
    new_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "chain_batch_bytes_max", 700)
    table = new_table()
    seen: list[m.Message] = []
    table.change = lambda message: seen.append(message) or message
    table.run()
    batches = [message for message in seen if isinstance(message, m.JoinEntries)]
    assert [batch.more for batch in batches] == [True] * (len(batches) - 1) + [False]
    assert len(batches) > 1
    assert table.errors == {}


EVENTS = st.sampled_from(
    [
        join.Tick(), join.PeerGone(), join.Approved(True), join.Approved(False), join.Consumed(), join.Stored(),
        join.Certified((b"x",)), join.Received(m.JoinConfirm(bytes(32))), join.Received(m.JoinDone(bytes(32))),
        join.Received(m.JoinExchange(1, bytes(33))), join.Received(m.JoinExchange(1, b"B" + b"\xff" * 32)),
        join.Received(m.JoinOpen((1,), "code", CODE.selector, b"A" + bytes(32))),
        join.Received(m.JoinOpen((1,), "code", CODE.selector, bytes(32))),
        join.Received(m.JoinOpen((1,), "ticket", CODE.selector, bytes(32))),
        join.Received(m.JoinOffer(bytes(32), bytes(40))), join.Received(m.JoinRequest(bytes(40))),
        join.Received(m.JoinEntries(bytes(40), True)), join.Received(m.Ping(1)), join.Received(m.JoinRefuse("E_X", "")),
    ]
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])  # it only makes tables
@given(st.lists(EVENTS, max_size=8), st.lists(EVENTS, max_size=8), st.binary(min_size=33, max_size=33))
def test_no_order_of_events_raises_or_grants_without_the_secret(
    new_table: Callable[..., Table], ours: list[join.Event], theirs: list[join.Event], share: bytes
) -> None:
    table = new_table()
    table.to_inviter.clear()
    for event in ours:
        table.tell("inviter", event)
    table.to_joiner.clear()
    table.tell("joiner", join.Received(m.JoinExchange(1, share)))
    for event in theirs:
        table.tell("joiner", event)
    assert "inviter AskApproval" not in table.done
    assert "inviter Certify" not in table.done
    assert "joiner StoreChain" not in table.done


def test_a_typed_code_gives_the_same_secret_as_the_shown_one() -> None:
    assert parse_code(f"  {CODE.text.replace('-', ' ').upper()} ").secret == CODE.secret
