"""Addresses are parsed strictly, also those that lead through a relay: they come from other machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_node.errors import NodeError, UsageError
from hinet_node.sessions.address_book import AddressBook
from hinet_node.sessions.addresses import Address, is_relayed, parse_address, parse_relay
from hinet_protocol.identity import peer_id
from hinet_simnet.disk import MemoryDisk

RELAY = b"r" * 32
ID = peer_id(RELAY)
AT = "/ip4/192.0.2.7/tcp/4001"


@pytest.mark.parametrize("place", ["/ip4/192.0.2.7/tcp/4001", "/ip6/2001:db8::1/tcp/1", "/dns/nas.example/tcp/65535",
                                   "/ip6zone/eth0/ip6/fe80::1/tcp/4001"])
def test_a_relayed_address_names_where_the_relay_listens_and_its_key(place: str) -> None:
    text = f"{place}/p2p/{ID}/p2p-circuit"
    found = parse_address(text)
    assert (str(found), str(found.direct), found.relay) == (text, place, RELAY)
    assert is_relayed(text)
    assert not is_relayed(place)
    assert parse_relay(place) == (found.direct, None)
    assert parse_relay(f"{place}/p2p/{ID}") == (found.direct, RELAY)


@pytest.mark.parametrize("text", [
    "/p2p-circuit", f"{AT}/p2p-circuit", f"/p2p/{ID}/p2p-circuit", f"{AT}/p2p//p2p-circuit", f"{AT}/p2p/{ID}",
    f"{AT}/p2p/{ID}x", f"{AT}/p2p/{ID}/p2p-circuit/p2p/{ID}", f"{AT}/p2p/{ID}/p2p-circuit/p2p-circuit",
    f"{AT}/p2p/1{ID}/p2p-circuit", f"{AT}/p2p/{ID}/p2p/{ID}/p2p-circuit",
    f"{AT}/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N/p2p-circuit",
    f"/ip4/192.0.2.7/udp/4001/p2p/{ID}/p2p-circuit", f"/ip6zone/{'z' * 33}/ip6/fe80::1/tcp/4001/p2p/{ID}/p2p-circuit",
    f"/dns/{'a' * 90}.{'b' * 90}/tcp/4001/p2p/{ID}/p2p-circuit", "/" * 256 + "/p2p-circuit",
])
def test_what_only_looks_like_a_relayed_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize("text", [
    f"/ip4/192.0.2.7/tcp/4001/p2p/{ID}/p2p-circuit", "192.0.2.7:4001", "/ip4/0.0.0.0/tcp/4001", "/ip4/192.0.2.7/tcp/0",
    "/ip4/192.0.2.7/tcp/4001/p2p/nobody", "",
])
def test_a_relay_of_the_settings_is_one_place_that_others_can_dial(text: str) -> None:
    with pytest.raises(UsageError):
        parse_relay(text)


@given(st.text(max_size=300) | st.text("/p2pcircut-4ip.0179", max_size=120).map(lambda text: f"{text}/p2p-circuit"))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for parse in (parse_address, parse_relay):
        try:
            parse(text)
        except NodeError:
            pass


def test_the_longest_relayed_address_fits_a_hello() -> None:
    found = parse_address(f"/dns/{'a' * 63}.{'b' * 36}/tcp/65535/p2p/{ID}/p2p-circuit")
    assert isinstance(found, Address)
    assert len(str(found)) <= 256


def test_the_book_gives_direct_ways_first_and_keeps_a_relayed_one_among_many() -> None:
    through = f"/ip4/192.0.2.7/tcp/4001/p2p/{ID}/p2p-circuit"
    ours = f"/ip4/198.51.100.1/tcp/4001/p2p/{ID}/p2p-circuit"
    disk = MemoryDisk("home")
    book = AddressBook(disk, lambda public: (ours,))
    many = [f"/ip4/10.0.0.{number}/tcp/4001" for number in range(12)]
    book.keep(b"k" * 32, None, [*many, through])
    assert book.find(b"k" * 32) == (*many[:7], through, ours)
    assert book.find(b"k" * 32, direct=True) == tuple(many[:7])
    assert book.find(b"u" * 32) == (ours,)
    assert book.find(b"u" * 32, direct=True) == ()
    book.keep(b"n" * 32, "/ip4/127.0.0.1/tcp/1", ["/ip4/127.0.0.1/tcp/1", through])
    assert book.find(b"n" * 32) == ("/ip4/127.0.0.1/tcp/1", through, ours)
    book.keep(b"k" * 32, through, [many[0]])  # dialled through the relay, which is still no better than directly
    assert AddressBook(disk).find(b"k" * 32) == (many[0], through)


def test_what_fails_directly_is_not_forgotten_because_a_relay_leads_there() -> None:
    through, near = f"{AT}/p2p/{ID}/p2p-circuit", "/ip4/10.0.0.1/tcp/4001"
    book = AddressBook(MemoryDisk("home"))
    book.hear(b"k" * 32, [near])
    book.fail(b"k" * 32, near)
    book.keep(b"k" * 32, through, [through])
    assert book.find(b"k" * 32) == (near, through)
    book.keep(b"k" * 32, "/ip4/10.0.0.2/tcp/4001", [through])  # as ever: another direct address led there
    assert book.find(b"k" * 32) == ("/ip4/10.0.0.2/tcp/4001", through)
