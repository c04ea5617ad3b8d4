"""Asking any device of a household for its chain with the root in place of an invitation. SPEC.md, 4.7.

The root signs both keys that Noise proved, so an answer goes to nobody else, and a proof that was made for one device
is of no use at another. What the asker does with the chain is `chain`'s.
"""

from __future__ import annotations

from hinet_protocol import PROTOCOL_VERSION, canonical
from hinet_protocol.chain import Chain
from hinet_protocol.errors import ChainForeign, Stranger, VersionUnsupported
from hinet_protocol.identity import SIGN_RECOVER, RootKey, root_commitment, verify
from hinet_protocol.messages import RecoverOpen

RECOVER_PROTOCOL = "/hinet/recover/1"


def make_recover_open(root: RootKey, *, asker: bytes, asked: bytes) -> RecoverOpen:
    """The first message. `asker` and `asked` are the Ed25519 keys of the two ends of the connection."""
    versions = (PROTOCOL_VERSION,)
    return RecoverOpen(versions, root.public, root.sign(SIGN_RECOVER, _signed(versions, root.public, asker, asked)))


def check_recover_open(message: RecoverOpen, chain: Chain, *, asker: bytes, asked: bytes) -> None:
    """Raises unless the asker holds the root in force, or the spare one that may replace it.

    VersionUnsupported; Stranger, which tells nothing of what this household is; SignatureInvalid.
    """
    if PROTOCOL_VERSION not in message.versions:
        raise VersionUnsupported(
            f"The asking device speaks versions {list(message.versions)}, this one {PROTOCOL_VERSION}. Upgrade the "
            "older of the two."
        )
    if message.root != chain.root_public and root_commitment(message.root) != chain.root_promise:
        raise Stranger("These are not the words of the identity that this device belongs to.")
    verify(message.root, SIGN_RECOVER, _signed(message.versions, message.root, asker, asked), message.proof)


def check_answer(chain: Chain, root: RootKey) -> None:
    """Raises ChainForeign when the chain that came is of an identity which this root has nothing to do with."""
    line = {chain.genesis.signer, *(entry.signer for entry in chain.root_rotations())}
    if root.public not in line and root_commitment(root.public) != chain.root_promise:
        raise ChainForeign("The chain that came belongs to another identity than the words; it was refused.")


def _signed(versions: tuple[int, ...], root: bytes, asker: bytes, asked: bytes) -> bytes:
    return canonical.encode([list(versions), root, asker, asked])
