"""One frozen class per message, a table of tags, strict reading. SPEC.md, 5.2 and 5.3.

A message on the wire is the canonical encoding of `[tag, {field: value}]`. Every field is there, none is unknown
(names that begin with `x-` are ignored), each is of exactly the stated form. Which message may come when is said by
`session` and `join`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from hinet_protocol import canonical, limits, schema
from hinet_protocol.errors import MessageError, ProtocolError, error_from_code
from hinet_protocol.schema import binary, boolean, bytes32, integer, list_of, one_of, row, text, uint63


class Message:
    """Base of all messages. Fields are annotated with the check that `from_wire` applies."""

    __slots__ = ()
    tag: ClassVar[int]


M = TypeVar("M", bound=type[Message])
_TAGS: dict[int, type[Message]] = {}


def message(tag: int) -> Callable[[M], M]:
    """Class decorator: gives the class its tag and enters it in the table. A tag is never given twice."""

    def enter(kind: M) -> M:
        assert tag not in _TAGS, f"tag {tag} is taken by {_TAGS[tag].__name__}"
        kind.tag = tag
        _TAGS[tag] = kind
        return kind

    return enter


_CHECKS: dict[type[Message], dict[str, schema.Check]] = {}


def checks_of(kind: type[Message]) -> dict[str, schema.Check]:
    """The check of each field of a message class."""
    if kind not in _CHECKS:
        hints = get_type_hints(kind, include_extras=True)
        _CHECKS[kind] = {field.name: get_args(hints[field.name])[1] for field in dataclass_fields(kind)}  # type: ignore[arg-type]
    return _CHECKS[kind]


def tag_table() -> dict[int, type[Message]]:
    """All messages by tag, a copy."""
    return dict(_TAGS)


def to_value(body: Message) -> list[Any]:
    """The message as a canonical value. Raises MessageError when a field is outside its form: our own bug."""
    checks = checks_of(type(body))
    found: dict[str, Any] = {}
    for name, check in checks.items():
        value = getattr(body, name)
        if isinstance(value, Message):
            value = to_value(value)
        check(value, f"{type(body).__name__}.{name}")
        found[name] = value
    return [body.tag, found]


def from_value(value: Any) -> Message:
    """The message behind a decoded value. Raises MessageError."""
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        raise MessageError("A message should be a list of a tag and a map.")
    kind = _TAGS.get(value[0])
    if kind is None:
        raise MessageError(f"Message tag {value[0]} is not known; the peer may run a newer version.")
    return kind(**schema.fields(value[1], checks_of(kind), kind.__name__))


def to_wire(body: Message) -> bytes:
    """The frame body for a message. Raises LimitError when it does not fit into a frame."""
    return canonical.encode(to_value(body))


def from_wire(raw: bytes) -> Message:
    """The message in a frame body. Raises a ProtocolError for anything that is not exactly one known message."""
    return from_value(canonical.decode(raw, limits.frame_bytes_max))


def error_text(error: ProtocolError) -> str:
    """An error's text in the form that Goodbye, ErrorReply and JoinRefuse carry: no control characters, cut to size."""
    clean = "".join(char if char.isprintable() else " " for char in str(error))
    return clean.encode("utf-8", "replace")[: limits.text_bytes_max].decode("utf-8", "ignore")


def _nested(value: Any, path: str) -> Message:
    """A message inside an envelope; envelopes do not nest."""
    inner = value if isinstance(value, Message) else from_value(value)
    if isinstance(inner, (Request, Response, ErrorReply, Hello)):
        raise MessageError(f"Field {path} may not hold a {type(inner).__name__}.")
    return inner


Bytes32 = Annotated[bytes, bytes32]
Digest = Annotated[bytes, binary(0, 32)]
Hashes = Annotated[tuple[bytes, ...], list_of(bytes32, limits.heads_max)]
Count = Annotated[int, uint63]
code_text = text(40, 1)
device_tier = one_of("cloud", "laptop", "pocket")


# --- session ---------------------------------------------------------------------------------------------------------


@message(1)
@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first frame both ways. Who speaks (as Noise proved), how far its chain is, what the machine can do.

    `boot_nonce` is drawn once per start of the agent; `addresses` are multiaddrs where it listens;
    `time_s` is its wall clock in unix seconds, for a warning about wrong clocks only.
    """

    versions: Annotated[tuple[int, ...], list_of(integer(1, 65_535), 8, 1)]
    identity_id: Bytes32
    device: Bytes32
    boot_nonce: Annotated[bytes, binary(16, 16)]
    height: Count
    heads: Annotated[tuple[bytes, ...], list_of(bytes32, limits.heads_max, 1)]
    tier: Annotated[str, device_tier]
    backends: Annotated[tuple[str, ...], list_of(text(64, 1), limits.backends_max)]
    memory_bytes: Count
    bases: Annotated[tuple[bytes, ...], list_of(bytes32, limits.bases_max)]
    addresses: Annotated[tuple[str, ...], list_of(text(limits.address_bytes_max, 1), limits.addresses_max)]
    agent: Annotated[str, text(64)]
    time_s: Count


@message(2)
@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The sender has judged the receiver to be a device of the household. Questions follow once both have said it."""


@message(3)
@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Asks for a Pong with the same number."""

    number: Count


@message(4)
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers a Ping."""

    number: Count


@message(5)
@dataclass(frozen=True, slots=True)
class Goodbye(Message):
    """The last frame: why the sender ends the session. `code` is `OK` for an orderly end, else an error code."""

    code: Annotated[str, code_text]
    message: Annotated[str, text(limits.text_bytes_max)]

    def error(self) -> ProtocolError | None:
        """The error that the peer named, or None for an orderly end."""
        return None if self.code == "OK" else error_from_code(self.code, self.message)


# --- chain -----------------------------------------------------------------------------------------------------------


@message(10)
@dataclass(frozen=True, slots=True)
class ChainGet(Message):
    """Asks for the entries that are in the past of the peer's heads and not in the past of these hashes."""

    have: Annotated[tuple[bytes, ...], list_of(bytes32, limits.locator_hashes_max)]


@message(11)
@dataclass(frozen=True, slots=True)
class ChainEntries(Message):
    """Answers ChainGet: raw entries, parents first. With `more`, ask again after taking these in."""

    entries: Annotated[tuple[bytes, ...], list_of(binary(1, limits.entry_bytes_max), limits.chain_batch_entries_max)]
    more: Annotated[bool, boolean]


@message(12)
@dataclass(frozen=True, slots=True)
class ChainNotice(Message):
    """The sender's chain has grown to these heads. Whoever lacks one asks with ChainGet."""

    height: Count
    heads: Annotated[tuple[bytes, ...], list_of(bytes32, limits.heads_max, 1)]


# --- envelopes -------------------------------------------------------------------------------------------------------


@message(20)
@dataclass(frozen=True, slots=True)
class Request(Message):
    """A question. `number` rises by at least one with every request of its sender."""

    number: Count
    body: Annotated[Message, _nested]


@message(21)
@dataclass(frozen=True, slots=True)
class Response(Message):
    """The answer to the request of this number."""

    number: Count
    body: Annotated[Message, _nested]


@message(22)
@dataclass(frozen=True, slots=True)
class ErrorReply(Message):
    """The request of this number failed. `code` is a stable error code, `message` is for a person."""

    number: Count
    code: Annotated[str, code_text]
    message: Annotated[str, text(limits.text_bytes_max)]

    def error(self) -> ProtocolError:
        """The error that the peer named."""
        return error_from_code(self.code, self.message)


# --- vault (SPEC.md, 6) ----------------------------------------------------------------------------------------------


@message(40)
@dataclass(frozen=True, slots=True)
class HeadsGet(Message):
    """Asks for the vault's signed heads. `digest` is the asker's own vault digest, or empty to get them always."""

    digest: Digest


@message(41)
@dataclass(frozen=True, slots=True)
class HeadsList(Message):
    """Answers HeadsGet: the answerer's vault digest and its raw heads; no heads when the digests agree."""

    digest: Digest
    heads: Annotated[tuple[bytes, ...], list_of(binary(1, limits.head_bytes_max), limits.devices_max)]


@message(42)
@dataclass(frozen=True, slots=True)
class PacksGet(Message):
    """Asks for at most `limit` pack ids above `after` (empty: from the beginning), in rising order."""

    after: Digest
    limit: Annotated[int, integer(1, limits.packs_list_max)]


@message(43)
@dataclass(frozen=True, slots=True)
class PacksList(Message):
    """Answers PacksGet: rows of pack id and size in bytes, in rising order. With `more`, ask on after the last."""

    packs: Annotated[tuple[tuple[bytes, int], ...], list_of(row(bytes32, uint63), limits.packs_list_max)]
    more: Annotated[bool, boolean]


@message(44)
@dataclass(frozen=True, slots=True)
class PackRead(Message):
    """Asks for `length` bytes of a pack from `offset`, both in bytes."""

    pack: Bytes32
    offset: Count
    length: Annotated[int, integer(1, limits.pack_read_bytes_max)]


@message(45)
@dataclass(frozen=True, slots=True)
class PackBytes(Message):
    """Answers PackRead: the bytes, fewer than asked only at the pack's end, and the pack's whole size in bytes."""

    pack: Bytes32
    offset: Count
    size: Count
    data: Annotated[bytes, binary(0, limits.pack_read_bytes_max)]


@message(46)
@dataclass(frozen=True, slots=True)
class VaultChanged(Message):
    """A notice: the sender's vault digest is now this one. Whoever has another may ask."""

    digest: Bytes32


@message(47)
@dataclass(frozen=True, slots=True)
class BulkOpen(Message):
    """From whoever dialled the session: take the bulk connection with this token. `pulls`: the sender will ask for
    packs on it; else the receiver will."""

    token: Annotated[bytes, binary(limits.bulk_token_bytes, limits.bulk_token_bytes)]
    certificate: Annotated[bytes, binary(1, limits.bulk_certificate_bytes_max)]
    pulls: Annotated[bool, boolean]


@message(48)
@dataclass(frozen=True, slots=True)
class BulkReady(Message):
    """Answers BulkOpen: the connection may come. Answers BulkWant: it is made. The sender's certificate on it."""

    certificate: Annotated[bytes, binary(1, limits.bulk_certificate_bytes_max)]


@message(49)
@dataclass(frozen=True, slots=True)
class BulkWant(Message):
    """To whoever dialled the session: make a bulk connection on which I may ask for packs."""


@message(50)
@dataclass(frozen=True, slots=True)
class RangesGet(Message):
    """Asks which packs are in these ranges of names: lower bound, upper bound (empty: to the end), the asker's
    fingerprint of what it holds there (empty: give the names)."""

    ranges: Annotated[tuple[tuple[bytes, bytes, bytes], ...],
                      list_of(row(binary(0, 33), binary(0, 33), binary(0, 16)), limits.ranges_max, 1)]


@message(51)
@dataclass(frozen=True, slots=True)
class RangesList(Message):
    """Answers RangesGet, a row for each range: kind (0 same, 1 names, 2 parts), rows of pack id and size, whether more
    follow, rows of the bound where a part ends and its fingerprint."""

    answers: Annotated[tuple[Any, ...], list_of(
        row(integer(0, 2), list_of(row(bytes32, uint63), limits.packs_list_max), boolean,
            list_of(row(binary(0, 33), binary(16, 16)), 64)), limits.ranges_max, 1)]


# --- joining (SPEC.md, 4) --------------------------------------------------------------------------------------------


@message(60)
@dataclass(frozen=True, slots=True)
class JoinOpen(Message):
    """Joiner to inviter. `selector` names the invitation (nameplate or ticket id), `exchange` is the first share."""

    versions: Annotated[tuple[int, ...], list_of(integer(1, 65_535), 8, 1)]
    carrier: Annotated[str, one_of("code", "ticket")]
    selector: Annotated[str, text(64, 1)]
    exchange: Annotated[bytes, binary(32, 33)]


@message(61)
@dataclass(frozen=True, slots=True)
class JoinExchange(Message):
    """Inviter to joiner: the chosen version and the second share."""

    version: Annotated[int, integer(1, 65_535)]
    exchange: Annotated[bytes, binary(32, 33)]


@message(62)
@dataclass(frozen=True, slots=True)
class JoinConfirm(Message):
    """Joiner to inviter: proof that it holds the secret."""

    mac: Bytes32


@message(63)
@dataclass(frozen=True, slots=True)
class JoinOffer(Message):
    """Inviter to joiner: its proof, and the sealed offer (identity, role, chain head)."""

    mac: Bytes32
    sealed: Annotated[bytes, binary(16, 8_192)]


@message(64)
@dataclass(frozen=True, slots=True)
class JoinRequest(Message):
    """Joiner to inviter: the sealed device keys, name and tier."""

    sealed: Annotated[bytes, binary(16, 8_192)]


@message(65)
@dataclass(frozen=True, slots=True)
class JoinEntries(Message):
    """Inviter to joiner: a sealed batch of chain entries, the certificate among them. `more`: others follow."""

    sealed: Annotated[bytes, binary(16, limits.frame_bytes_max - limits.message_overhead_bytes)]
    more: Annotated[bool, boolean]


@message(66)
@dataclass(frozen=True, slots=True)
class JoinDone(Message):
    """Joiner to inviter: the chain verified and is on disk."""

    mac: Bytes32


@message(67)
@dataclass(frozen=True, slots=True)
class JoinRefuse(Message):
    """Either way: the join ends here, and why."""

    code: Annotated[str, code_text]
    message: Annotated[str, text(limits.text_bytes_max)]

    def error(self) -> ProtocolError:
        """The error that the other side named."""
        return error_from_code(self.code, self.message)


@message(68)
@dataclass(frozen=True, slots=True)
class RecoverOpen(Message):
    """A device to be, to any device of the household: give me the chain, here is the root's word for it."""

    versions: Annotated[tuple[int, ...], list_of(integer(1, 65_535), 8, 1)]
    root: Bytes32
    proof: Annotated[bytes, binary(64, 64)]
