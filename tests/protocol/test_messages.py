from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical, limits
from hinet_protocol import messages as m
from hinet_protocol.errors import CodeWrong, MessageError, ProtocolError

HASH = bytes(range(32))
HELLO = m.Hello(
    (1,), HASH, HASH, bytes(16), 4, (HASH,), "pocket", ("llamacpp",), 8 << 30, (HASH,), ("/ip4/10.0.0.7/tcp/4001",),
    "hinet-node 0.1.0", 1_800_000_000,
)  # fmt: skip
EXAMPLES: list[m.Message] = [
    HELLO,
    m.Ready(),
    m.Ping(7),
    m.Pong(7),
    m.Goodbye("E_STRANGER", "Not one of us."),
    m.ChainGet((HASH, bytes(32))),
    m.ChainEntries((b"entry",), True),
    m.ChainNotice(3, (HASH,)),
    m.Request(1, m.HeadsGet(b"")),
    m.Response(1, m.HeadsList(HASH, (b"head",))),
    m.ErrorReply(2, "E_BUSY", "Later."),
    m.HeadsGet(HASH),
    m.HeadsList(b"", ()),
    m.PacksGet(b"", 10),
    m.PacksList(((HASH, 65_536),), False),
    m.PackRead(HASH, 0, limits.pack_read_bytes_max),
    m.PackBytes(HASH, 0, 5, b"bytes"),
    m.VaultChanged(HASH),
    m.BulkOpen(bytes(16), b"certificate", True),
    m.BulkReady(b"certificate"),
    m.BulkWant(),
    m.RangesGet(((b"", b"", b""), (HASH, b"\xff", bytes(16)))),
    m.RangesList(((0, (), False, ()), (1, ((HASH, 65_536),), True, ()), (2, (), False, ((b"a", bytes(16)),)))),
    m.JoinOpen((1,), "code", "4711", bytes(33)),
    m.JoinExchange(1, bytes(33)),
    m.JoinConfirm(HASH),
    m.JoinOffer(HASH, bytes(64)),
    m.JoinRequest(bytes(64)),
    m.JoinEntries(bytes(64), False),
    m.JoinDone(HASH),
    m.RecoverOpen((1,), bytes(32), bytes(64)),
    m.JoinRefuse("E_CODE_WRONG", "The words do not match."),
]


def test_there_is_an_example_of_every_message() -> None:
    assert {type(example) for example in EXAMPLES} == set(m.tag_table().values())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_message_comes_back_from_the_wire(example: m.Message) -> None:
    assert m.from_wire(m.to_wire(example)) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_missing_or_unknown_field_is_refused_and_an_x_field_ignored(example: m.Message) -> None:
    tag, fields = canonical.decode(m.to_wire(example))
    for name in fields:
        fewer = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(MessageError, match=name):
            m.from_wire(canonical.encode([tag, fewer]))
        with pytest.raises(MessageError):
            m.from_wire(canonical.encode([tag, {**fields, name: [[]]}]))
    with pytest.raises(MessageError, match="unknown field"):
        m.from_wire(canonical.encode([tag, {**fields, "zzz": 1}]))
    assert m.from_wire(canonical.encode([tag, {**fields, "x-later": 1}])) == example


def test_the_largest_pack_read_fits_into_a_frame() -> None:
    whole = m.Response(2**63 - 1, m.PackBytes(HASH, 2**63 - 1, 2**63 - 1, bytes(limits.pack_read_bytes_max)))
    assert len(m.to_wire(whole)) <= limits.frame_bytes_max
    assert m.from_wire(m.to_wire(whole)) == whole


def test_the_largest_lists_fit_into_a_frame() -> None:
    packs = m.PacksList(tuple((HASH, 2**63 - 1) for _ in range(limits.packs_list_max)), True)
    assert len(m.to_wire(m.Response(2**63 - 1, packs))) <= limits.frame_bytes_max
    batch = m.ChainEntries((bytes(limits.chain_batch_bytes_max), bytes(limits.entry_bytes_max))[1:], True)
    assert len(m.to_wire(batch)) + limits.chain_batch_bytes_max <= limits.frame_bytes_max


@given(st.binary(max_size=300))
def test_random_bytes_give_a_message_or_a_protocol_error(raw: bytes) -> None:
    try:
        found = m.from_wire(raw)
    except ProtocolError:
        return
    assert m.from_wire(m.to_wire(found)) == found


@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_messages_give_a_message_or_a_protocol_error(example: m.Message, data: st.DataObject) -> None:
    raw = bytearray(m.to_wire(example))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        m.from_wire(bytes(raw))
    except ProtocolError:
        return


@pytest.mark.parametrize(
    "value", [None, 1, [], [1], [1, {}, 3], ["1", {}], [True, {}], [999, {}], [3, []], [20, {"number": 1, "body": 5}]]
)
def test_what_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(MessageError):
        m.from_wire(canonical.encode(value))


def test_envelopes_do_not_nest() -> None:
    inner = m.Request(1, m.Ping(1))
    with pytest.raises(MessageError, match="may not hold"):
        m.to_wire(m.Request(2, inner))
    with pytest.raises(MessageError, match="may not hold"):
        m.from_wire(canonical.encode([20, {"number": 2, "body": m.to_value(inner)}]))


def test_our_own_wrong_field_is_noticed_before_it_is_sent() -> None:
    with pytest.raises(MessageError, match=r"Ping\.number"):
        m.to_wire(m.Ping(-1))
    with pytest.raises(MessageError, match="tier"):
        m.to_wire(dataclasses.replace(HELLO, tier="desktop"))


def test_a_named_error_comes_back_as_its_class_and_an_unknown_one_shows_its_code() -> None:
    assert isinstance(m.JoinRefuse("E_CODE_WRONG", "no").error(), CodeWrong)
    unknown = m.ErrorReply(1, "E_FROM_THE_FUTURE", "what").error()
    assert type(unknown) is ProtocolError
    assert "E_FROM_THE_FUTURE" in str(unknown)
    assert m.Goodbye("OK", "").error() is None


@given(st.text(max_size=3_000))
def test_any_error_text_can_be_sent(text: str) -> None:
    cleaned = m.error_text(ProtocolError(text))
    assert m.from_wire(m.to_wire(m.Goodbye("E_PROTOCOL", cleaned))) == m.Goodbye("E_PROTOCOL", cleaned)
