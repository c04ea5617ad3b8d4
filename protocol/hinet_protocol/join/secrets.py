"""The secrets of one join: the exchange, the transcript, proofs and sealed messages. SPEC.md, 4.4 and 4.5.

For codes the joint secret comes from SPAKE2 (the joiner is side A), for tickets from HKDF over the ticket's secret and
both nonces. Everything that was said goes into the transcript hash, which keys the proofs and is the associated data of
each sealed message; so both sides agree on versions, peer ids, role and chain head, or nothing opens.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from spake2 import SPAKE2_A, SPAKE2_B
from spake2.ed25519_basic import NotOnCurve
from spake2.spake2 import SPAKEError

from hinet_protocol import canonical
from hinet_protocol.errors import JoinError, KeyInvalid
from hinet_protocol.identity import derive_key, hash_bytes

join_entropy_bytes = 32


def _spake2(side: str, secret: bytes, joiner: bytes, inviter: bytes, entropy: bytes) -> SPAKE2_A | SPAKE2_B:
    kind = SPAKE2_A if side == "joiner" else SPAKE2_B
    return kind(secret, idA=joiner, idB=inviter, entropy_f=_stream(entropy))


def _stream(entropy: bytes) -> Callable[[int], bytes]:
    """An endless stream from 32 random bytes, because the library asks for as much as it likes."""
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        part = blake3(b"hinet/1/join/entropy\0" + entropy).digest(count, seek=at)
        at += count
        return part

    return take


def exchange_share(carrier: str, side: str, secret: bytes, joiner: bytes, inviter: bytes, entropy: bytes) -> bytes:
    """What a side sends in the open: its SPAKE2 message (33 bytes), or its nonce (32 bytes) for a ticket.

    `joiner` and `inviter` are the Ed25519 keys that Noise proved; `entropy` is 32 fresh random bytes.
    """
    if len(entropy) != join_entropy_bytes:
        raise KeyInvalid(f"A join needs {join_entropy_bytes} random bytes, {len(entropy)} were given.")
    if carrier == "ticket":
        return hash_bytes(b"hinet/1/join/nonce\0" + entropy)
    share: bytes = _spake2(side, secret, joiner, inviter, entropy).start()
    return share


def joint_secret(
    carrier: str, side: str, secret: bytes, joiner: bytes, inviter: bytes, entropy: bytes, received: bytes
) -> bytes:
    """The secret of both sides, 32 bytes; the other side has the same one only if it knows the invitation's secret.

    Raises JoinError when what was received can't be a share.
    """
    if carrier == "ticket":
        if len(received) != 32:
            raise JoinError("The other side's share has the wrong length.")
        own = exchange_share(carrier, side, secret, joiner, inviter, entropy)
        nonces = received + own if side == "inviter" else own + received
        return derive_key(secret, "hinet/1/join/ticket", salt=nonces)
    exchange = _spake2(side, secret, joiner, inviter, entropy)
    exchange.start()
    try:
        _check_share(received)
        joint: bytes = exchange.finish(received)
    except (SPAKEError, NotOnCurve, ValueError, AssertionError, ArithmeticError) as error:
        raise JoinError(f"The other side's share is not usable ({type(error).__name__}).") from None
    return joint


def _check_share(received: bytes) -> None:
    """Raises ValueError for a second way to write an element: the library, which refuses the neutral one, knows it by
    its usual bytes only."""
    y = int.from_bytes(received[1:], "little") & 2**255 - 1
    if y >= 2**255 - 20 or y == 1:
        raise ValueError("no canonical form of an element of the group")


@dataclass(frozen=True)
class JoinSecrets:
    """Keys and running transcript of one join. Sealing and opening give the next state, because each moves it on."""

    joint: bytes = field(repr=False)
    begun: bytes
    transcript: bytes

    @classmethod
    def begin(
        cls,
        joint: bytes,
        versions: tuple[int, ...],
        version: int,
        carrier: str,
        selector: str,
        joiner: bytes,
        inviter: bytes,
        joiner_share: bytes,
        inviter_share: bytes,
    ) -> JoinSecrets:
        """The state after both shares are known."""
        said = [list(versions), version, carrier, selector, joiner, inviter, joiner_share, inviter_share]
        transcript = hash_bytes(b"hinet/1/join\0" + canonical.encode(said))
        return cls(joint, transcript, transcript)

    def _key(self, label: str, salt: bytes) -> bytes:
        return derive_key(self.joint, f"hinet/1/join/{label}", salt=salt)

    @property
    def joiner_mac(self) -> bytes:
        """The joiner's proof."""
        return self._key("proof/joiner", self.begun)

    @property
    def inviter_mac(self) -> bytes:
        """The inviter's proof."""
        return self._key("proof/inviter", self.begun)

    @property
    def done_mac(self) -> bytes:
        """The joiner's last word, over the whole transcript."""
        return self._key("done", self.transcript)

    def joiner_proved(self, mac: bytes) -> bool:
        """The joiner knows the secret."""
        return hmac.compare_digest(mac, self.joiner_mac)

    def inviter_proved(self, mac: bytes) -> bool:
        """The inviter knows the secret."""
        return hmac.compare_digest(mac, self.inviter_mac)

    def check_done(self, mac: bytes) -> None:
        """Raises JoinError unless the joiner's last word fits."""
        if not hmac.compare_digest(mac, self.done_mac):
            raise JoinError("The new device's last message does not fit what was sent to it.")

    def seal_to_joiner(self, plain: bytes) -> tuple[JoinSecrets, bytes]:
        """Seals a message of the inviter."""
        return self._seal("to-joiner", plain)

    def seal_to_inviter(self, plain: bytes) -> tuple[JoinSecrets, bytes]:
        """Seals a message of the joiner."""
        return self._seal("to-inviter", plain)

    def open_to_joiner(self, sealed: bytes) -> tuple[JoinSecrets, bytes]:
        """Opens a message of the inviter. Raises JoinError."""
        return self._open("to-joiner", sealed)

    def open_to_inviter(self, sealed: bytes) -> tuple[JoinSecrets, bytes]:
        """Opens a message of the joiner. Raises JoinError."""
        return self._open("to-inviter", sealed)

    def _seal(self, label: str, plain: bytes) -> tuple[JoinSecrets, bytes]:
        # The key comes from the transcript, which every sealed message changes: each key is used once.
        sealed = ChaCha20Poly1305(self._key(label, self.transcript)).encrypt(bytes(12), plain, self.transcript)
        return self._advance(sealed), sealed

    def _open(self, label: str, sealed: bytes) -> tuple[JoinSecrets, bytes]:
        try:
            plain = ChaCha20Poly1305(self._key(label, self.transcript)).decrypt(bytes(12), sealed, self.transcript)
        except InvalidTag:
            raise JoinError(
                "A sealed message of the join does not open: it was changed, replayed or reordered."
            ) from None
        return self._advance(sealed), plain

    def _advance(self, sealed: bytes) -> JoinSecrets:
        return replace(self, transcript=hash_bytes(self.transcript + sealed))
