"""Inviting and joining over the real network on loopback, with in-memory disks and the real join machines."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from hinet_node import home
from hinet_node.belonging.invitation_store import InvitationStore
from hinet_node.belonging.invite import Inviter
from hinet_node.belonging.join import Wanted, check_clock, check_name, join_household, preflight
from hinet_node.belonging.join_stream import JOIN_PROTOCOL
from hinet_node.belonging.membership import Membership, draw_root
from hinet_node.errors import ConflictError, NetworkError, NodeError, NoSpace, NotAuthorised, TryAgain, UsageError
from hinet_node.ports import Discovery, Ports
from hinet_node.real.compute import ProcessCompute
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.real.transport import Libp2pNetwork
from hinet_protocol.errors import (
    CodeUnknown,
    CodeWrong,
    InvitationBurned,
    InvitationExpired,
    InvitationUsed,
    JoinDeclined,
    JoinError,
)
from hinet_protocol.identity import fingerprint, identity_text
from hinet_protocol.invitations import make_code, parse_code, parse_ticket
from hinet_simnet.disk import MemoryDisk

NO_DISCOVERY: Any = None


def ports_over(disk: MemoryDisk, discovery: Discovery = NO_DISCOVERY) -> Ports:
    return Ports(clock=SystemClock(), randomness=SystemRandomness(), network=Libp2pNetwork(), discovery=discovery,
                 disk=disk, compute=ProcessCompute())


class Household:
    """An inviting device that listens on loopback."""

    def __init__(self, ports: Ports, membership: Membership, inviter: Inviter, addresses: tuple[str, ...],
                 log: list[str]) -> None:
        self.ports, self.membership, self.inviter, self.addresses, self.log = ports, membership, inviter, addresses, log
        self.addresses_of: list[str] = []

    async def invite(self, **args: Any) -> dict[str, Any]:
        verbs = self.inviter.verbs()
        return await verbs["invite"]({"accept": True, "wait": False, **args}, lambda progress: None)


@asynccontextmanager
async def household(disk: MemoryDisk | None = None) -> AsyncIterator[Household]:
    ports = ports_over(disk or MemoryDisk())
    if ports.disk.exists(home.CHAIN_HEAD):
        membership = Membership.load(ports.disk, ports.randomness, ports.clock)
    else:
        membership = Membership.found(ports.disk, ports.randomness, ports.clock, name="first", tier="cloud",
                                      root=draw_root(ports.randomness))
    log: list[str] = []
    listening: list[str] = []
    inviter = Inviter(ports, membership, log.append, lambda: listening, discover=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(inviter.run)
        async with ports.network.serve(membership.keys.sign_seed, ["/ip4/127.0.0.1/tcp/0"],
                                       {JOIN_PROTOCOL: inviter.handle}) as addresses:
            listening += addresses
            made = Household(ports, membership, inviter, tuple(addresses), log)
            made.addresses_of = listening
            yield made
        nursery.cancel_scope.cancel()


async def join_with(text: str, addresses: tuple[str, ...], disk: MemoryDisk | None = None, name: str = "second",
                    tier: str = "laptop", timeout_s: float = 10.0,
                    news: list[dict[str, str]] | None = None) -> Membership:
    ports = ports_over(disk or MemoryDisk())
    keys = preflight(ports.disk, ports.randomness)
    invitation = parse_ticket(text) if text.startswith("hinet1") else parse_code(text)
    return await join_household(ports, keys, Wanted(invitation, name, tier, addresses, timeout_s),
                                (news if news is not None else []).append)


def wrong(code: str) -> str:
    words = code.split("-")
    words[1] = "zoo" if words[1] != "zoo" else "zone"
    return "-".join(words)


@pytest.mark.parametrize("role", ["member", "keeper", "admin"])
def test_a_code_makes_a_device_with_the_role_that_was_offered(role: str) -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite(role=role)
            disk, news = MemoryDisk(), list[dict[str, str]]()
            second = await join_with(shown["code"], first.addresses, disk, news=news)
            assert (second.name, second.role, second.tier) == ("second", role, "laptop")
            assert second.chain() == first.membership.chain()
            assert (second.current_epoch() is None) == (role == "keeper")
            assert [one["state"] for one in news] == ["looking", "found", "asking"]
            assert news[-1]["fingerprint"] == fingerprint(second.device_public)
            assert Membership.load(disk, first.ports.randomness, first.ports.clock).chain() == second.chain()

    trio.run(main)


def test_a_new_member_opens_what_was_written_before_it_came() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            second = await join_with(shown["code"], first.addresses)
            assert second.epoch_keys() == first.membership.epoch_keys()

    trio.run(main)


def test_a_ticket_brings_its_own_addresses_and_fixes_the_tier() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite(carrier="ticket", tier="pocket")
            second = await join_with(shown["ticket"], ())
            assert second.tier == "pocket"
            with pytest.raises(InvitationUsed):
                await join_with(shown["ticket"], ())

    trio.run(main)


def test_three_wrong_tries_close_the_invitation_for_the_right_code_too() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            for _ in range(3):
                disk = MemoryDisk()
                with pytest.raises(CodeWrong):
                    await join_with(wrong(shown["code"]), first.addresses, disk)
                assert not disk.exists(home.CHAIN_HEAD)
            with pytest.raises(InvitationBurned):
                await join_with(shown["code"], first.addresses)
            assert len(first.membership.chain().devices()) == 1

    trio.run(main)


def test_a_code_works_once_and_a_second_joiner_is_told_so() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            outcomes: list[str] = []

            async def race(name: str) -> None:
                try:
                    await join_with(shown["code"], first.addresses, name=name)
                    outcomes.append("joined")
                except InvitationUsed:
                    outcomes.append("used")

            async with trio.open_nursery() as nursery:
                for name in ("a", "b", "c"):
                    nursery.start_soon(race, name)
            assert sorted(outcomes) == ["joined", "used", "used"]
            assert len(first.membership.chain().devices()) == 2

    trio.run(main)


def test_an_expired_a_withdrawn_and_an_unknown_code_are_told_apart() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            store: InvitationStore = first.inviter._store
            record = store.get(shown["selector"])
            assert record is not None
            store.save(replace(record, expires_at_s=0))
            with pytest.raises(InvitationExpired, match="expired"):
                await join_with(shown["code"], first.addresses)
            other = await first.invite()
            await first.inviter.verbs()["invite.cancel"]({"selector": other["selector"]}, lambda progress: None)
            with pytest.raises(InvitationExpired, match="cancelled"):
                await join_with(other["code"], first.addresses)
            taken = {shown["selector"], other["selector"]}
            unknown = next(code for code in (make_code(bytes([number]) * 16) for number in range(9))
                           if code.selector not in taken)
            with pytest.raises(CodeUnknown):
                await join_with(unknown.text, first.addresses)

    trio.run(main)


def test_the_owner_is_asked_and_may_say_no_or_yes() -> None:
    async def main() -> None:
        async with household() as first:
            verbs = first.inviter.verbs()
            for accept in (False, True):
                news: list[Mapping[str, Any]] = []
                code, asked = trio.Event(), trio.Event()

                def emit(progress: Mapping[str, Any], news: list[Mapping[str, Any]] = news, code: trio.Event = code,
                         asked: trio.Event = asked) -> None:
                    news.append(progress)
                    (code if progress["state"] == "waiting" else asked).set()

                outcome: list[Any] = []

                async def wait(emit: Any = emit, outcome: list[Any] = outcome) -> None:
                    try:
                        outcome.append(await verbs["invite"]({}, emit))
                    except JoinDeclined as error:
                        outcome.append(error)

                joined: list[Any] = []

                async def joiner(news: list[Mapping[str, Any]] = news, joined: list[Any] = joined) -> None:
                    try:
                        joined.append(await join_with(news[0]["code"], first.addresses))
                    except JoinDeclined as error:
                        joined.append(error)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await code.wait()
                    nursery.start_soon(joiner)
                    await asked.wait()
                    question = news[-1]
                    assert (question["name"], question["tier"]) == ("second", "laptop")
                    await verbs["invite.decide"]({**question, "accept": accept}, lambda progress: None)
                assert isinstance(joined[0], Membership) == accept
                assert isinstance(outcome[0], dict) == accept
            assert len(first.membership.chain().devices()) == 2

    trio.run(main)


def test_a_fingerprint_in_advance_lets_only_that_device_in() -> None:
    async def main() -> None:
        async with household() as first:
            disk = MemoryDisk()
            keys = preflight(disk, SystemRandomness())
            shown = await first.invite(accept=False, fingerprint="AAAA-AAAA")
            with pytest.raises(JoinDeclined):
                await join_with(shown["code"], first.addresses, disk)
            shown = await first.invite(accept=False, fingerprint=fingerprint(keys.public).lower())
            assert (await join_with(shown["code"], first.addresses, disk)).device_public == keys.public

    trio.run(main)


def test_a_name_that_is_taken_is_refused_before_the_code_is_spent() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            with pytest.raises(Exception, match="--name"):
                await join_with(shown["code"], first.addresses, name="First")
            assert (await join_with(shown["code"], first.addresses)).name == "second"

    trio.run(main)


def test_a_full_disk_at_the_joiner_is_found_before_the_code_is_spent() -> None:
    disk = MemoryDisk()
    disk.full = True
    with pytest.raises(NoSpace, match="not used"):
        preflight(disk, SystemRandomness())
    assert not disk.list("")
    disk = MemoryDisk()
    disk.read_only = True
    with pytest.raises(NoSpace):
        preflight(disk, SystemRandomness())


def test_a_home_with_an_identity_is_not_joined_again() -> None:
    disk = MemoryDisk()
    root = draw_root(SystemRandomness())
    Membership.found(disk, SystemRandomness(), SystemClock(), name="x", tier="cloud", root=root)
    with pytest.raises(ConflictError):
        preflight(disk, SystemRandomness())


def test_a_full_disk_at_the_inviter_opens_the_invitation_again() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            disk = first.ports.disk
            assert isinstance(disk, MemoryDisk)
            kept = disk.used_bytes()
            disk.capacity_bytes = kept + 300  # room for the record, none for the certificate
            with pytest.raises(Exception, match="inviting device could not"):
                await join_with(shown["code"], first.addresses)
            disk.capacity_bytes = 1 << 30
            assert (await join_with(shown["code"], first.addresses)).name == "second"

    trio.run(main)


def test_wrong_tries_while_the_inviters_disk_is_full_are_counted_and_end_nothing() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        async with household(disk) as first:
            shown, ticket = await first.invite(), await first.invite(carrier="ticket")
            disk.full = True
            for _ in range(3):
                with pytest.raises(CodeWrong):
                    await join_with(wrong(shown["code"]), first.addresses)
            with pytest.raises(InvitationBurned):
                await join_with(shown["code"], first.addresses)
            await first.inviter.verbs()["invite.cancel"]({"selector": ticket["selector"]}, lambda progress: None)
            disk.full = False
        async with household(disk) as again:
            assert again.inviter.open_invitations() == [], "what was closed stays closed after a start"
            with pytest.raises(CodeUnknown):
                await join_with(ticket["ticket"], again.addresses)

    trio.run(main)


def test_an_inviter_killed_after_consuming_opens_a_ticket_again_and_cancels_a_code() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        async with household(disk) as first:
            ticket, code = await first.invite(carrier="ticket"), await first.invite()
            store = first.inviter._store
            for shown in (ticket, code):
                record = store.get(shown["selector"])
                assert record is not None
                store.save(record.consume(bytes(32)))
        async with household(disk) as again:
            states = {shown["selector"]: again.inviter._store.get(shown["selector"]) for shown in (ticket, code)}
            assert [record.state for record in states.values() if record] == ["open", "cancelled"]
            assert [one["selector"] for one in again.inviter.open_invitations()] == [ticket["selector"]]
            assert (await join_with(ticket["ticket"], again.addresses)).name == "second"

    trio.run(main)


def test_an_inviter_killed_after_certifying_counts_the_invitation_as_used() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        async with household(disk) as first:
            shown = await first.invite(carrier="ticket")
            second = await join_with(shown["ticket"], ())
            store = first.inviter._store
            record = store.get(shown["selector"])
            assert record is not None
            store.save(replace(record, state="consumed", secret=b"x" * 16, joiner=second.device_public))
        async with household(disk) as again:
            record = again.inviter._store.get(shown["selector"])
            assert record is not None
            assert record.state == "certified"

    trio.run(main)


def secret_words(code: str) -> list[str]:
    return code.split("-")[1:]


def test_secrets_are_private_on_disk_and_gone_after_use() -> None:
    async def main() -> None:
        async with household() as first:
            shown = await first.invite()
            name = f"{home.INVITATIONS}/{shown['selector']}"
            secret = parse_code(shown["code"]).secret
            assert secret in first.ports.disk.read(name)
            await join_with(shown["code"], first.addresses)
            assert secret not in first.ports.disk.read(name)
            # One word alone proves nothing: "member", "open" and "device" are words of the list too.
            assert not any(all(word in line for word in secret_words(shown["code"])) for line in first.log)

    trio.run(main)


def test_nobody_at_the_address_is_a_network_error_with_the_next_step() -> None:
    async def main() -> None:
        with pytest.raises(NetworkError, match="could not be reached") as caught:
            await join_with("1-zoo-zoo-zoo", ("/ip4/127.0.0.1/tcp/1",), timeout_s=3)
        assert "--address" in (caught.value.next_step or "")

    trio.run(main)


def test_only_admins_invite_and_an_unattended_invitation_needs_an_answer_in_advance() -> None:
    async def main() -> None:
        async with household() as first:
            with pytest.raises(UsageError, match="answer in advance"):
                await first.invite(accept=False)
            for bad in ({"role": "king"}, {"tier": "big"}, {"expires_s": 1}):
                with pytest.raises(UsageError):
                    await first.invite(**bad)
            shown = await first.invite()
            member = await join_with(shown["code"], first.addresses)
            inviter = Inviter(first.ports, member, first.log.append, lambda: (), discover=False)
            with pytest.raises(NotAuthorised, match="only an admin"):
                await inviter.verbs()["invite"]({}, lambda progress: None)

    trio.run(main)


def test_a_clock_that_can_not_be_right_is_told_before_the_code_is_used() -> None:
    for now_s, said in ((0.0, "the year 1970"), (-86_400.0, "before 1970"), (5e9, "the year 2128")):
        with pytest.raises(NodeError, match=said) as caught:
            check_clock(now_s)
        assert (caught.value.code, "--any-clock" in (caught.value.next_step or "")) == ("E_CLOCK", True)
    check_clock(1_800_000_000.0)


@pytest.mark.parametrize("name", ["", "a" * 64, "tab\there", "ä" * 32])
def test_a_name_that_no_certificate_holds_is_told_before_the_code_is_used(name: str) -> None:
    with pytest.raises(UsageError, match="the code was not used"):
        check_name(name)


def test_a_joiner_that_lost_its_certificate_gets_it_with_a_new_code_and_the_same_key() -> None:
    async def main() -> None:
        async with household() as first:
            disk = MemoryDisk()
            preflight(disk, SystemRandomness())
            lost = disk.copy()
            shown = await first.invite()
            await join_with(shown["code"], first.addresses, disk)
            shown = await first.invite(role="keeper")
            with pytest.raises(JoinError, match="--role member"):
                await join_with(shown["code"], first.addresses, lost.copy())
            shown = await first.invite()
            again = await join_with(shown["code"], first.addresses, lost, name="another name")
            assert (again.name, again.role) == ("second", "member"), "the certificate is the one that was there"
            assert again.epoch_keys() == first.membership.epoch_keys()
            assert len(first.membership.chain().devices()) == 2
            record = first.inviter._store.get(shown["selector"])
            assert record is not None
            assert record.state == "certified"

    trio.run(main)


def test_a_joiner_whose_disk_fills_up_too_late_keeps_its_key_and_takes_up_its_certificate_later() -> None:
    async def main() -> None:
        async with household() as first:
            disk = MemoryDisk()
            keys = preflight(disk, SystemRandomness())
            ports, shown = ports_over(disk), await first.invite()

            def fill(news: dict[str, str]) -> None:
                disk.full = news["state"] == "asking"

            with pytest.raises(NoSpace):
                await join_household(ports, keys, Wanted(parse_code(shown["code"]), "second", "laptop",
                                                         first.addresses, 10.0), fill)
            assert not disk.exists(home.CHAIN_HEAD)
            disk.full = False
            again = await join_with((await first.invite())["code"], first.addresses, disk)
            assert again.device_public == keys.public
            assert len(first.membership.chain().devices()) == 2

    trio.run(main)


def test_a_name_of_a_device_that_is_gone_for_ever_is_free_once_that_is_revoked() -> None:
    async def main() -> None:
        async with household() as first:
            gone = await join_with((await first.invite())["code"], first.addresses)
            with pytest.raises(JoinError, match="revoke it there"):
                await join_with((await first.invite())["code"], first.addresses)
            first.membership.revoke(gone.device_public, "its disk died")
            assert (await join_with((await first.invite())["code"], first.addresses)).name == "second"

    trio.run(main)


def test_a_joiner_whose_key_was_removed_draws_a_new_one_and_says_so() -> None:
    async def main() -> None:
        async with household() as first:
            disk, news = MemoryDisk(), list[dict[str, str]]()
            keys = preflight(disk, SystemRandomness())
            lost = disk.copy()
            removed = await join_with((await first.invite())["code"], first.addresses, disk)
            first.membership.revoke(removed.device_public, "")
            shown = await first.invite()
            again = await join_with(shown["code"], first.addresses, lost, news=news)
            assert again.device_public != keys.public
            assert "new-key" in [one["state"] for one in news]
            assert Membership.load(lost, first.ports.randomness, first.ports.clock).device_public == again.device_public

    trio.run(main)


def test_a_joiner_that_waits_behind_another_one_is_told_what_it_waits_for() -> None:
    async def main() -> None:
        async with household() as first:
            first.inviter._joining = True  # somebody's join waits for its owner
            news = list[dict[str, str]]()
            with pytest.raises(TryAgain, match="another device is joining") as caught:
                await join_with((await first.invite())["code"], first.addresses, timeout_s=2, news=news)
            assert "hinet-node join CODE" in (caught.value.next_step or "")
            assert [one["state"] for one in news].count("busy") == 1

    trio.run(main)


def test_the_household_and_the_fingerprint_are_shown_before_anything_is_agreed() -> None:
    async def main() -> None:
        async with household() as first:
            news = list[dict[str, str]]()
            await join_with((await first.invite())["code"], first.addresses, news=news)
            (asking,) = [one for one in news if one["state"] == "asking"]
            assert asking["identity"] == identity_text(first.membership.identity_id)
            assert asking["inviter"] == "first"

    trio.run(main)


def test_an_invitation_for_one_interface_gives_its_addresses_only() -> None:
    async def main() -> None:
        async with household() as first:
            first.addresses_of.append("/ip4/192.0.2.77/tcp/1")
            shown = await first.invite(carrier="ticket", hosts=["127.0.0.1"])
            assert parse_ticket(shown["ticket"]).addresses == first.addresses
            with pytest.raises(UsageError, match="no address of that interface"):
                await first.invite(hosts=["198.51.100.1"])

    trio.run(main)
