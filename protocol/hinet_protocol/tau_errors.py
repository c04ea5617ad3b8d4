"""What can be wrong with a `.tau` file (SPEC section 7.2).

    ProtocolError
      TauError          E_TAU
        TauMalformed    E_TAU_MALFORMED   the bytes are no task vector of this format
        TauDamaged      E_TAU_DAMAGED     a block does not match its digest
        TauUnsigned     E_TAU_UNSIGNED    the signature is missing or does not match
        TauRefused      E_TAU_REFUSED     what should be written cannot be
"""

from __future__ import annotations

from hinet_protocol.errors import ProtocolError


class TauError(ProtocolError):
    """Anything wrong with a task vector file."""

    code = "E_TAU"


class TauMalformed(TauError):
    """The bytes are no task vector of this format."""

    code = "E_TAU_MALFORMED"


class TauDamaged(TauError):
    """A block does not match the digest that the header gives for it."""

    code = "E_TAU_DAMAGED"


class TauUnsigned(TauError):
    """The signature is missing, or does not match."""

    code = "E_TAU_UNSIGNED"


class TauRefused(TauError):
    """A task vector can't be written as asked: not finite, out of range, out of order."""

    code = "E_TAU_REFUSED"
