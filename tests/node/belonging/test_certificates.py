"""Which certificates a device should renew: pure questions to a chain."""

from __future__ import annotations

from hinet_node.belonging.certificates import (
    CERTIFICATE_LIFETIME_S,
    CLOCK_MIN_UNIX_S,
    RENEWAL_WINDOW_S,
    due,
    expiry_of,
)
from hinet_node.belonging.membership import grown
from hinet_protocol.chain import Chain, make_device_add, make_genesis
from hinet_protocol.identity import DeviceKeys, RootKey

NOW_S = 1_800_000_000
SOON_S = NOW_S + RENEWAL_WINDOW_S
KEYS = {name: DeviceKeys(name.encode().ljust(32, b"1"), name.encode().ljust(32, b"2"))
        for name in ("cloud", "desk", "pocket", "store")}


def chain(**expires_s: int) -> Chain:
    """cloud and desk are admins, pocket a member, store a keeper; those that are named belong."""
    root = RootKey(bytes(32))
    made = Chain.from_entries([make_genesis(root, 1)])
    roles = {"cloud": "admin", "desk": "admin", "pocket": "member", "store": "keeper"}
    for name, ends_s in expires_s.items():
        keys = KEYS[name]
        made = grown(made, [make_device_add(made, root, name=name, public=keys.public, box_public=keys.box_public,
                                            role=roles[name], tier="laptop", time_s=1, expires_s=ends_s)])
    return made


def names(found: Chain, own: str, *met: str, now_s: int = NOW_S) -> list[str]:
    return [device.name for device in due(found, KEYS[own].public, [KEYS[one].public for one in met], now_s)]


def test_devices_that_are_met_are_renewed_within_the_window_and_not_before() -> None:
    found = chain(cloud=0, desk=SOON_S, pocket=SOON_S + 1)
    assert names(found, "cloud", "desk", "pocket") == ["desk"]
    assert names(found, "cloud", "desk", "pocket", now_s=NOW_S + 1) == ["desk", "pocket"]
    assert names(found, "cloud", "pocket", now_s=NOW_S + 1) == ["pocket"]
    assert names(found, "cloud") == []


def test_only_admins_renew_and_nobody_itself_but_the_only_admin() -> None:
    found = chain(cloud=SOON_S, desk=SOON_S, pocket=SOON_S)
    assert names(found, "pocket", "cloud", "desk") == []
    assert names(found, "cloud", "cloud", "desk", "pocket") == ["cloud", "desk", "pocket"]  # met: never with oneself
    assert names(found, "cloud", "pocket") == ["pocket"]
    assert names(chain(cloud=SOON_S, pocket=SOON_S), "cloud") == ["cloud"]


def test_an_expired_admin_renews_nobody_unless_every_admin_is_expired() -> None:
    assert names(chain(cloud=NOW_S, desk=NOW_S + 1, pocket=NOW_S), "cloud", "pocket", "desk") == []
    assert names(chain(cloud=NOW_S, desk=0, pocket=NOW_S), "cloud", "pocket", "desk") == []
    assert names(chain(cloud=NOW_S, desk=NOW_S, pocket=NOW_S), "cloud", "pocket", "desk") == ["desk", "pocket"]
    assert names(chain(cloud=NOW_S, pocket=NOW_S), "cloud", "pocket") == ["cloud", "pocket"]


def test_a_certificate_without_end_is_never_due() -> None:
    assert names(chain(cloud=0, store=0, pocket=0), "cloud", "store", "pocket", now_s=2**40) == []
    assert expiry_of("keeper", NOW_S) == 0


def test_a_clock_that_was_never_set_makes_no_certificate_that_ended_long_ago() -> None:
    assert expiry_of("member", 5) == CLOCK_MIN_UNIX_S + CERTIFICATE_LIFETIME_S
    assert expiry_of("admin", NOW_S) == NOW_S + CERTIFICATE_LIFETIME_S
