"""The voucher of a reservation: the relay's signed word that a device may be called through it. SPEC.md, 5.11.

libp2p's signed envelope (domain `libp2p-relay-rsvp`, payload type 0x0302) around the relay's id, the device's id and
the expiry. The signed bytes begin with the length of that domain, so that no other signature of ours can be one.
"""

from __future__ import annotations

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError
from nacl.exceptions import CryptoError as NaclError
from nacl.signing import SigningKey

from hinet_protocol.errors import RelayMalformed
from hinet_protocol.identity import peer_id_bytes
from hinet_protocol.relay.protobuf import bytes_field, number_field, read_fields, varint

DOMAIN = b"libp2p-relay-rsvp"
PAYLOAD_TYPE = bytes([0x03, 0x02])
_KEY_PREFIX = bytes([0x08, 0x01, 0x12, 0x20])


def make_voucher(relay_seed: bytes, peer: bytes, expires_s: int) -> bytes:
    """The envelope, signed with the relay's Ed25519 seed."""
    signing = SigningKey(relay_seed)
    relay = bytes(signing.verify_key)
    payload = bytes_field(1, peer_id_bytes(relay)) + bytes_field(2, peer_id_bytes(peer)) + number_field(3, expires_s)
    signature = signing.sign(_signed(payload)).signature
    head = bytes_field(1, _KEY_PREFIX + relay) + bytes_field(2, PAYLOAD_TYPE)
    return head + bytes_field(3, payload) + bytes_field(5, signature)


def check_voucher(raw: bytes, *, relay: bytes, peer: bytes) -> int:
    """The expiry (unix seconds) in a voucher that this relay gave this device. Raises RelayMalformed."""
    _, envelope = read_fields(raw)
    payload, signature = envelope.get(3, b""), envelope.get(5, b"")
    if envelope.get(1) != _KEY_PREFIX + relay or envelope.get(2) != PAYLOAD_TYPE or len(signature) != 64:
        raise RelayMalformed("The reservation's voucher is not the relay's.")
    try:
        crypto_sign_open(signature + _signed(payload), relay)
    except (BadSignatureError, NaclError):
        raise RelayMalformed("The signature of the reservation's voucher does not match.") from None
    numbers, texts = read_fields(payload)
    if texts.get(1) != peer_id_bytes(relay) or texts.get(2) != peer_id_bytes(peer):
        raise RelayMalformed("The reservation's voucher is for another device.")
    return numbers.get(3, 0)


def _signed(payload: bytes) -> bytes:
    return b"".join(varint(len(part)) + part for part in (DOMAIN, PAYLOAD_TYPE, payload))
