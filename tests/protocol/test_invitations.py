from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import limits
from hinet_protocol.errors import (
    CodeMalformed,
    InvitationBurned,
    InvitationError,
    InvitationExpired,
    InvitationUsed,
    LimitError,
    ProtocolError,
    TicketMalformed,
)
from hinet_protocol.identity import word_list
from hinet_protocol.invitations import Code, Invitation, Ticket, make_code, parse_code, parse_ticket

TICKET = Ticket(
    secret=bytes(range(16)),
    identity_id=b"i" * 32,
    inviter=b"p" * 32,
    addresses=("/ip4/192.168.1.20/tcp/4001", "/ip6/fe80::1/tcp/4001"),
    role="member",
    tier=None,
    expires_s=1_800_000_000,
)
codes = st.binary(min_size=16, max_size=16).map(make_code)


@given(codes)
def test_a_code_comes_back_from_its_text(code: Code) -> None:
    assert parse_code(code.text) == code
    assert 1 <= code.nameplate <= 9_999
    assert len(code.words) == 3


@given(codes, st.sampled_from([" ", "  ", "-", "–", "_", ".", ", ", " - "]), st.booleans(), st.booleans())
def test_case_separators_and_short_words_are_forgiven(code: Code, between: str, upper: bool, short: bool) -> None:
    words = [word[:4] for word in code.words] if short else list(code.words)
    typed = between.join([str(code.nameplate), *words])
    assert parse_code(f"\n {typed.upper() if upper else typed} ") == code


def test_the_words_carry_at_least_thirty_bits() -> None:
    assert len(word_list()) ** limits.code_words >= 2**30
    assert len({make_code(number.to_bytes(16, "big")).text for number in range(0, 2**40, 2**30)}) == 1024


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("", "No code"),
        ("---", "No code"),
        ("abandon-ability-able", "begins with a number"),
        ("0-abandon-ability-able", "from 1 to 9999"),
        ("10000-abandon-ability-able", "from 1 to 9999"),
        ("12-abandon-ability", "has 3 words .* this one has 2"),
        ("12-abandon-ability-able-about", "this one has 4"),
        ("12-abandon-abilty-able", "Word 2 .*Did you mean 'ability'"),
        ("12-abandon-ability-qqqq", "Word 3 of the code"),
        ("12-" + "a" * 300, "far too long"),
    ],
)
def test_a_wrong_code_is_refused_with_the_part_that_is_wrong(typed: str, why: str) -> None:
    with pytest.raises(CodeMalformed, match=why):
        parse_code(typed)


@given(st.text(max_size=250))
def test_any_text_is_a_code_or_malformed(typed: str) -> None:
    try:
        parse_code(typed)
    except CodeMalformed:
        return


def test_secrets_do_not_show_in_repr_or_selector() -> None:
    code = make_code(bytes(range(16)))
    record = Invitation.for_code(code, role="member", tier=None, expires_at_s=1)
    for word in code.words:
        assert word not in repr(code)
        assert word not in repr(record)
        assert word not in code.selector
    assert TICKET.secret.hex() not in repr(TICKET) + TICKET.selector


def test_a_ticket_comes_back_from_its_text_in_both_cases() -> None:
    assert TICKET.text.startswith("hinet1")
    assert parse_ticket(TICKET.text) == TICKET
    assert parse_ticket(f" {TICKET.text.upper()}\n") == TICKET
    assert parse_ticket(TICKET.text[:50] + "\n   " + TICKET.text[50:]) == TICKET


@given(st.integers(0, 10_000), st.integers(1, 31))
def test_one_changed_character_is_noticed(at: int, by: int) -> None:
    alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    text = TICKET.text
    place = 6 + at % (len(text) - 6)
    changed = alphabet[(alphabet.index(text[place]) + by) % 32]
    with pytest.raises(TicketMalformed, match="checksum"):
        parse_ticket(text[:place] + changed + text[place + 1 :])


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("", "begins with hinet1"),
        ("hinet2qqqqqqq", "begins with hinet1"),
        ("hinet1", "cut short"),
        (TICKET.text[:-1], "cut short"),
        (TICKET.text + "q", "cut short"),
        (TICKET.text[:20] + "b" + TICKET.text[21:], "no character 'b'"),
        ("hinet1" + "q" * 3_000, "too long"),
    ],
)
def test_a_wrong_ticket_is_refused_with_its_reason(typed: str, why: str) -> None:
    with pytest.raises(TicketMalformed, match=why):
        parse_ticket(typed)


@given(st.text("hinet1qpzry9x8gf2tvdw0s3jn54khce6mua7lHINETbio ", max_size=100))
def test_any_text_is_a_ticket_or_malformed(typed: str) -> None:
    with pytest.raises(TicketMalformed):
        parse_ticket("hinet1" + typed)


def test_a_ticket_with_too_many_addresses_is_not_made() -> None:
    with pytest.raises(LimitError):
        _ = dataclasses.replace(TICKET, addresses=("/dns4/" + "a" * 240,) * 8).text


def test_a_record_comes_back_from_the_disk() -> None:
    for record in (
        Invitation.for_ticket(TICKET),
        Invitation.for_code(make_code(bytes(16)), role="keeper", tier="cloud", expires_at_s=7).consume(b"j" * 32),
    ):
        assert Invitation.from_bytes(record.to_bytes()) == record


@given(st.binary(max_size=200))
def test_random_bytes_are_no_record(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        Invitation.from_bytes(raw)


def test_a_record_goes_one_way_only() -> None:
    fresh = Invitation.for_ticket(TICKET)
    fresh.check_usable(TICKET.expires_s - 1)
    with pytest.raises(InvitationExpired, match="expired"):
        fresh.check_usable(TICKET.expires_s)
    consumed = fresh.consume(b"j" * 32)
    for done in (consumed, consumed.certify()):
        with pytest.raises(InvitationUsed):
            done.check_usable(0)
        with pytest.raises(InvitationUsed):
            done.consume(b"k" * 32)
        assert done.cancel() == done
    assert consumed.release() == fresh
    with pytest.raises(InvitationError):
        consumed.certify().release()
    with pytest.raises(InvitationError):
        fresh.certify()
    with pytest.raises(InvitationExpired, match="cancelled"):
        fresh.cancel().check_usable(0)


def test_the_third_failure_burns_an_open_record_only() -> None:
    record = Invitation.for_ticket(TICKET)
    for left in (2, 1, 0):
        assert record.state == "open"
        record = record.after_failure()
        assert record.tries_left == left
    with pytest.raises(InvitationBurned, match="3 wrong tries"):
        record.check_usable(0)
    with pytest.raises(InvitationUsed):
        record.consume(b"j" * 32)
    consumed = dataclasses.replace(Invitation.for_ticket(TICKET).consume(b"j" * 32), failures=2)
    assert consumed.after_failure().state == "consumed"
