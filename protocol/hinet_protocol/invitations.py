"""Invitations: short codes, tickets, and the record that makes sure each is used once. SPEC.md, 4.1 to 4.3.

A code (`4711-word-word-word`) is typed by a person and secures a SPAKE2 exchange; only its nameplate is ever sent in
the clear. A ticket (`hinet1…`) is copied or scanned and carries a 128-bit secret. The record's changes are pure; the
caller writes each change to disk before it acts on it. The exchange itself is in `join`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from hinet_protocol import canonical, limits, schema
from hinet_protocol.errors import (
    CodeMalformed,
    EncodingError,
    InvitationBurned,
    InvitationError,
    InvitationExpired,
    InvitationUsed,
    LimitError,
    MessageError,
    TicketMalformed,
)
from hinet_protocol.identity import derive_key, nearest_word, word_list, word_number
from hinet_protocol.schema import binary, bytes32, integer, list_of, one_of, optional, text, uint63

code_entropy_bytes = 16
ticket_secret_bytes = 16


# --- codes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A short code. `nameplate` may be shown to everybody on the network, `words` never leave the two persons."""

    nameplate: int
    words: tuple[str, ...] = field(repr=False)

    @property
    def text(self) -> str:
        """What is shown and typed: `4711-word-word-word`."""
        return "-".join((str(self.nameplate), *self.words))

    @property
    def secret(self) -> bytes:
        """The SPAKE2 password: the words joined by dashes, lower case, without the nameplate."""
        return "-".join(self.words).encode("ascii")

    @property
    def selector(self) -> str:
        """What names the invitation on the network: the nameplate in decimal."""
        return str(self.nameplate)


def make_code(entropy: bytes) -> Code:
    """A new code from 16 random bytes: a nameplate from 1 to 9999 and three words, 33 bits of secret."""
    if len(entropy) != code_entropy_bytes:
        raise InvitationError(f"A code needs {code_entropy_bytes} random bytes, {len(entropy)} were given.")
    number = int.from_bytes(entropy, "big")
    number, plate = divmod(number, limits.nameplate_max)
    words = []
    for _ in range(limits.code_words):
        number, index = divmod(number, len(word_list()))
        words.append(word_list()[index])
    return Code(plate + 1, tuple(words))


def parse_code(typed: str) -> Code:
    """Reads a code as a person typed it: letter case, spaces, other dashes and words cut after four letters are
    forgiven. Raises CodeMalformed, which names the part that is wrong."""
    if len(typed) > 200:
        raise CodeMalformed("This is far too long for a code. A code looks like 4711-word-word-word.")
    parts = [part for part in re.split(r"[\s\-‐‑‒–—−_.,/]+", typed.strip().strip("'\"").lower()) if part]
    if not parts:
        raise CodeMalformed("No code was given. A code looks like 4711-word-word-word.")
    if not (parts[0].isascii() and parts[0].isdigit()):
        raise CodeMalformed(f"A code begins with a number of one to four digits, not with {parts[0][:20]!r}.")
    plate = int(parts[0][:9])
    if not 1 <= plate <= limits.nameplate_max:
        raise CodeMalformed(f"The number in front of a code is from 1 to {limits.nameplate_max}, not {parts[0][:9]}.")
    if len(parts) != 1 + limits.code_words:
        raise CodeMalformed(
            f"A code has {limits.code_words} words after its number, this one has {len(parts) - 1}. Type all of it."
        )
    words = []
    for position, part in enumerate(parts[1:], start=1):
        index = word_number(part)
        if index is None:
            near = nearest_word(part)
            hint = f" Did you mean {near!r}?" if near else ""
            raise CodeMalformed(f"Word {position} of the code, {part[:20]!r}, is not in the word list.{hint}")
        words.append(word_list()[index])
    return Code(plate, tuple(words))


# --- tickets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ticket:
    """An invitation as one string, for copying or a QR code. `expires_s` is in unix seconds.

    `inviter` is the inviting device's Ed25519 key, `addresses` are multiaddrs where it listens. `tier` fixes the
    joiner's tier, or is None to let the joiner say.
    """

    secret: bytes = field(repr=False)
    identity_id: bytes
    inviter: bytes
    addresses: tuple[str, ...]
    role: str
    tier: str | None
    expires_s: int

    @property
    def text(self) -> str:
        """The ticket as text, `hinet1…`, lower case; upper case means the same and makes smaller QR codes."""
        raw = canonical.encode(
            [
                1,
                self.secret,
                self.identity_id,
                self.inviter,
                list(self.addresses),
                self.role,
                self.tier,
                self.expires_s,
            ]
        )
        data = _bits(raw, 8, 5, pad=True)
        whole = "".join(_BECH32[value] for value in data + _checksum(data))
        found = f"hinet1{whole}"
        if len(found) > limits.ticket_chars_max:
            raise LimitError("The ticket would be too long; give fewer addresses.")
        return found

    @property
    def selector(self) -> str:
        """What names the invitation on the network: 32 hexadecimal digits derived from the secret."""
        return derive_key(self.secret, "hinet/1/ticket/id", length_bytes=16).hex()


_TICKET_ROW = schema.row(
    integer(1, 65_535),
    binary(ticket_secret_bytes, ticket_secret_bytes),
    bytes32,
    bytes32,
    list_of(text(limits.address_bytes_max, 1), limits.ticket_addresses_max),
    one_of("admin", "member", "keeper"),
    optional(one_of("cloud", "laptop", "pocket")),
    uint63,
)


def parse_ticket(typed: str) -> Ticket:
    """Reads a ticket; letter case and white space inside are forgiven. Raises TicketMalformed."""
    compact = "".join(typed.split()).strip("'\"")
    if len(compact) > limits.ticket_chars_max:
        raise TicketMalformed("This is too long for a ticket.")
    lower = compact.lower()
    if not lower.startswith("hinet1"):
        raise TicketMalformed("A ticket begins with hinet1. Copy the whole line that the inviting device printed.")
    values = []
    for char in lower[6:]:
        value = _BECH32.find(char)
        if value < 0:
            raise TicketMalformed(f"A ticket has no character {char!r}. Copy it again rather than typing it.")
        values.append(value)
    if len(values) < 7 or _polymod(_PREFIX_VALUES + values) != _BECH32M:
        raise TicketMalformed("The ticket was cut short or mistyped: its checksum does not fit. Copy it again.")
    try:
        fields = _TICKET_ROW(canonical.decode(bytes(_bits_back(values[:-6]))), "ticket")
    except (EncodingError, LimitError, MessageError):
        raise TicketMalformed("The ticket does not hold what this version expects. Upgrade hinet-node.") from None
    if fields[0] != 1:
        raise TicketMalformed(f"The ticket has version {fields[0]}, this software knows 1. Upgrade hinet-node.")
    return Ticket(*fields[1:])


_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32M = 0x2BC830A3
_PREFIX_VALUES = [ord(char) >> 5 for char in "hinet"] + [0] + [ord(char) & 31 for char in "hinet"]


def _polymod(values: list[int]) -> int:
    found = 1
    for value in values:
        top = found >> 25
        found = (found & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            found ^= generator if top >> bit & 1 else 0
    return found


def _checksum(data: list[int]) -> list[int]:
    rest = _polymod(_PREFIX_VALUES + data + [0] * 6) ^ _BECH32M
    return [rest >> 5 * (5 - at) & 31 for at in range(6)]


def _bits(data: bytes | list[int], width_in: int, width_out: int, pad: bool) -> list[int]:
    held, bits, found = 0, 0, []
    for value in data:
        held = (held << width_in | value) & 0xFFFFF
        bits += width_in
        while bits >= width_out:
            bits -= width_out
            found.append(held >> bits & (1 << width_out) - 1)
    if pad and bits:
        found.append(held << width_out - bits & (1 << width_out) - 1)
    elif not pad and (bits >= width_in or held & (1 << bits) - 1):
        raise EncodingError("The padding of the ticket is not zero.")
    return found


def _bits_back(values: list[int]) -> list[int]:
    return _bits(values, 5, 8, pad=False)


# --- the record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invitation:
    """What the inviting device keeps of an invitation; its methods give the record that must be stored next.

    `state`: `open` → `consumed` (a certificate may be made for `joiner` now, and for nobody else) → `certified` (it was
    made). `burned` after three wrong tries, `cancelled` by the owner. `expires_at_s` is in seconds of the caller's
    clock: monotonic for codes, which end with the agent's run; unix time for tickets.
    """

    carrier: str
    selector: str
    secret: bytes = field(repr=False)
    role: str
    tier: str | None
    expires_at_s: int
    failures: int = 0
    state: str = "open"
    joiner: bytes | None = None

    @classmethod
    def for_code(cls, code: Code, *, role: str, tier: str | None, expires_at_s: int) -> Invitation:
        """The record for a new code."""
        return cls("code", code.selector, code.secret, role, tier, expires_at_s)

    @classmethod
    def for_ticket(cls, ticket: Ticket) -> Invitation:
        """The record for a new ticket."""
        return cls("ticket", ticket.selector, ticket.secret, ticket.role, ticket.tier, ticket.expires_s)

    def check_usable(self, now_s: float) -> None:
        """Raises InvitationUsed, InvitationBurned or InvitationExpired unless a joiner may try now."""
        again = "Make a new one with `hinet-node invite`."
        if self.state in ("consumed", "certified"):
            raise InvitationUsed(f"This invitation was used already. {again}")
        if self.state == "burned":
            raise InvitationBurned(f"This invitation was closed after {self.failures} wrong tries. {again}")
        if self.state != "open":
            raise InvitationExpired(f"This invitation was cancelled. {again}")
        if now_s >= self.expires_at_s:
            raise InvitationExpired(f"This invitation has expired. {again}")

    @property
    def tries_left(self) -> int:
        """How many wrong tries are left before it is closed."""
        return max(0, limits.code_failures_max - self.failures)

    def after_failure(self) -> Invitation:
        """One more wrong try; the third closes the invitation."""
        failures = self.failures + 1
        burned = self.state == "open" and failures >= limits.code_failures_max
        return replace(self, failures=failures, state="burned" if burned else self.state)

    def consume(self, joiner: bytes) -> Invitation:
        """To be on disk before a certificate for `joiner` is made. Raises InvitationUsed when it is not open."""
        if self.state != "open":
            raise InvitationUsed("This invitation was used or closed already. Make a new one with `hinet-node invite`.")
        return replace(self, state="consumed", joiner=joiner)

    def certify(self) -> Invitation:
        """The certificate was made."""
        if self.state != "consumed":
            raise InvitationError(f"An invitation that is {self.state} can't be certified.")
        return replace(self, state="certified")

    def release(self) -> Invitation:
        """Opens a consumed invitation again, only right if no certificate ever left this device."""
        if self.state != "consumed":
            raise InvitationError(f"An invitation that is {self.state} can't be opened again.")
        return replace(self, state="open", joiner=None)

    def cancel(self) -> Invitation:
        """The owner withdraws it; one that was used stays used."""
        return replace(self, state="cancelled") if self.state == "open" else self

    def to_bytes(self) -> bytes:
        """The form for the disk (mode 0600): it holds the secret."""
        return canonical.encode({name: getattr(self, name) for name in _RECORD})

    @classmethod
    def from_bytes(cls, raw: bytes) -> Invitation:
        """Reads `to_bytes`. Raises a ProtocolError."""
        return cls(**schema.fields(canonical.decode(raw, 4_096), _RECORD, "invitation"))


_RECORD: dict[str, schema.Check] = {
    "carrier": one_of("code", "ticket"),
    "selector": text(64, 1),
    "secret": binary(1, 128),
    "role": one_of("admin", "member", "keeper"),
    "tier": optional(one_of("cloud", "laptop", "pocket")),
    "expires_at_s": uint63,
    "failures": uint63,
    "state": one_of("open", "consumed", "certified", "burned", "cancelled"),
    "joiner": optional(bytes32),
}
