from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hinet_protocol import canonical, limits, session
from hinet_protocol import messages as m
from hinet_protocol.chain import Chain, entry_hash, make_device_revoke
from hinet_protocol.chain.entries import parse_entry
from hinet_protocol.errors import (
    CloneDetected,
    DeviceRevoked,
    EntryUnsupported,
    ProtocolError,
    SessionBusy,
    SessionError,
    SessionSilent,
    SessionViolation,
    Stranger,
    VersionUnsupported,
)
from hinet_protocol.identity import DeviceKeys, Signer
from hinet_protocol.session import Session


def hello(keys: DeviceKeys, chain: Chain, **changes: Any) -> m.Hello:
    made = m.Hello(
        (1,), chain.identity_id, keys.public, keys.public[:16], chain.height, chain.heads, "laptop", ("torch",),
        8 << 30, (), (), "hinet-node 0.1.0", 1_800_000_000,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


@dataclass
class End:
    """One end with its keys; what the caller of the machine would do is done at once."""

    state: Session
    outbox: list[m.Message] = field(default_factory=list)
    done: list[session.Action] = field(default_factory=list)
    now_ms: int = 1_000

    def step(self, event: session.Event) -> None:
        self.state, actions = self.state.step(event, self.now_ms)
        self.act(actions)

    def act(self, actions: tuple[session.Action, ...]) -> None:
        self.done += actions
        for action in actions:
            if isinstance(action, session.Send):
                self.outbox.append(action.message)
            elif isinstance(action, session.ImportEntries):
                merged = self.state.chain.merge(action.entries)
                self.step(session.ChainChanged(merged.chain, merged.rejected))

    def hear(self, message: m.Message) -> None:
        self.step(session.Received(m.from_wire(m.to_wire(message))))

    def kinds(self) -> list[str]:
        return [type(action).__name__ for action in self.done]


def connect(
    left: DeviceKeys, right: DeviceKeys, left_chain: Chain, right_chain: Chain, **right_hello: Any
) -> tuple[End, End]:
    ends = []
    for me, other, chain, changes in ((left, right, left_chain, {}), (right, left, right_chain, right_hello)):
        state, actions = Session.start(hello(me, chain, **changes), other.public, chain, 1_000)
        end = End(state)
        end.act(actions)
        ends.append(end)
    exchange(*ends)
    return ends[0], ends[1]


def exchange(left: End, right: End) -> None:
    for _ in range(1_000):
        if not left.outbox and not right.outbox:
            return
        for one, other in ((left, right), (right, left)):
            if one.outbox:
                other.hear(one.outbox.pop(0))
    raise AssertionError("the two ends never come to rest")


@pytest.fixture
def pair(household: Any) -> tuple[End, End]:
    bert = household.add("bert")
    return connect(household.admin, bert, household.chain, household.chain)


def closed_with(end: End) -> ProtocolError | None:
    (closed,) = [action for action in end.done if isinstance(action, session.Closed)]
    assert end.state.phase == "closed"
    return closed.error


def test_two_devices_with_the_same_chain_open_a_session(pair: tuple[End, End]) -> None:
    for end in pair:
        assert end.state.phase == "open"
        assert end.state.version == 1
        opened = [action for action in end.done if isinstance(action, session.Opened)]
        assert len(opened) == 1
        assert opened[0].device.public == end.state.peer
        assert opened[0].hello.tier == "laptop"


def test_each_side_pulls_what_it_lacks_before_it_judges(household: Any) -> None:
    bert = household.add("bert")
    known_to_both = household.chain
    household.add("cora")
    ahead = household.chain
    household.chain = known_to_both
    household.add("dora")
    left, right = connect(household.admin, bert, ahead, household.chain)
    assert left.state.phase == right.state.phase == "open"
    assert left.state.chain == right.state.chain
    assert {device.name for device in left.state.chain.members()} == {"anna", "bert", "cora", "dora"}
    for end in (left, right):
        assert end.kinds().index("ImportEntries") < end.kinds().index("Opened")


def test_a_device_that_the_other_does_not_know_yet_shows_its_certificate(household: Any) -> None:
    before = household.chain
    cora = household.add("cora")
    left, right = connect(household.admin, cora, before, household.chain)
    assert left.state.phase == right.state.phase == "open"


def test_a_long_chain_is_pulled_in_rounds(household: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = household.chain
    for number in range(12):
        household.add(f"device {number}")
    monkeypatch.setattr(limits, "chain_batch_entries_max", 2)
    cora = household.add("cora")
    left, right = connect(household.admin, cora, short, household.chain)
    assert left.state.phase == right.state.phase == "open"
    assert left.kinds().count("ImportEntries") == 7


def test_a_stranger_is_told_why_and_nothing_else(household: Any, new_household: Callable[[str], Any]) -> None:
    other = new_household("otto")
    left, right = connect(household.admin, other.admin, household.chain, other.chain)
    assert isinstance(closed_with(left), Stranger)
    assert isinstance(closed_with(right), Stranger)
    assert left.kinds() == ["Send", "Send", "Closed"]


RICH = {"backends": ("torch",), "memory_bytes": 1 << 34, "bases": (b"b" * 32,), "addresses": ("/ip4/192.0.2.1/tcp/1",),
        "agent": "1.0"}  # fmt: skip
BARE = {"backends": (), "memory_bytes": 0, "bases": (), "addresses": (), "agent": ""}


def answering(me: DeviceKeys, peer: bytes, chain: Chain) -> End:
    """The end that was dialled, with much to tell."""
    state, actions = Session.start(hello(me, chain, **RICH), peer, chain, 1_000, dialled=False)
    end = End(state)
    end.act(actions)
    return end


def test_a_stranger_that_dials_hears_a_refusal_and_not_even_a_hello(
    household: Any, new_household: Callable[[str], Any]
) -> None:
    other = new_household("otto")
    end = answering(household.admin, other.admin.public, household.chain)
    assert end.outbox == []
    end.hear(hello(other.admin, other.chain))
    assert [type(message).__name__ for message in end.outbox] == ["Goodbye"]
    assert isinstance(closed_with(end), Stranger)


def test_a_stranger_that_claims_our_identity_learns_nothing_of_the_machine(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    eve = keys_of("eve")
    end = answering(household.admin, eve.public, household.chain)
    end.hear(hello(eve, household.chain))
    assert [type(message).__name__ for message in end.outbox] == ["Goodbye"]
    end = answering(household.admin, eve.public, household.chain)
    end.hear(hello(eve, household.chain, heads=(b"z" * 32,)))  # as a device that joined a moment ago
    end.hear(m.ChainEntries((), False))
    assert isinstance(closed_with(end), Stranger)
    (said,) = [message for message in end.outbox if isinstance(message, m.Hello)]
    assert {name: getattr(said, name) for name in RICH} == BARE


def test_a_device_that_is_judged_after_the_greeting_hears_then_what_the_other_can_do(household: Any) -> None:
    before = household.chain
    cora = household.add("cora")
    left = answering(household.admin, cora.public, before)
    state, actions = Session.start(hello(cora, household.chain, **RICH), household.admin.public, household.chain, 1_000)
    right = End(state)
    right.act(actions)
    exchange(left, right)
    for end in (left, right):
        (opened,) = [action for action in end.done if isinstance(action, session.Opened)]
        assert {name: getattr(opened.hello, name) for name in RICH} == RICH
    said = [action.message for action in left.done if isinstance(action, session.Send)]
    hellos = [at for at, message in enumerate(said) if isinstance(message, m.Hello)]
    assert len(hellos) == 2
    assert isinstance(said[hellos[1] + 1], m.Ready)


@pytest.mark.parametrize("change", ["device", "boot_nonce", "heads", "third", "after a rich one"])
def test_a_second_hello_is_taken_once_and_only_to_add_what_was_left_out(household: Any, change: str) -> None:
    bert = household.add("bert")
    ahead = (b"z" * 32,)  # so that the end is busy with a pull and has not judged
    end = answering(household.admin, bert.public, household.chain)
    first = hello(bert, household.chain, heads=ahead, **(RICH if change == "after a rich one" else BARE))
    end.hear(first)
    changes: dict[str, Any] = {"device": {"device": b"x" * 32}, "boot_nonce": {"boot_nonce": b"y" * 16},
                               "heads": {"heads": household.chain.heads}}  # fmt: skip
    end.hear(dataclasses.replace(first, **{**RICH, **changes.get(change, {})}))
    if change == "third":
        assert end.state.phase == "judging"
        end.hear(dataclasses.replace(first, **RICH))
    assert isinstance(closed_with(end), SessionViolation)


def test_a_stranger_that_claims_our_identity_gets_no_entries(
    household: Any, new_household: Callable[[str], Any], keys_of: Callable[[str], DeviceKeys]
) -> None:
    eve = keys_of("eve")
    state, actions = Session.start(hello(household.admin, household.chain), eve.public, household.chain, 1_000)
    end = End(state)
    end.act(actions)
    end.hear(hello(eve, household.chain, heads=(b"z" * 32,)))
    end.hear(m.ChainGet((household.chain.genesis.hash,)))
    end.hear(m.ChainEntries((), False))
    assert isinstance(closed_with(end), Stranger)
    assert not any(isinstance(message, m.ChainEntries) for message in end.outbox)
    assert [type(message).__name__ for message in end.outbox] == ["Hello", "ChainGet", "Goodbye"]


def test_a_stranger_that_sends_foreign_entries_is_refused(
    household: Any, new_household: Callable[[str], Any], keys_of: Callable[[str], DeviceKeys]
) -> None:
    eve, other = keys_of("eve"), new_household("otto")
    state, actions = Session.start(hello(household.admin, household.chain), eve.public, household.chain, 1_000)
    end = End(state)
    end.act(actions)
    end.hear(hello(eve, household.chain, heads=other.chain.heads))
    end.hear(m.ChainEntries(other.chain.raws(), False))
    error = closed_with(end)
    assert error is not None
    assert error.code == "E_CHAIN_FOREIGN"


def test_a_hello_must_name_the_key_that_the_connection_proved(household: Any) -> None:
    bert = household.add("bert")
    _, right = connect(household.admin, bert, household.chain, household.chain, device=b"x" * 32)
    left, _ = connect(household.admin, bert, household.chain, household.chain, device=b"x" * 32)
    assert isinstance(closed_with(left), SessionViolation)
    assert isinstance(closed_with(right), SessionViolation)  # told so by the Goodbye


def test_versions_without_overlap_are_refused_by_name(household: Any) -> None:
    bert = household.add("bert")
    left, _ = connect(household.admin, bert, household.chain, household.chain, versions=(7, 9))
    error = closed_with(left)
    assert isinstance(error, VersionUnsupported)
    assert "[7, 9]" in str(error)


def test_a_copy_of_ourselves_is_a_clone(household: Any) -> None:
    left, right = connect(household.admin, household.admin, household.chain, household.chain, boot_nonce=bytes(16))
    for end in (left, right):
        assert isinstance(closed_with(end), CloneDetected)


def test_a_revoked_device_is_refused_and_hears_why(household: Any) -> None:
    bert = household.add("bert")
    old = household.chain
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=1))
    left, right = connect(household.admin, bert, household.chain, old)
    assert isinstance(closed_with(left), DeviceRevoked)
    assert isinstance(closed_with(right), DeviceRevoked)
    assert not any(
        isinstance(action, session.Send) and isinstance(action.message, m.ChainEntries) for action in left.done
    )


def test_a_revocation_learnt_from_a_third_device_closes_the_open_session(household: Any, pair: tuple[End, End]) -> None:
    left, right = pair
    revoke = make_device_revoke(household.chain, household.admin, right.state.own.device, time_s=1)
    left.step(session.ChainChanged(household.chain.with_entries([revoke])))
    assert isinstance(closed_with(left), DeviceRevoked)
    exchange(left, right)
    assert isinstance(closed_with(right), DeviceRevoked)


def test_growth_of_the_chain_reaches_the_other_side(household: Any, pair: tuple[End, End]) -> None:
    left, right = pair
    household.add("cora")
    left.step(session.ChainChanged(household.chain))
    exchange(left, right)
    assert right.state.chain == household.chain
    assert left.state.phase == right.state.phase == "open"


def test_each_side_knows_how_much_of_the_chain_the_other_says_it_holds(household: Any, pair: tuple[End, End]) -> None:
    left, right = pair
    known_to_both = household.chain.heads
    assert left.state.peer_heads == right.state.peer_heads == known_to_both
    household.add("cora")
    left.step(session.ChainChanged(household.chain))
    assert left.state.peer_heads == known_to_both, "nothing was said yet"
    exchange(left, right)
    assert left.state.peer_heads == right.state.peer_heads == household.chain.heads


def test_both_sides_growing_at_once_come_to_one_chain(household: Any, pair: tuple[End, End]) -> None:
    left, right = pair
    start = household.chain
    household.add("cora")
    one, household.chain = household.chain, start
    household.add("dora")
    left.step(session.ChainChanged(one))
    right.step(session.ChainChanged(household.chain))
    exchange(left, right)
    assert left.state.chain == right.state.chain
    assert len(left.state.chain) == len(start) + 2


def test_growth_during_a_pull_is_not_lost(household: Any, pair: tuple[End, End]) -> None:
    """A third device's entries arrive while ours are on their way."""
    left, right = pair
    start = household.chain
    household.add("cora")
    with_cora, household.chain = household.chain, start
    household.add("dora")
    left.step(session.ChainChanged(with_cora))
    right.hear(left.outbox.pop(0))  # the notice: right now asks
    left.step(session.ChainChanged(with_cora.merge(household.chain.raws()).chain))
    exchange(left, right)
    assert right.state.chain == left.state.chain


def test_growth_during_the_greeting_is_not_lost(household: Any) -> None:
    bert = household.add("bert")
    start = household.chain
    left_state, left_first = Session.start(hello(household.admin, start), bert.public, start, 1_000)
    right_state, right_first = Session.start(hello(bert, start), household.admin.public, start, 1_000)
    left, right = End(left_state), End(right_state)
    left.act(left_first)
    right.act(right_first)
    household.add("cora")
    left.step(session.ChainChanged(household.chain))
    exchange(left, right)
    assert right.state.chain == household.chain
    assert right.state.phase == left.state.phase == "open"


def test_an_entry_of_a_newer_version_ends_the_session_with_the_hint_to_upgrade(household: Any) -> None:
    bert = household.add("bert")
    chain: Chain = household.chain
    raw = entry_of_kind(household.admin, chain, "household.rename")
    state, actions = Session.start(hello(household.admin, chain), bert.public, chain, 1_000)
    end = End(state)
    end.act(actions)
    end.hear(hello(bert, chain, heads=(entry_hash(raw),)))
    end.hear(m.ChainEntries((raw,), False))
    error = closed_with(end)
    assert isinstance(error, EntryUnsupported)
    assert "Upgrade" in str(error)


def entry_of_kind(signer: Signer, chain: Chain, kind: str) -> bytes:
    payload = canonical.encode(
        {"v": 1, "id": chain.identity_id, "parents": chain.heads, "signer": signer.public, "time": 1, "kind": kind,
         "body": {}}
    )  # fmt: skip
    return canonical.encode([payload, signer.sign(b"chain-entry", payload)])


def test_chain_entries_without_end_are_a_violation(household: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "chain_pull_rounds_max", 5)
    bert = household.add("bert")
    state, actions = Session.start(hello(household.admin, household.chain), bert.public, household.chain, 1_000)
    end = End(state)
    end.act(actions)
    end.hear(hello(bert, household.chain, heads=(b"z" * 32,)))
    for _ in range(4):
        end.hear(m.ChainEntries(household.chain.raws()[:1], True))
        assert end.state.phase == "judging"
    end.hear(m.ChainEntries(household.chain.raws()[:1], True))
    assert isinstance(closed_with(end), SessionViolation)


def test_batches_go_on_when_both_sides_have_long_branches_of_their_own(
    household: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batches hold only what the asker has already; its next question must lead beyond them."""
    bert = household.add("bert")
    for number in range(6):
        household.add(f"common {number}")
    start = household.chain
    for number in range(9):
        household.add(f"left {number}")
    left_chain, household.chain = household.chain, start
    for number in range(9):
        household.add(f"right {number}")
    monkeypatch.setattr(limits, "chain_batch_entries_max", 1)
    left, right = connect(household.admin, bert, left_chain, household.chain)
    assert left.state.phase == right.state.phase == "open"
    assert left.state.chain == right.state.chain


def test_questions_are_answered_by_number_in_any_order(pair: tuple[End, End]) -> None:
    left, right = pair
    numbers = []
    for after in (b"", b"a" * 32):
        numbers.append(left.state.next_number)
        left.step(session.Ask(m.PacksGet(after, 10)))
    exchange(left, right)
    asked = [action for action in right.done if isinstance(action, session.Asked)]
    assert [one.number for one in asked] == numbers
    right.step(session.AnswerError(numbers[1], SessionBusy("later")))
    right.step(session.Answer(numbers[0], m.PacksList((), False)))
    exchange(left, right)
    assert session.Answered(numbers[0], m.PacksList((), False)) in left.done
    (failed,) = [action for action in left.done if isinstance(action, session.AskFailed)]
    assert failed.number == numbers[1]
    assert isinstance(failed.error, SessionBusy)


def test_questions_are_bounded_on_both_sides(pair: tuple[End, End]) -> None:
    left, right = pair
    for _ in range(limits.requests_outstanding_max):
        left.step(session.Ask(m.HeadsGet(b"")))
    with pytest.raises(SessionBusy):
        left.step(session.Ask(m.HeadsGet(b"")))
    exchange(left, right)
    assert len(right.state.answering) == limits.requests_outstanding_max
    right.hear(m.Request(1_000, m.HeadsGet(b"")))
    assert isinstance(right.outbox[-1], m.ErrorReply)
    assert right.outbox[-1].code == "E_BUSY"
    assert right.state.phase == "open"


def test_a_late_answer_to_a_forgotten_question_is_dropped(pair: tuple[End, End]) -> None:
    left, right = pair
    number = left.state.next_number
    left.step(session.Ask(m.HeadsGet(b"")))
    left.step(session.Forget(number))
    exchange(left, right)
    right.step(session.Answer(number, m.HeadsList(b"", ())))
    exchange(left, right)
    assert left.state.phase == "open"
    assert "Answered" not in left.kinds()


def test_notices_reach_the_other_side(pair: tuple[End, End]) -> None:
    left, right = pair
    left.step(session.Push(m.VaultChanged(b"d" * 32)))
    exchange(left, right)
    assert session.Noticed(m.VaultChanged(b"d" * 32)) in right.done


def test_an_orderly_end_fails_open_questions_and_is_no_error(pair: tuple[End, End]) -> None:
    left, right = pair
    left.step(session.Ask(m.HeadsGet(b"")))
    right.step(session.Shut())
    exchange(left, right)
    assert closed_with(right) is None
    assert closed_with(left) is None
    (failed,) = [action for action in left.done if isinstance(action, session.AskFailed)]
    assert isinstance(failed.error, SessionError)
    with pytest.raises(SessionError, match="not open"):
        left.step(session.Ask(m.HeadsGet(b"")))


def test_a_lost_connection_with_open_questions_is_an_error(pair: tuple[End, End]) -> None:
    left, right = pair
    left.step(session.Ask(m.HeadsGet(b"")))
    left.step(session.PeerGone())
    assert isinstance(closed_with(left), SessionError)
    right.step(session.PeerGone())
    assert closed_with(right) is None


@pytest.mark.parametrize(
    "message",
    [
        m.Ready(),
        m.ChainEntries((b"x",), False),
        m.Response(5, m.HeadsList(b"", ())),
        m.HeadsGet(b""),
        m.PackBytes(b"p" * 32, 0, 1, b"x"),
        m.JoinConfirm(bytes(32)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_may_not_come_on_an_open_session_closes_it(pair: tuple[End, End], message: m.Message) -> None:
    left, _ = pair
    left.hear(message)
    assert isinstance(closed_with(left), SessionViolation)
    assert left.outbox[-1].code == "E_VIOLATION"


def test_a_second_hello_or_a_number_used_twice_closes_the_session(pair: tuple[End, End]) -> None:
    left, right = pair
    right.hear(left.state.own)
    assert isinstance(closed_with(right), SessionViolation)
    left.hear(m.Request(1, m.HeadsGet(b"")))
    left.hear(m.Request(1, m.HeadsGet(b"")))
    assert isinstance(closed_with(left), SessionViolation)


@pytest.mark.parametrize(
    "message", [m.Ping(1), m.Ready(), m.ChainGet(()), m.Request(1, m.HeadsGet(b"")), m.VaultChanged(b"d" * 32)],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
def test_nothing_may_come_before_the_hello(household: Any, message: m.Message) -> None:
    bert = household.add("bert")
    state, _ = Session.start(hello(household.admin, household.chain), bert.public, household.chain, 1_000)
    end = End(state)
    end.hear(message)
    assert isinstance(closed_with(end), SessionViolation)


def test_no_question_is_served_before_both_are_ready(household: Any) -> None:
    bert = household.add("bert")
    state, _ = Session.start(hello(household.admin, household.chain), bert.public, household.chain, 1_000)
    end = End(state)
    end.hear(hello(bert, household.chain))
    assert end.state.phase == "waiting"
    end.hear(m.Request(1, m.HeadsGet(b"")))
    assert isinstance(closed_with(end), SessionViolation)


def test_an_idle_session_pings_and_a_silent_one_ends(pair: tuple[End, End]) -> None:
    left, right = pair
    assert left.state.wake_ms == 1_000 + limits.heartbeat_idle_ms
    left.now_ms = right.now_ms = left.state.wake_ms
    left.step(session.Tick())
    assert left.outbox == [m.Ping(left.now_ms)]
    exchange(left, right)
    assert left.state.received_ms == left.now_ms
    for _ in range(2):
        left.now_ms = left.state.wake_ms
        left.step(session.Tick())
        left.outbox.clear()
    assert left.state.phase == "open"
    left.now_ms = left.state.wake_ms
    left.step(session.Tick())
    assert isinstance(closed_with(left), SessionSilent)


def test_a_greeting_that_does_not_end_is_ended(household: Any) -> None:
    bert = household.add("bert")
    state, _ = Session.start(hello(household.admin, household.chain), bert.public, household.chain, 1_000)
    end = End(state)
    end.now_ms = state.wake_ms - 1
    end.hear(hello(bert, household.chain))
    end.step(session.Tick())
    assert end.state.phase == "waiting"
    end.now_ms = state.wake_ms
    end.step(session.Tick())
    assert isinstance(closed_with(end), SessionSilent)


def test_a_restarted_device_and_a_clone_are_told_apart_by_a_probe(pair: tuple[End, End]) -> None:
    left, right = pair
    first = left.state.hello
    assert first is not None
    second = dataclasses.replace(first, boot_nonce=bytes(16))
    verdict = session.session_verdict(first, second, own=left.state.own.device, second_dialled_by_us=False)
    assert verdict == session.SUSPECT
    left.now_ms = 2_000
    left.step(session.Probe())
    assert not session.answered_probe(left.state, 2_000)
    exchange(left, right)
    assert session.answered_probe(left.state, 2_000)
    assert not session.answered_probe(left.state, 2_001)


def test_both_ends_keep_the_same_one_of_two_connections(pair: tuple[End, End]) -> None:
    left, right = pair
    a, b = left.state.own, right.state.own
    verdict = session.session_verdict
    assert verdict(None, b, own=a.device, second_dialled_by_us=True) == session.NEW
    # Left dialled connection 1, right dialled connection 2. Each end names the one that it keeps.
    kept = set()
    for own, other, ours in ((a, b, 1), (b, a, 2)):
        for first in (1, 2):
            found = verdict(
                other, other, own=own.device, first_dialled_by_us=first == ours, second_dialled_by_us=3 - first == ours
            )
            kept.add(first if found == session.KEEP_FIRST else 3 - first)
    assert len(kept) == 1
    assert verdict(b, b, own=a.device, first_dialled_by_us=True, second_dialled_by_us=True) == session.KEEP_SECOND


@pytest.mark.parametrize("first_is_ours", [True, False])
def test_a_connection_that_was_open_long_gives_way_to_a_new_one_whoever_dialled_them(pair: tuple[End, End],
                                                                                     first_is_ours: bool) -> None:
    left, right = pair
    kept = {}
    for open_ms in (limits.twin_sessions_ms - 1, limits.twin_sessions_ms):
        kept[open_ms] = [
            session.session_verdict(other, other, own=own.device, first_dialled_by_us=ours, first_open_ms=open_ms,
                                    second_dialled_by_us=not ours)
            for own, other, ours in ((left.state.own, right.state.own, first_is_ours),
                                     (right.state.own, left.state.own, not first_is_ours))]
    young, old = kept.values()
    assert young[0] == young[1]
    assert old == [session.KEEP_SECOND] * 2


ANY = st.sampled_from(
    [
        m.Ready(), m.Ping(1), m.Pong(1), m.Goodbye("OK", ""), m.Goodbye("E_CLONE", "x"), m.ChainGet(()),
        m.ChainEntries((), False), m.ChainEntries((b"x",), False), m.ChainEntries((), True),
        m.ChainNotice(9, (b"z" * 32,)),
        m.Request(1, m.HeadsGet(b"")), m.Request(2, m.HeadsGet(b"")), m.Response(1, m.HeadsList(b"", ())),
        m.ErrorReply(1, "E_X", ""), m.VaultChanged(b"d" * 32), m.HeadsGet(b""), m.JoinDone(bytes(32)),
    ]
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the states never change
@given(st.lists(ANY, max_size=10), st.booleans())
def test_no_order_of_messages_raises_or_opens_for_a_stranger(
    household: Any, keys_of: Callable[[str], DeviceKeys], heard: list[m.Message], greets: bool
) -> None:
    eve = keys_of("eve")
    state, actions = Session.start(hello(household.admin, household.chain), eve.public, household.chain, 1_000)
    end = End(state)
    end.act(actions)
    if greets:
        end.hear(hello(eve, household.chain, heads=(b"z" * 32,)))
    for message in heard:
        end.hear(message)
    assert "Opened" not in end.kinds()
    assert "Asked" not in end.kinds()
    assert not any(isinstance(message, m.ChainEntries | m.Ready) for message in end.outbox)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the states never change
@given(st.lists(ANY, max_size=10))
def test_no_order_of_messages_of_a_sibling_raises(pair: tuple[End, End], heard: list[m.Message]) -> None:
    end = End(pair[0].state)
    for message in heard:
        end.hear(message)
    assert end.kinds().count("Closed") <= 1
    assert parse_entry(end.state.chain.raws()[0]).kind == "genesis"
