"""Every error of the protocol, one tree, each with a stable code that may cross the wire. SPEC.md, 5.9.

    ProtocolError                 E_PROTOCOL
      EncodingError               E_ENCODING           bytes or value are not canonical
      LimitError                  E_LIMIT              a bound of limits.py is exceeded
      FrameError                  E_FRAME              the length prefix or stream end is wrong
      MessageError                E_MESSAGE            unknown tag, missing or wrong field
      PhraseError                 E_PHRASE             the 24 words are mistyped
      KeyInvalid                  E_KEY                bytes are not a usable key or key text
      PassphraseWrong             E_PASSPHRASE         the sealed copy of the root does not open
      SignatureInvalid            E_SIGNATURE          a signature does not match
      ChainError                  E_CHAIN
        EntryMalformed            E_ENTRY              an entry has the wrong form
        EntryUnsupported          E_ENTRY_UNSUPPORTED  a kind or field of a newer version
        EntryUnauthorised         E_ENTRY_UNAUTHORISED its signer had no right to sign it
        EntryConflict             E_ENTRY_CONFLICT     name or key already taken
        EntryOrphan               E_ENTRY_ORPHAN       a parent is not known
        ChainForeign              E_CHAIN_FOREIGN      it belongs to another identity
        LastAdmin                 E_LAST_ADMIN         only the root may remove the last admin
      EpochError                  E_EPOCH              a wrapped key does not open
      InvitationError             E_INVITATION
        CodeMalformed             E_CODE_MALFORMED     not the shape of a code
        CodeWrong                 E_CODE_WRONG         the words do not match
        CodeUnknown               E_CODE_UNKNOWN       nobody waits under this nameplate
        TicketMalformed           E_TICKET_MALFORMED   not the shape of a ticket
        InvitationExpired         E_INVITATION_EXPIRED
        InvitationUsed            E_INVITATION_USED
        InvitationBurned          E_INVITATION_BURNED  too many wrong tries
      JoinError                   E_JOIN               the other side broke the join protocol
        JoinDeclined              E_JOIN_DECLINED      the person at the inviter said no
        JoinInterrupted           E_JOIN_INTERRUPTED   the other side went away
      SessionError                E_SESSION
        VersionUnsupported        E_VERSION            no protocol version in common
        Stranger                  E_STRANGER           not a device of this household
        DeviceRevoked             E_REVOKED            the device was removed from the household
        CloneDetected             E_CLONE              the same key is live twice
        SessionBusy               E_BUSY               too many requests outstanding
        SessionSilent             E_SILENT             the peer stopped answering
        SessionViolation          E_VIOLATION          the peer broke the session protocol
      RelayMalformed              E_RELAY              bytes are not a relay's message or voucher
      VaultError                  E_VAULT
        PackMalformed             E_PACK               bytes are not a pack or a pack list
        PackDamaged               E_PACK_DAMAGED       a pack is not what its name or its seals say
        TreeMalformed             E_TREE               bytes are not a tree page or root
        HeadMalformed             E_HEAD               bytes are not a head
        HeadUnauthorised          E_HEAD_UNAUTHORISED  its device may not write to this vault

Every message says what happened, why, and what to type or do next.
"""

from __future__ import annotations

from typing import ClassVar


class ProtocolError(Exception):
    """Root of the tree. `code` is stable and may be sent to a peer; `str(error)` is for a person."""

    code: ClassVar[str] = "E_PROTOCOL"

    @property
    def message(self) -> str:
        """The text for a person."""
        return str(self)


class EncodingError(ProtocolError):
    """The value has no canonical form, or the bytes are not in it."""

    code = "E_ENCODING"


class LimitError(ProtocolError):
    """A bound of limits.py is exceeded. Raised before anything of that size is allocated."""

    code = "E_LIMIT"


class FrameError(ProtocolError):
    """A frame announces a length that is not allowed, or the stream ends inside one."""

    code = "E_FRAME"


class MessageError(ProtocolError):
    """A message has an unknown tag, or a field is missing, unknown or of the wrong form."""

    code = "E_MESSAGE"


class PhraseError(ProtocolError):
    """The recovery words are mistyped. `position` is the first wrong word, from 1, or None for the checksum."""

    code = "E_PHRASE"

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class KeyInvalid(ProtocolError):
    """The bytes or the text are not a usable key."""

    code = "E_KEY"


class PassphraseWrong(ProtocolError):
    """The passphrase does not open the sealed copy of the root."""

    code = "E_PASSPHRASE"


class SignatureInvalid(ProtocolError):
    """A signature does not belong to these bytes and this key."""

    code = "E_SIGNATURE"


class ChainError(ProtocolError):
    """Root of the errors about the chain."""

    code = "E_CHAIN"


class EntryMalformed(ChainError):
    """An entry has the wrong form."""

    code = "E_ENTRY"


class EntryUnsupported(ChainError):
    """An entry uses a kind, version or field that this software does not know: upgrade."""

    code = "E_ENTRY_UNSUPPORTED"


class EntryUnauthorised(ChainError):
    """The signer had no right to sign this entry at its parents."""

    code = "E_ENTRY_UNAUTHORISED"


class EntryConflict(ChainError):
    """The name or key is already taken in the entry's past."""

    code = "E_ENTRY_CONFLICT"


class EntryOrphan(ChainError):
    """A parent of the entry is not known, or was itself refused."""

    code = "E_ENTRY_ORPHAN"


class ChainForeign(ChainError):
    """The entry or chain belongs to another identity."""

    code = "E_CHAIN_FOREIGN"


class LastAdmin(ChainError):
    """Removing the last admin needs the root key, that is the 24 words."""

    code = "E_LAST_ADMIN"


class EpochError(ProtocolError):
    """A wrapped or sealed epoch key does not open, or opens to another key than the entry promises."""

    code = "E_EPOCH"


class InvitationError(ProtocolError):
    """Root of the errors about invitations."""

    code = "E_INVITATION"


class CodeMalformed(InvitationError):
    """The text is not a code. The message names the part that is wrong."""

    code = "E_CODE_MALFORMED"


class CodeWrong(InvitationError):
    """The words do not match: a typing mistake, or somebody in between."""

    code = "E_CODE_WRONG"


class CodeUnknown(InvitationError):
    """Nobody waits under this nameplate or ticket."""

    code = "E_CODE_UNKNOWN"


class TicketMalformed(InvitationError):
    """The text is not a ticket. The message names what is wrong."""

    code = "E_TICKET_MALFORMED"


class InvitationExpired(InvitationError):
    """The invitation's time is over: make a new one."""

    code = "E_INVITATION_EXPIRED"


class InvitationUsed(InvitationError):
    """The invitation was used already: make a new one."""

    code = "E_INVITATION_USED"


class InvitationBurned(InvitationError):
    """Too many wrong tries: make a new one."""

    code = "E_INVITATION_BURNED"


class JoinError(ProtocolError):
    """The other side broke the join protocol, or its answer does not verify."""

    code = "E_JOIN"


class JoinDeclined(JoinError):
    """The person at the inviting device said no."""

    code = "E_JOIN_DECLINED"


class JoinInterrupted(JoinError):
    """The other side went away, or took too long."""

    code = "E_JOIN_INTERRUPTED"


class SessionError(ProtocolError):
    """Root of the reasons why a session ends or a request fails."""

    code = "E_SESSION"


class VersionUnsupported(SessionError):
    """The two sides share no protocol version."""

    code = "E_VERSION"


class Stranger(SessionError):
    """The peer is not a device of this household."""

    code = "E_STRANGER"


class DeviceRevoked(SessionError):
    """The peer was a device of this household and was revoked."""

    code = "E_REVOKED"


class CloneDetected(SessionError):
    """The same device key is live twice, with different boot nonces."""

    code = "E_CLONE"


class SessionBusy(SessionError):
    """Too many requests are outstanding on this session: wait for an answer first."""

    code = "E_BUSY"


class SessionSilent(SessionError):
    """The peer sent nothing for longer than the heartbeat allows."""

    code = "E_SILENT"


class SessionViolation(SessionError):
    """The peer sent something that the session protocol does not allow at this point."""

    code = "E_VIOLATION"


class RelayMalformed(ProtocolError):
    """The bytes are not a message of the circuit relay, or a voucher is not what its reservation says."""

    code = "E_RELAY"


class VaultError(ProtocolError):
    """Root of the errors about the vault's stored forms."""

    code = "E_VAULT"


class PackMalformed(VaultError):
    """The bytes are not a pack or a pack list of a version that this software knows."""

    code = "E_PACK"


class PackDamaged(VaultError):
    """A pack is not what its name says, or a seal inside it does not open: its bytes changed."""

    code = "E_PACK_DAMAGED"


class TreeMalformed(VaultError):
    """The bytes are not a tree page or root."""

    code = "E_TREE"


class HeadMalformed(VaultError):
    """The bytes are not a head, or a field of it has the wrong form."""

    code = "E_HEAD"


class HeadUnauthorised(VaultError):
    """The device that signed the head is no member of this household, or was revoked."""

    code = "E_HEAD_UNAUTHORISED"


def _tree(root: type[ProtocolError]) -> dict[str, type[ProtocolError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_from_code(code: str, message: str) -> ProtocolError:
    """The error that a peer's code names; an unknown code becomes a plain ProtocolError that carries and shows it."""
    kind = _tree(ProtocolError).get(code)
    if kind is None:
        unknown = ProtocolError(f"{message} ({code})")
        unknown.code = code  # type: ignore[misc]
        return unknown
    return kind(message)
