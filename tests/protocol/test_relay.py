"""The relay's messages, voucher and rules: the bytes are libp2p's own, and only siblings are served."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.peer.envelope import unmarshal_envelope
from libp2p.relay.circuit_v2.pb import circuit_pb2 as theirs
from nacl.signing import SigningKey

from hinet_protocol import limits
from hinet_protocol.chain import make_device_revoke
from hinet_protocol.errors import RelayMalformed
from hinet_protocol.identity import DeviceKeys, peer_id_bytes
from hinet_protocol.relay import (
    Arrived,
    CallTarget,
    CircuitEnded,
    Cut,
    Desk,
    Frames,
    Grew,
    Hop,
    HopKind,
    Limit,
    Reached,
    RelayLimits,
    Reply,
    Reservation,
    Start,
    Status,
    Stop,
    StopKind,
    Ticked,
    check_voucher,
    frame,
    make_voucher,
)
from hinet_protocol.relay.protobuf import bytes_field, number_field

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "protocol" / "vectors" / "5-relay.json").read_text())
SEED = b"r" * 32
RELAY = bytes(SigningKey(SEED).verify_key)
PEER = bytes(SigningKey(b"p" * 32).verify_key)

KEYS = st.binary(min_size=32, max_size=32)
LIMITS = st.builds(Limit, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
HOPS = st.builds(
    Hop, st.sampled_from(HopKind), st.none() | KEYS,
    st.none() | st.builds(Reservation, st.integers(0, 2**64 - 1), st.binary(max_size=300)), st.none() | LIMITS,
    st.none() | st.sampled_from(Status))
STOPS = st.builds(Stop, st.sampled_from(StopKind), st.none() | KEYS, st.none() | LIMITS,
                  st.none() | st.sampled_from(Status))


def their_hop(message: Hop) -> Any:
    built = theirs.HopMessage(type=int(message.kind))
    if message.peer is not None:
        built.peer.id = peer_id_bytes(message.peer)
    if message.reservation is not None:
        built.reservation.expire = message.reservation.expires_s
        if message.reservation.voucher:
            built.reservation.voucher = message.reservation.voucher
    if message.limit is not None:
        fill_limit(built.limit, message.limit)
    if message.status is not None:
        built.status = int(message.status)
    return built


def fill_limit(built: Any, limit: Limit) -> None:
    built.SetInParent()
    if limit.duration_s:
        built.duration = limit.duration_s
    if limit.data_bytes:
        built.data = limit.data_bytes


@given(HOPS)
def test_hop_messages_have_the_bytes_that_libp2ps_own_classes_make(message: Hop) -> None:
    assert message.encode() == their_hop(message).SerializeToString(deterministic=True)
    assert Hop.decode(message.encode()) == message


@given(STOPS)
def test_stop_messages_are_read_by_libp2ps_own_classes_and_back(message: Stop) -> None:
    built = theirs.StopMessage()
    built.ParseFromString(message.encode())
    assert built.SerializeToString(deterministic=True) == message.encode()
    assert (built.type, built.status) == (message.kind, message.status or 0)
    assert built.peer.id == (peer_id_bytes(message.peer) if message.peer is not None else b"")
    assert Stop.decode(message.encode()) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed_and_nothing_else(raw: bytes) -> None:
    for kind in (Hop, Stop):
        try:
            kind.decode(raw)
        except RelayMalformed:
            pass


@given(HOPS, st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_never_raises_anything_else(message: Hop, at: int, value: int) -> None:
    raw = bytearray(message.encode())
    raw[at % len(raw)] = value
    try:
        Hop.decode(bytes(raw))
    except RelayMalformed:
        pass


def test_fields_of_a_newer_version_are_left_alone() -> None:
    raw = Hop(HopKind.RESERVE).encode() + bytes.fromhex("7801 8201026869 8d0100000000")
    assert Hop.decode(raw) == Hop(HopKind.RESERVE)
    assert Hop.decode(Hop(HopKind.STATUS).encode() + b"\x28\xe7\x07").status == Status.UNUSED


@pytest.mark.parametrize("raw", [
    b"\x08\x07", b"\x12\x7f", b"\x12\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * 10, b"\x0f", b"\x02\x01a", b"\x08",
    b"\x12\x04\x0a\x02hi", b"\x78\x01" * 65,
], ids=lambda raw: raw[:6].hex())
def test_messages_that_are_wrong_are_refused(raw: bytes) -> None:
    with pytest.raises(RelayMalformed):
        Hop.decode(raw)


@pytest.mark.parametrize("head", [b"\x00", b"\x81\x20", b"\xff\xff", b"\x80\x80"])
def test_a_length_that_is_not_allowed_is_refused_before_a_byte_of_the_message(head: bytes) -> None:
    frames = Frames()
    for at in range(len(head) - 1):
        frames.feed(head[at:at + 1])
    with pytest.raises(RelayMalformed):
        frames.feed(head[-1:])


def test_a_frame_takes_no_byte_that_follows_it() -> None:
    sent = frame(Hop(HopKind.STATUS, peer=PEER, reservation=Reservation(7, b"v" * 200), status=Status.OK)) + b"rest"
    frames, at = Frames(), 0
    while frames.wanted:
        taken = min(frames.wanted, 3)
        frames.feed(sent[at:at + taken])
        at += taken
    assert sent[at:] == b"rest"
    assert Hop.decode(frames.message).peer == PEER


def test_a_voucher_is_checked_against_relay_device_and_signature() -> None:
    voucher = make_voucher(SEED, PEER, 1_800_000_000)
    assert check_voucher(voucher, relay=RELAY, peer=PEER) == 1_800_000_000
    for relay, peer in ((PEER, PEER), (RELAY, RELAY)):
        with pytest.raises(RelayMalformed):
            check_voucher(voucher, relay=relay, peer=peer)
    for at in range(len(voucher)):
        changed = voucher[:at] + bytes([voucher[at] ^ 1]) + voucher[at + 1:]
        with pytest.raises(RelayMalformed):
            check_voucher(changed, relay=RELAY, peer=PEER)


def test_a_relays_signature_under_another_relays_name_is_no_voucher() -> None:
    payload = bytes_field(1, peer_id_bytes(PEER)) + bytes_field(2, peer_id_bytes(PEER)) + number_field(3, 7)
    signed = b"".join(bytes([len(part)]) + part for part in (b"libp2p-relay-rsvp", b"\x03\x02", payload))
    signature = SigningKey(SEED).sign(signed).signature
    key = bytes_field(1, b"\x08\x01\x12\x20" + RELAY)
    forged = key + bytes_field(2, b"\x03\x02") + bytes_field(3, payload) + bytes_field(5, signature)
    with pytest.raises(RelayMalformed, match="another device"):
        check_voucher(forged, relay=RELAY, peer=PEER)


def test_the_voucher_is_an_envelope_that_libp2p_reads_and_believes() -> None:
    one = VECTORS["voucher"]
    envelope = unmarshal_envelope(bytes.fromhex(one["hex"]))
    envelope.validate("libp2p-relay-rsvp")
    assert envelope.raw_payload.hex() == one["payload"]
    voucher = theirs.Voucher()
    voucher.ParseFromString(envelope.raw_payload)
    assert (voucher.relay, voucher.peer, voucher.expiration) == (
        peer_id_bytes(RELAY), peer_id_bytes(PEER), one["expires_s"])


@pytest.mark.parametrize("one", VECTORS["messages"], ids=lambda one: one["name"])
def test_messages_have_the_bytes_of_the_vectors(one: dict[str, Any]) -> None:
    kind = Hop if one["stream"] == "hop" else Stop
    raw = bytes.fromhex(one["hex"])
    frames = Frames()
    while frames.wanted:
        taken, raw = raw[:frames.wanted], raw[frames.wanted:]
        frames.feed(taken)
    assert not raw
    message = kind.decode(frames.message)
    assert frame(message).hex() == one["hex"]
    assert (message.kind.name, message.status.name if message.status is not None else None) == (
        one["type"], one["status"])
    assert (message.peer.hex() if message.peer else None) == one["peer"]


def test_the_voucher_of_the_vectors_is_made_and_read() -> None:
    one = VECTORS["voucher"]
    made = make_voucher(bytes.fromhex(one["relay_seed"]), bytes.fromhex(one["peer"]), one["expires_s"])
    assert made.hex() == one["hex"]


# --- the rules -------------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(household: Any) -> tuple[Desk, DeviceKeys, DeviceKeys]:
    """A relay of the household of anna, with two members."""
    first, second = household.add("first"), household.add("second")
    return Desk(household.admin.public, household.chain), first, second


def asked(stream: int, peer: bytes, kind: HopKind = HopKind.RESERVE, target: bytes | None = None,
          relayed: bool = False) -> Arrived:
    return Arrived(stream, stream, peer, Hop(kind, peer=target), relayed, 1_000)


def status(actions: Any) -> Status | None:
    (reply,) = actions
    assert isinstance(reply, Reply)
    return reply.message.status


def test_a_circuit_needs_a_reservation_and_the_called_devices_yes(desk: Any) -> None:
    state, first, second = desk
    state, actions = state.step(asked(1, first.public, HopKind.CONNECT, second.public), 0)
    assert status(actions) == Status.NO_RESERVATION
    state, actions = state.step(asked(2, second.public), 0)
    assert actions[0].message.reservation == Reservation(1_000 + limits.relay_reservation_s)
    assert (status(actions), actions[0].voucher_for) == (Status.OK, second.public)
    state, actions = state.step(asked(3, first.public, HopKind.CONNECT, second.public), 5)
    assert actions == (CallTarget(3, 2, first.public, state.limits.circuit),)
    refused, actions = state.step(Reached(3, False), 6)
    assert (status(actions), dict(refused.circuits)) == (Status.CONNECTION_FAILED, {})
    state, actions = state.step(Reached(3, True), 6)
    assert (actions[0].message.status, actions[1]) == (Status.OK, Start(3))
    state, _ = state.step(CircuitEnded(3), 7)
    assert not state.circuits
    assert state.step(Reached(3, True), 8) == (state, ())  # too late


def test_a_reservation_ends_after_its_time_and_a_circuit_after_its(desk: Any) -> None:
    state, first, second = desk
    state = replace(state, limits=RelayLimits(circuit_s=10))
    state, _ = state.step(asked(1, second.public), 0)
    state, _ = state.step(asked(2, first.public, HopKind.CONNECT, second.public), 0)
    state, _ = state.step(Reached(2, True), 1_000)
    assert state.wake_ms == 11_000
    assert state.step(Ticked(), 10_999) == (state, ())
    state, actions = state.step(Ticked(), 11_000)
    assert isinstance(actions[0], Cut)
    assert state.wake_ms == limits.relay_reservation_s * 1_000
    late, actions = state.step(asked(3, first.public, HopKind.CONNECT, second.public), state.wake_ms)
    assert status(actions) == Status.NO_RESERVATION  # also before the clock was asked
    assert not late.step(Ticked(), state.wake_ms)[0].reservations


def test_nobody_but_live_siblings_on_direct_connections_is_served(desk: Any, household: Any) -> None:
    state, first, second = desk
    state, _ = state.step(asked(1, second.public), 0)
    state, _ = state.step(asked(2, first.public, HopKind.CONNECT, second.public), 0)
    for one in (asked(3, b"s" * 32), asked(3, first.public, relayed=True), asked(3, state.own),
                asked(3, b"s" * 32, HopKind.CONNECT, second.public), asked(3, b"s" * 32, HopKind.STATUS),
                asked(3, first.public, HopKind.CONNECT, b"s" * 32)):
        after, actions = state.step(one, 1)
        assert (status(actions), after) == (Status.PERMISSION_DENIED, state)
    household.take(make_device_revoke(household.chain, household.root, second.public, time_s=3))
    state, actions = state.step(Grew(household.chain), 2)
    assert status(state.step(asked(4, first.public), 3)[1]) == Status.OK
    assert actions == (Cut(2, "a device was removed from the household"),)
    assert (dict(state.reservations), dict(state.circuits)) == ({}, {})
    assert status(state.step(asked(4, second.public), 3)[1]) == Status.PERMISSION_DENIED


def test_a_relay_that_was_removed_itself_serves_nobody(desk: Any, household: Any) -> None:
    state, first, second = desk
    state, _ = state.step(asked(1, second.public), 0)
    state, _ = state.step(asked(2, first.public, HopKind.CONNECT, second.public), 0)
    household.take(make_device_revoke(household.chain, household.root, state.own, time_s=3))
    state, actions = state.step(Grew(household.chain), 2)
    assert isinstance(actions[0], Cut)
    assert status(state.step(asked(4, first.public), 3)[1]) == Status.PERMISSION_DENIED


def test_two_devices_have_few_circuits_between_them_whoever_calls(desk: Any) -> None:
    state, first, second = desk
    for number, one in enumerate((first, second)):
        state, _ = state.step(asked(number, one.public), 0)
    for number in range(10, 10 + limits.relay_circuits_pair_max):
        source, target = (first, second) if number % 2 else (second, first)
        state, actions = state.step(asked(number, source.public, HopKind.CONNECT, target.public), 1)
        assert isinstance(actions[0], CallTarget)
    refused = state.step(asked(99, first.public, HopKind.CONNECT, second.public), 1)[1]
    assert status(refused) == Status.RESOURCE_LIMIT_EXCEEDED


def test_reservations_and_circuits_are_bounded_and_a_renewal_always_fits(desk: Any) -> None:
    state, first, second = desk
    state = replace(state, limits=RelayLimits(reservations=1, circuits=3, circuits_each=2))
    state, _ = state.step(asked(1, second.public), 0)
    assert status(state.step(asked(2, first.public), 0)[1]) == Status.RESERVATION_REFUSED
    state, actions = state.step(asked(3, second.public), 500)
    assert status(actions) == Status.OK
    for stream in (4, 5):
        state, actions = state.step(asked(stream, first.public, HopKind.CONNECT, second.public), 600)
        assert isinstance(actions[0], CallTarget)
        assert actions[0].link == 3  # the newer connection
    assert status(state.step(asked(6, first.public, HopKind.CONNECT, second.public), 600)[1]) == (
        Status.RESOURCE_LIMIT_EXCEEDED)


@given(st.lists(st.tuples(st.sampled_from(["reserve", "connect", "yes", "no", "end", "tick", "stranger"]),
                          st.integers(0, 3), st.integers(0, 1)), max_size=60))
def test_no_order_of_events_breaks_a_bound(events: list[tuple[str, int, int]]) -> None:
    state, members = _BOUNDED()
    now_ms = 0
    for number, (what, stream, which) in enumerate(events):
        now_ms += 700_000 if what == "tick" else 1
        me, other = members[which], members[1 - which]
        event: Any = {
            "reserve": asked(100 + number, me), "connect": asked(stream, me, HopKind.CONNECT, other),
            "yes": Reached(stream, True), "no": Reached(stream, False), "end": CircuitEnded(stream),
            "tick": Ticked(), "stranger": asked(stream, b"s" * 32, HopKind.CONNECT, me),
        }[what]
        if what == "connect" and stream in state.circuits:
            continue  # the caller gives each stream a number of its own
        state, actions = state.step(event, now_ms)
        assert len(state.circuits) <= 3
        assert len(state.reservations) <= 2
        assert all(one.expires_ms > now_ms for one in state.reservations.values()) or what != "tick"
        assert not (what == "stranger" and status(actions) != Status.PERMISSION_DENIED)
    for stream in range(4):
        state, _ = state.step(CircuitEnded(stream), now_ms)
    assert not state.circuits


def _bounded() -> Callable[[], tuple[Desk, tuple[bytes, bytes]]]:
    from hinet_protocol.chain import Chain, make_device_add, make_genesis
    from hinet_protocol.identity import RootKey

    root = RootKey(b"r" * 32)
    chain = Chain.from_entries([make_genesis(root, 1)])
    keys = [DeviceKeys.from_entropy(bytes([number]) * 64) for number in range(2)]
    for number, one in enumerate(keys):
        chain = chain.with_entries([make_device_add(chain, root, name=f"d{number}", public=one.public, role="member",
                                                    box_public=one.box_public, tier="laptop", time_s=1)])
    state = Desk(b"o" * 32, chain, RelayLimits(reservations=2, circuits=3, circuits_each=3))
    return lambda: (state, (keys[0].public, keys[1].public))


_BOUNDED = _bounded()
