"""Where siblings were found: what is remembered, in which order it is tried, and what is forgotten."""

from __future__ import annotations

from hinet_node.sessions.address_book import ADDRESSES_MAX, DEVICES_MAX, FILE, AddressBook
from hinet_simnet.disk import MemoryDisk

DEVICE = b"d" * 32
OLD, NEW, DOOR = "/ip4/192.168.1.5/tcp/1", "/ip4/192.168.1.9/tcp/1", "/dns/door.example/tcp/4001"
LOOPBACK, LOCAL = "/ip4/127.0.0.1/tcp/1", "/ip6zone/eth0/ip6/fe80::1/tcp/1"


def test_what_was_heard_comes_first_and_loopback_last() -> None:
    book = AddressBook(MemoryDisk())
    book.keep(DEVICE, OLD, ())
    assert book.hear(DEVICE, [LOOPBACK, NEW])
    assert book.find(DEVICE) == (NEW, OLD, LOOPBACK)


def test_an_announcement_is_news_when_its_addresses_change_or_the_device_was_started_anew() -> None:
    book = AddressBook(MemoryDisk())
    heard = [book.hear(DEVICE, places, boot) for places, boot in
             (([OLD], "1"), ([OLD], "1"), ([NEW], "1"), ([NEW], "2"), ([NEW], "2"), ([], "3"), (["nonsense"], "4"))]
    assert heard == [True, False, True, True, False, False, False]


def test_an_address_that_failed_is_tried_last_and_forgotten_once_another_one_led_to_the_device() -> None:
    disk = MemoryDisk()
    book = AddressBook(disk)
    book.hear(DEVICE, [OLD, NEW])
    book.keep(DEVICE, OLD, [OLD])
    book.fail(DEVICE, OLD)
    assert book.find(DEVICE) == (NEW, OLD)
    book.keep(DEVICE, NEW, [NEW])
    assert book.find(DEVICE) == AddressBook(disk).find(DEVICE) == (NEW,)


def test_what_a_device_announces_is_tried_like_new_and_what_it_does_not_stays_suspect() -> None:
    book = AddressBook(MemoryDisk())
    book.keep(DEVICE, OLD, [OLD, NEW])
    for place in (OLD, NEW):
        book.fail(DEVICE, place)
    book.hear(DEVICE, [NEW], "2")
    assert book.find(DEVICE) == (NEW, OLD)
    book.keep(DEVICE, None, [NEW])
    assert book.find(DEVICE) == (NEW,)


def test_an_address_that_fails_while_the_device_is_connected_by_another_one_is_forgotten_at_once() -> None:
    book = AddressBook(MemoryDisk())
    book.keep(DEVICE, OLD, [OLD])
    book.keep(DEVICE, None, [NEW])
    book.fail(DEVICE, OLD, met=True)
    assert book.find(DEVICE) == (NEW,)
    book.fail(DEVICE, NEW, met=True)
    assert book.find(DEVICE) == (NEW,), "the device itself names it, and is not asked in vain again"


def test_all_that_failed_stays_until_something_works() -> None:
    book = AddressBook(MemoryDisk())
    book.keep(DEVICE, OLD, [OLD, NEW])
    for place in (OLD, NEW, "/ip4/10.0.0.1/tcp/1"):
        book.fail(DEVICE, place)
    assert set(book.find(DEVICE)) == {OLD, NEW}


def test_an_address_that_failed_and_that_the_device_still_names_is_kept() -> None:
    book = AddressBook(MemoryDisk())
    book.keep(DEVICE, None, [OLD, NEW])
    book.fail(DEVICE, OLD)
    book.keep(DEVICE, NEW, [OLD, NEW])
    assert set(book.find(DEVICE)) == {OLD, NEW}


def test_a_way_in_that_the_device_does_not_know_of_is_remembered_beside_what_it_says() -> None:
    disk = MemoryDisk()
    book = AddressBook(disk)
    book.keep(DEVICE, DOOR, ())
    book.keep(DEVICE, None, [OLD])
    assert set(book.find(DEVICE)) == {DOOR, OLD}
    again = AddressBook(disk)
    again.keep(DEVICE, None, [NEW])
    assert set(again.find(DEVICE)) == {DOOR, NEW}
    again.fail(DEVICE, DOOR)
    again.keep(DEVICE, None, [NEW])
    assert again.find(DEVICE) == (NEW,)


def test_the_others_link_local_addresses_are_not_kept_and_loopback_only_where_it_led_there() -> None:
    book = AddressBook(MemoryDisk())
    book.keep(DEVICE, OLD, [LOCAL, LOOPBACK, NEW])
    assert book.find(DEVICE) == (OLD, NEW)
    book.keep(b"e" * 32, LOOPBACK, ["/ip4/127.0.0.1/tcp/2"])
    assert book.find(b"e" * 32) == (LOOPBACK, "/ip4/127.0.0.1/tcp/2")


def test_a_crowd_and_a_chatterbox_fill_no_memory_and_a_damaged_or_full_disk_costs_nothing_else() -> None:
    disk = MemoryDisk()
    disk.write_atomic(FILE, b"nonsense")
    book = AddressBook(disk)
    for number in range(DEVICES_MAX + 50):
        public = number.to_bytes(32, "big")
        many = [f"/ip4/10.0.{number % 250}.{part}/tcp/1" for part in range(50)]
        book.hear(public, many)
        book.keep(public, None, many)
        for place in many:
            book.fail(public, place)
    assert len(book._heard) == len(book._kept) == DEVICES_MAX
    assert len(book._failed) <= DEVICES_MAX + 50
    assert all(len(book.find(public)) <= 2 * ADDRESSES_MAX for public in book._kept)
    disk.full = True
    book.keep(DEVICE, OLD, ())
    assert book.find(DEVICE) == (OLD,)
