"""The messages of libp2p's circuit relay v2, as protobuf, each with its length before it. SPEC.md, 5.11.

Written by hand, because the few fields need no library and every length is checked before anything is taken from it.
Tests compare the bytes with those that py-libp2p's own classes make. Leaves what a message leads to to `desk`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hinet_protocol import limits
from hinet_protocol.errors import KeyInvalid, RelayMalformed
from hinet_protocol.identity import peer_id_bytes, public_of_peer_id
from hinet_protocol.relay.protobuf import bytes_field, number_field, read_fields, read_varint, varint

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/stop"


class HopKind(enum.IntEnum):
    """What a message to or from a relay is."""

    RESERVE = 0
    CONNECT = 1
    STATUS = 2


class StopKind(enum.IntEnum):
    """What a message between a relay and the device that is called is."""

    CONNECT = 0
    STATUS = 1


class Status(enum.IntEnum):
    """What a relay answers; the numbers are libp2p's."""

    UNUSED = 0
    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


@dataclass(frozen=True)
class Limit:
    """What a circuit may use: seconds, and bytes in each direction. 0 is no limit."""

    duration_s: int = 0
    data_bytes: int = 0


@dataclass(frozen=True)
class Reservation:
    """What a relay promises. `expires_s` is in unix seconds of the relay's clock."""

    expires_s: int
    voucher: bytes = b""


@dataclass(frozen=True)
class Hop:
    """A message on a hop stream. `peer` is an Ed25519 key."""

    kind: HopKind
    peer: bytes | None = None
    reservation: Reservation | None = None
    limit: Limit | None = None
    status: Status | None = None

    def encode(self) -> bytes:
        """Without its length."""
        parts = [number_field(1, self.kind)]
        if self.peer is not None:
            parts.append(bytes_field(2, bytes_field(1, peer_id_bytes(self.peer))))
        if self.reservation is not None:
            inner = number_field(1, self.reservation.expires_s)
            if self.reservation.voucher:
                inner += bytes_field(3, self.reservation.voucher)
            parts.append(bytes_field(3, inner))
        if self.limit is not None:
            parts.append(bytes_field(4, _limit_out(self.limit)))
        if self.status is not None:
            parts.append(number_field(5, self.status))
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: bytes) -> Hop:
        """Raises RelayMalformed."""
        numbers, texts = read_fields(raw)
        peer, reservation, limit = texts.get(2), texts.get(3), texts.get(4)
        return cls(
            kind=_hop_kind(numbers.get(1, 0)),
            peer=None if peer is None else _peer_in(peer),
            reservation=None if reservation is None else _reservation_in(reservation),
            limit=None if limit is None else _limit_in(limit),
            status=_status(numbers.get(5)),
        )


@dataclass(frozen=True)
class Stop:
    """A message on a stop stream. `peer` is an Ed25519 key."""

    kind: StopKind
    peer: bytes | None = None
    limit: Limit | None = None
    status: Status | None = None

    def encode(self) -> bytes:
        """Without its length."""
        parts = [number_field(1, self.kind)]
        if self.peer is not None:
            parts.append(bytes_field(2, bytes_field(1, peer_id_bytes(self.peer))))
        if self.limit is not None:
            parts.append(bytes_field(3, _limit_out(self.limit)))
        if self.status is not None:
            parts.append(number_field(4, self.status))
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: bytes) -> Stop:
        """Raises RelayMalformed."""
        numbers, texts = read_fields(raw)
        peer, limit = texts.get(2), texts.get(3)
        kind = numbers.get(1, 0)
        if kind not in (StopKind.CONNECT, StopKind.STATUS):
            raise RelayMalformed(f"A stop message has no type {kind}.")
        return cls(
            kind=StopKind(kind),
            peer=None if peer is None else _peer_in(peer),
            limit=None if limit is None else _limit_in(limit),
            status=_status(numbers.get(4)),
        )


def frame(message: Hop | Stop) -> bytes:
    """The message as it is sent: its length as a varint, then its bytes."""
    raw = message.encode()
    return varint(len(raw)) + raw


class Frames:
    """Takes one message out of a stream without taking a byte that follows it: `wanted` says how many to read next."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._body = bytearray()
        self._length: int | None = None

    @property
    def wanted(self) -> int:
        """Bytes to read next; 0 when the message is whole."""
        return 1 if self._length is None else self._length - len(self._body)

    @property
    def message(self) -> bytes:
        """The whole message."""
        return bytes(self._body)

    def feed(self, data: bytes) -> None:
        """Take at most `wanted` bytes. Raises RelayMalformed for a length that is not allowed, before a byte of it."""
        if self._length is not None:
            self._body += data
            return
        self._head += data
        if data and data[0] & 0x80:
            if len(self._head) >= 2:
                raise RelayMalformed("A relay message is longer than is allowed.")
            return
        length, _ = read_varint(bytes(self._head), 0)
        if not 0 < length <= limits.relay_message_bytes_max:
            raise RelayMalformed(f"A relay message has {length} bytes; 1 to {limits.relay_message_bytes_max} may come.")
        self._length = length


def _hop_kind(value: int) -> HopKind:
    if value not in (HopKind.RESERVE, HopKind.CONNECT, HopKind.STATUS):
        raise RelayMalformed(f"A hop message has no type {value}.")
    return HopKind(value)


def _status(value: int | None) -> Status | None:
    """A status that this version does not know counts as a refusal."""
    if value is None:
        return None
    try:
        return Status(value)
    except ValueError:
        return Status.UNUSED


def _peer_in(raw: bytes) -> bytes:
    try:
        return public_of_peer_id(read_fields(raw)[1].get(1, b""))
    except KeyInvalid as error:
        raise RelayMalformed(f"A relay message names a peer that can't be one of ours: {error}") from None


def _reservation_in(raw: bytes) -> Reservation:
    numbers, texts = read_fields(raw)
    return Reservation(numbers.get(1, 0), texts.get(3, b""))


def _limit_out(limit: Limit) -> bytes:
    found = b""
    if limit.duration_s:
        found += number_field(1, limit.duration_s)
    if limit.data_bytes:
        found += number_field(2, limit.data_bytes)
    return found


def _limit_in(raw: bytes) -> Limit:
    numbers, _ = read_fields(raw)
    return Limit(numbers.get(1, 0), numbers.get(2, 0))
