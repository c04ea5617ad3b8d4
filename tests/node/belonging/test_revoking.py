"""Revoking in whole households, in virtual time: how fast it works, and who is said to know of it."""

from __future__ import annotations

from typing import Any

import pytest

from hinet_node.belonging.awareness import unaware_of
from hinet_node.belonging.household import describe_household, find_device
from hinet_node.belonging.membership import Membership, draw_keys, draw_root
from hinet_node.belonging.renaming import rename
from hinet_node.errors import ConflictError, NotAuthorised, UsageError
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.sessions.seen import Sighting
from hinet_protocol.chain import make_device_add, make_device_rotate
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.pytest_plugin import MakeHousehold


def device(h: Any, who: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {one["name"]: one for one in h.call(who, "status")["devices"]}[name]
    return found


def codes(h: Any, who: str) -> list[str]:
    return [one["code"] for one in h.call(who, "status")["warnings"]]


def test_sessions_of_a_revoked_device_are_closed_within_a_second_everywhere(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", "lost", seed=1) as h:
        h.until_meshed()
        epoch = h.agent("pocket").membership.current_epoch()
        begun_s = h.now_s()
        done = h.call("cloud", "device.revoke", device="lost", reason="left in a train")
        h.until(lambda: not h.agent("lost").peers.sessions, every_s=0.05)
        assert h.now_s() - begun_s < 1
        assert (sorted(done["told"]), done["not_told"]) == (["laptop", "pocket"], [])
        h.until(lambda: h.agent("pocket").membership.current_epoch() != epoch, seconds=5)
        assert h.agent("pocket").membership.current_epoch() not in h.agent("lost").membership.epoch_keys()


def test_the_plan_says_who_is_away_and_changes_nothing(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", seed=1) as h:
        h.until_meshed()
        h.stop("laptop")
        h.until(lambda: len(h.agent("cloud").peers.sessions) == 1)
        height = h.agent("cloud").membership.chain().height
        plan = h.call("cloud", "device.revoke", device="pocket", dry_run=True)
        assert (plan["done"], plan["away"], plan["remaining"]) == (False, ["laptop"], ["cloud", "laptop"])
        assert plan["last_seen_unix_s"]
        assert h.agent("cloud").membership.chain().height == height


def test_whoever_was_away_is_named_until_it_says_that_it_knows(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", "lost", seed=1) as h:
        h.until_meshed()
        h.stop("laptop")
        h.until(lambda: len(h.agent("cloud").peers.sessions) == 2)
        done = h.call("cloud", "device.revoke", device="lost")
        assert (done["told"], done["not_told"]) == (["pocket"], ["laptop"])
        for who in ("cloud", "pocket"):  # also where it was not typed
            h.until(lambda who=who: device(h, who, "laptop")["unaware_of"] == ["lost"], seconds=5)
            assert "E_NOT_TOLD" in codes(h, who)
        h.restart("cloud")
        assert device(h, "cloud", "laptop")["unaware_of"] == ["lost"], "a restart must not make anybody know more"
        h.start("laptop")
        for who in ("cloud", "pocket"):
            h.until(lambda who=who: not device(h, who, "laptop")["unaware_of"])
            assert "E_NOT_TOLD" not in codes(h, who)
        h.stop("laptop")
        h.until(lambda: device(h, "cloud", "laptop")["state"] == "away")
        h.restart("cloud")
        assert not device(h, "cloud", "laptop")["unaware_of"], "what it said is remembered"


def test_what_was_confirmed_outlives_a_crash(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "lost", seed=1) as h:
        h.until_meshed()
        h.call("cloud", "device.revoke", device="lost")
        h.kill("cloud")
        h.stop("laptop")
        h.start("cloud")
        assert device(h, "cloud", "laptop")["unaware_of"] == []


def test_what_a_device_wrote_since_tells_that_it_knows_also_those_who_never_meet_it(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", "lost", seed=1) as h:
        h.until_meshed()
        for pair in (("laptop", "pocket"), ("pocket", "laptop")):
            h.cut(*pair)
        h.until(lambda: device(h, "laptop", "pocket")["state"] == "away")
        h.call("cloud", "device.revoke", device="lost")
        h.until(lambda: device(h, "laptop", "pocket")["unaware_of"] == ["lost"], seconds=5)
        h.sleep(30)
        h.put("pocket", "note", b"x")
        h.until(lambda: h.holds("laptop", "note"))
        assert device(h, "laptop", "pocket")["unaware_of"] == []
        assert device(h, "laptop", "pocket")["state"] == "away"
        h.heal()
        h.until_meshed("cloud", "laptop", "pocket")


def test_a_device_that_joined_after_a_revocation_knows_of_it(household: MakeHousehold) -> None:
    with household("cloud", "lost", seed=1) as h:
        h.until_meshed()
        h.call("cloud", "device.revoke", device="lost")
        h.add("laptop")
        chain = h.agent("cloud").membership.chain()
        assert unaware_of(chain, {}, h.agent("cloud").membership.device_public) == {}


def test_whoever_does_not_know_that_a_key_was_replaced_is_named_too() -> None:
    disk, randomness, clock = MemoryDisk(), SystemRandomness(), SystemClock()
    admin = Membership.found(disk, randomness, clock, name="cloud", tier="cloud", root=draw_root(randomness))
    pocket, laptop, new = (draw_keys(randomness) for _ in range(3))
    for name, keys in (("pocket", pocket), ("laptop", laptop)):
        admin.take_in([make_device_add(
            admin.chain(), admin.keys, name=name, public=keys.public, box_public=keys.box_public, role="keeper",
            tier="pocket", time_s=1)])
    before = admin.chain().heads
    admin.take_in([make_device_rotate(admin.chain(), admin.keys, pocket.public, time_s=1, expires_s=0,
                                      new_public=new.public, new_box_public=new.box_public)])
    chain, own = admin.chain(), admin.device_public
    assert unaware_of(chain, {laptop.public: before}, own) == {laptop.public: (pocket.public,)}
    assert unaware_of(chain, {laptop.public: chain.heads}, own) == {}, "and the new key knows whom it replaced"
    shown = describe_household(admin, {laptop.public: Sighting(1, heads=before)})["devices"]
    assert [one["unaware_of"] for one in shown if one["name"] == "laptop"] == [["the former key of pocket"]]


def test_the_last_admin_is_not_revoked_and_the_way_by_the_words_is_named(household: MakeHousehold) -> None:
    with household("cloud", "laptop", seed=1) as h:
        h.until_meshed()
        for who in ("cloud", "laptop"):
            with pytest.raises(NotAuthorised, match="the last admin") as caught:
                h.call(who, "device.revoke", device="cloud")
            assert caught.value.code == "E_LAST_ADMIN"
            assert "--words-file" in (caught.value.next_step or "")


def test_one_of_two_admins_is_told_to_be_revoked_elsewhere(household: MakeHousehold) -> None:
    with household("cloud", "laptop", roles={"laptop": "admin"}, seed=1) as h:
        h.until_meshed()
        with pytest.raises(NotAuthorised, match="itself") as caught:
            h.call("cloud", "device.revoke", device="cloud")
        assert caught.value.code == "E_SELF_REVOKE"
        h.call("laptop", "device.revoke", device="cloud")
        h.until(lambda: codes(h, "cloud") == ["E_REVOKED"], seconds=5)
        assert "laptop says" in h.call("cloud", "status")["warnings"][0]["what"]
        h.sleep(120)
        assert codes(h, "cloud") == ["E_REVOKED"], "later refusals, of whatever wording, do not hide it"


def test_what_a_sibling_said_of_itself_outlives_a_restart(household: MakeHousehold) -> None:
    with household("cloud", "laptop", seed=1) as h:
        h.until_meshed()
        met = device(h, "cloud", "laptop")
        assert (met["state"], met["via"]) == ("connected", "direct")
        h.stop("laptop")
        h.restart("cloud")
        kept = device(h, "cloud", "laptop")
        assert (kept["state"], kept["via"]) == ("away", None)
        for key in ("address", "version", "backends", "memory_bytes", "bases"):
            assert kept[key] == met[key]
        assert kept["last_seen_unix_s"] >= met["last_seen_unix_s"] > 0


def test_a_crash_after_hours_does_not_make_a_sibling_look_long_gone(household: MakeHousehold) -> None:
    with household("cloud", "laptop", seed=1) as h:
        h.until_meshed()
        h.sleep(6 * 3_600)
        now_s = device(h, "cloud", "laptop")["last_seen_unix_s"]
        h.kill("cloud")
        h.stop("laptop")
        h.start("cloud")
        assert now_s - device(h, "cloud", "laptop")["last_seen_unix_s"] <= 3_600


def test_how_far_a_copy_is_behind_is_counted_in_packs_and_bytes(household: MakeHousehold) -> None:
    with household("cloud", "laptop", seed=1) as h:
        h.until_meshed()
        h.put("cloud", "a", b"1" * 50_000)
        h.until(lambda: device(h, "cloud", "laptop")["behind"] == {"packs": 0, "bytes": 0, "heads": 0})
        h.stop("laptop")
        h.put("cloud", "b", bytes(range(256)) * 400)
        behind = device(h, "cloud", "laptop")["behind"]
        status = h.call("cloud", "vault.status")
        assert behind["heads"] >= 1
        assert 1 <= behind["packs"] < status["packs"]
        assert 0 < behind["bytes"] < status["packs_bytes"]
        h.start("laptop")
        h.until(lambda: device(h, "cloud", "laptop")["behind"]["packs"] == 0)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_new_name_reaches_all_devices_and_changes_nothing_else(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", seed=1) as h:
        h.until_meshed()
        before = device(h, "cloud", "laptop")
        done = h.call("cloud", "device.rename", device="laptop", name="Küchentisch")
        assert (done["former"], done["name"]) == ("laptop", "Küchentisch")
        for who in ("cloud", "laptop", "pocket"):
            h.until(lambda who=who: any(one["name"] == "Küchentisch" for one in h.call(who, "devices")["devices"]))
        after = device(h, "cloud", "Küchentisch")
        for key in ("public", "role", "tier", "fingerprint", "state", "expires_unix_s"):
            assert after[key] == before[key]
        assert h.call("laptop", "status")["device"]["name"] == "Küchentisch"
        assert not h.call("cloud", "status")["warnings"], "the same key goes on: nobody was put out"
        assert h.call("cloud", "device.rename", device="Küchentisch", name="Küchentisch")["former"] == "Küchentisch"


def test_names_that_are_taken_or_no_names_are_refused_and_nothing_changes(household: MakeHousehold) -> None:
    with household("cloud", "laptop", seed=1) as h:
        h.until_meshed()
        height = h.agent("cloud").membership.chain().height
        with pytest.raises(ConflictError, match="called cloud already"):
            h.call("cloud", "device.rename", device="laptop", name="CLOUD")
        for name in ("", "x" * 64, "two\nlines", "\x1b[31m", "\u202eevil"):
            with pytest.raises(UsageError, match="can't be the name"):
                h.call("cloud", "device.rename", device="laptop", name=name)
        with pytest.raises(NotAuthorised, match="only an admin"):
            h.call("laptop", "device.rename", device="cloud", name="x")
        assert h.agent("cloud").membership.chain().height == height
        h.call("cloud", "device.rename", device="laptop", name="LAPTOP")
        assert h.call("cloud", "device.rename", device="cloud", name="box")["name"] == "box", "the only admin may"


def test_a_new_name_does_not_lengthen_a_certificate() -> None:
    randomness, clock = SystemRandomness(), SystemClock()
    admin = Membership.found(MemoryDisk(), randomness, clock, name="cloud", tier="cloud", root=draw_root(randomness))
    keys, ends_s = draw_keys(randomness), int(clock.now_unix_s()) + 1_000
    admin.take_in([make_device_add(
        admin.chain(), admin.keys, name="pi", public=keys.public, box_public=keys.box_public, role="keeper",
        tier="pocket", time_s=1, expires_s=ends_s)])
    rename(admin, find_device(admin.chain(), "pi"), "pie", clock.now_unix_s())
    assert (find_device(admin.chain(), "pie").expires_s, find_device(admin.chain(), "pie").public) == (
        ends_s, keys.public)


def test_an_admin_that_is_not_alone_is_renamed_by_another(household: MakeHousehold) -> None:
    with household("cloud", "laptop", roles={"laptop": "admin"}, seed=1) as h:
        h.until_meshed()
        with pytest.raises(NotAuthorised, match="rename itself") as caught:
            h.call("cloud", "device.rename", device="cloud", name="box")
        assert "laptop" in (caught.value.next_step or "")
        h.call("laptop", "device.rename", device="cloud", name="box")
        h.until(lambda: h.agent("cloud").membership.name == "box")
