"""Each checker sees the bug that it is there for, planted in the agent's own code, and nothing without that bug.

A checker that says nothing, or a mutation of its rule, turns the first half of its test red; one that cries wolf, the
second half.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.belonging import chain_store
from hinet_node.belonging.invitation_store import InvitationStore
from hinet_node.belonging.join import Wanted, join_household, preflight
from hinet_node.belonging.join_work import JoinWork
from hinet_node.belonging.membership import Membership
from hinet_node.belonging.tending import Tending
from hinet_node.errors import NodeError
from hinet_node.learning import adapters
from hinet_node.sessions.dialling import Dialler
from hinet_node.sessions.peers import Peers
from hinet_node.vault.core import VaultCore
from hinet_protocol import join, packs, trees
from hinet_protocol import session as machine
from hinet_protocol.chain import Chain, Device
from hinet_protocol.errors import ProtocolError
from hinet_protocol.invitations import Invitation, parse_code
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.findings import Finding
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World
from hinet_tiers import fake

Watched = Callable[..., list[Finding]]
NOTE = b"".join(sha256(bytes([at])).digest() for at in range(64))


async def household(world: World, *, keeper: bool = False) -> None:
    await world.add("cloud", "cloud")
    await world.add("laptop", "laptop")
    await world.add("pocket", "pocket", role="keeper" if keeper else "member")
    await world.until(lambda: world.meshed("cloud", "laptop", "pocket"))


def names(found: list[Finding]) -> set[str]:
    return {finding.checker for finding in found}


# ---- chains ----------------------------------------------------------------------------------------------------------


async def revoke_and_power_cut(world: World) -> None:
    await household(world)
    await world.call("cloud", "device.revoke", device="pocket", reason="lost")
    await trio.sleep(5)
    world.partition(["laptop"], ["cloud", "pocket"])  # else it is told again before anybody looks
    await world.restart("laptop")
    await trio.sleep(5)
    world.heal()
    await trio.sleep(20)


def test_a_chain_that_is_used_before_it_is_on_disk_goes_back_at_a_power_cut(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(revoke_and_power_cut) == []
    monkeypatch.setattr(chain_store, "append", lambda disk, chain, added: None)
    assert any(finding.checker == "chains" and finding.node == "laptop" and "went back" in finding.message
               for finding in watched(revoke_and_power_cut))


async def revoke(world: World) -> None:
    await household(world)
    await world.call("cloud", "device.revoke", device="pocket", reason="lost")
    await trio.sleep(20)


def test_a_chain_that_is_not_passed_on_leaves_heads_that_differ(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(revoke) == []

    async def story(world: World) -> None:
        await household(world)
        monkeypatch.setattr(Peers, "chain_grew", lambda self: None)
        await world.call("cloud", "device.revoke", device="pocket", reason="lost")
        await trio.sleep(20)

    found = watched(story)
    assert any(finding.checker == "chains" and "differ" in finding.message for finding in found)


def test_two_devices_that_read_one_chain_differently_contradict_each_other(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Chain.devices

    async def story(world: World) -> None:
        await household(world)
        laptop = world.running_agent("laptop").membership

        def devices(self: Chain) -> tuple[Device, ...]:
            return honest(self)[::1 if self is not laptop.chain() else 2]

        monkeypatch.setattr(Chain, "devices", devices)
        await world.call("cloud", "device.revoke", device="pocket", reason="lost")
        await trio.sleep(20)

    assert any(finding.checker == "chains" and "says other things" in finding.message
               for finding in watched(story, settle_s=4))


# ---- revoked ---------------------------------------------------------------------------------------------------------


def test_a_revocation_that_closes_no_session_is_seen(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(self: machine.Session, event: Any, now_ms: int) -> Any:
        return self, ()

    monkeypatch.setattr(machine.Session, "_chain_changed", deaf)
    found = watched(revoke)
    assert any(finding.checker == "revoked" and "open session" in finding.message for finding in found)


def test_packs_that_go_to_a_revoked_device_are_seen(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await revoke(world)
        await world.call("laptop", "vault.put", name="secret.md", content=NOTE * 100)
        await trio.sleep(20)

    assert watched(story) == []
    honest = machine.Session._chain_changed

    def lenient(self: machine.Session, event: Any, now_ms: int) -> Any:
        return honest(self, event, now_ms) if event.chain.is_member(self.peer) else (self, ())

    monkeypatch.setattr(machine.Session, "_chain_changed", lenient)
    assert any(finding.checker == "revoked" and "bytes to pocket" in finding.message for finding in watched(story))


# ---- durable ---------------------------------------------------------------------------------------------------------


async def put_and_power_cut(world: World) -> None:
    await household(world)
    world.partition(["laptop"], ["cloud", "pocket"])
    await world.call("laptop", "vault.put", name="notes/dog.md", content=NOTE)
    await world.restart("laptop")
    await trio.sleep(5)
    world.heal()
    await trio.sleep(20)


def lost_on(found: list[Finding], node: str) -> bool:
    return any(finding.checker == "durable" and finding.node == node and "lost" in finding.message
               for finding in found)


def test_a_pack_renamed_without_fsync_is_a_lost_byte(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(put_and_power_cut) == []
    honest = MemoryDisk.commit

    def hasty(self: MemoryDisk, part: str, name: str) -> None:
        data = self.read(part)
        honest(self, part, name)
        if "packs/" in name:  # the bytes are under their name, and a power cut takes them
            self.remove(name)
            self.append(name, data)

    monkeypatch.setattr(MemoryDisk, "commit", hasty)
    assert lost_on(watched(put_and_power_cut), "laptop")


def test_an_acknowledgement_before_the_head_is_written_is_a_lost_byte(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MemoryDisk.write_atomic

    def hasty(self: MemoryDisk, name: str, data: bytes, *, private: bool = False) -> None:
        if name.startswith("vault/heads/"):
            if self.exists(name):
                self.remove(name)
            self.append(name, data)
        else:
            honest(self, name, data, private=private)

    monkeypatch.setattr(MemoryDisk, "write_atomic", hasty)
    assert lost_on(watched(put_and_power_cut), "laptop")


async def concurrent_edits(world: World) -> None:
    await household(world)
    world.partition(["laptop"], ["cloud", "pocket"])
    await world.call("laptop", "vault.put", name="list.md", content=b"milk, and bread from the baker")
    await world.call("cloud", "vault.put", name="list.md", content=b"eggs, and flour from the mill")
    await trio.sleep(10)
    world.heal()
    await trio.sleep(20)


def test_a_merge_that_drops_a_concurrent_edit_is_a_lost_byte(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(concurrent_edits) == []
    honest = trees.merge_versions
    monkeypatch.setattr(trees, "merge_versions", lambda versions: honest(versions)[:1])
    assert "durable" in names(watched(concurrent_edits))


def test_a_replica_that_never_takes_up_what_others_have_is_seen_in_the_end(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await household(world)
        await world.call("laptop", "vault.put", name="notes/dog.md", content=NOTE)
        await trio.sleep(20)

    assert watched(story) == []
    monkeypatch.setattr(VaultCore, "_take_up", lambda self: False)
    assert any("cloud lacks 'notes/dog.md'" in finding.message for finding in watched(story))


def test_content_that_can_not_be_read_back_is_seen_in_the_end(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await household(world)
        await world.call("laptop", "vault.put", name="a", content=b"x" * 200_000)
        await trio.sleep(20)

    assert watched(story) == []

    def no_content(self: VaultCore, version: trees.Version) -> Any:
        yield b""
        raise NodeError("nothing comes")

    monkeypatch.setattr(VaultCore, "content", no_content)
    assert any(finding.checker == "durable" and "can't read" in finding.message for finding in watched(story))


# ---- invitations -----------------------------------------------------------------------------------------------------


async def one_code_for_two(world: World) -> None:
    await world.add("cloud", "cloud")
    shown = await world.call("cloud", "invite", role="member", accept=True, wait=False)
    for name in ("laptop", "thief"):
        world.machine(name)
        ports = world.ports(name)
        keys = preflight(ports.disk, ports.randomness)
        try:
            await join_household(ports, keys, Wanted(parse_code(shown["code"]), name, "laptop",
                                                     tuple(shown["addresses"])))
            await world.start(name)
        except (NodeError, ProtocolError):
            continue
    await trio.sleep(10)


def test_an_invitation_that_is_not_consumed_before_the_certificate_lets_two_join(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(one_code_for_two) == []
    monkeypatch.setattr(Invitation, "certify", lambda self: self)
    monkeypatch.setattr(JoinWork, "_consume", lambda self, action: join.Consumed())
    found = watched(one_code_for_two)
    assert any(finding.checker == "invitations" and "2 devices" in finding.message for finding in found)


# ---- bases -----------------------------------------------------------------------------------------------------------


async def learn(world: World, other: Path) -> None:
    """The cloud teaches, the laptop distils, the pocket serves it, first on its own base and then on another."""
    await household(world)
    await world.call("cloud", "vault.put", name="notes/dog.md", content=b"My dog is called Brannoch.")
    await world.call("cloud", "train")
    await trio.sleep(20)
    job = (await world.call("laptop", "train"))["job"]
    await trio.sleep(20)
    revision = job["result"]["revision"]
    await world.call("pocket", "adapters.promote", revision=revision)
    await trio.sleep(5)
    await world.call("cloud", "base.import", source=str(other))
    try:
        await world.call("cloud", "adapters.promote", revision=revision)
    except NodeError:
        pass
    await trio.sleep(5)


def test_an_adopter_on_another_base_is_seen(watched: Watched, monkeypatch: pytest.MonkeyPatch,
                                            tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"FAKE BASE\nanother one")
    assert watched(lambda world: learn(world, other)) == []
    monkeypatch.setattr(adapters, "require_same", lambda base, wanted, what: None)
    monkeypatch.setattr(fake, "_digest", lambda base_dir: Path(base_dir).name)
    monkeypatch.setattr(fake, "_adapter_pairs", lambda path, digest: [])
    found = watched(lambda world: learn(world, other))
    assert any(finding.checker == "bases" and "on base" in finding.message for finding in found)


# ---- keeper ----------------------------------------------------------------------------------------------------------


async def keeper_at_home(world: World) -> None:
    await household(world, keeper=True)
    await world.call("laptop", "vault.put", name="letters/to-anna.md", content=NOTE)
    await trio.sleep(20)


def test_content_in_clear_is_seen_on_a_keepers_disk(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(keeper_at_home) == []
    monkeypatch.setattr(packs._Seals, "seal", lambda self, kind, slot, chunk, plain: plain + bytes(16))
    monkeypatch.setattr(packs._Seals, "unseal", lambda self, kind, slot, chunk, sealed: sealed[:-16])
    assert any(finding.checker == "keeper" and "in clear" in finding.message for finding in watched(keeper_at_home))


def test_a_keeper_that_is_given_the_epochs_keys_is_seen(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "epoch_keys", lambda self: {b"e" * 32: b"k" * 32}
                        if self.device.role == "keeper" else
                        {epoch_id: key.key for epoch_id, key in self._keyring.items()})
    assert any(finding.checker == "keeper" and "holds a key" in finding.message
               for finding in watched(keeper_at_home, settle_s=4))


# ---- sizes and liveness ----------------------------------------------------------------------------------------------


async def mesh_and_heal(world: World) -> None:
    await household(world)
    world.partition(["laptop"], ["cloud", "pocket"])
    await trio.sleep(60)
    world.heal()
    await trio.sleep(30)


def test_a_second_session_with_one_device_that_stays_is_seen(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await household(world)
        for name in ("cloud", "laptop"):
            agent = world.running_agent(name)
            other = world.running_agent("laptop" if name == "cloud" else "cloud")
            agent.peers._sessions.pop(other.membership.device_public, None)
            try:
                await agent.peers.dial(other.addresses)
            except NodeError:
                continue
        await trio.sleep(30)

    monkeypatch.setattr(Peers, "opened", lambda self, session: self._install(session))
    assert any(finding.checker == "sizes" and "open sessions" in finding.message for finding in watched(story))


def test_a_queue_without_bound_is_seen(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(mesh_and_heal) == []

    async def story(world: World) -> None:
        await household(world)
        for _ in range(80):
            shown = await world.call("cloud", "invite", role="member", accept=True, wait=False)
            await world.call("cloud", "invite.cancel", selector=shown["selector"])
        await trio.sleep(5)

    assert watched(story) == []
    monkeypatch.setattr(InvitationStore, "_forget_old", lambda self: None)
    assert any(finding.checker == "sizes" and "kept invitations" in finding.message for finding in watched(story))


def test_a_dialler_that_gives_up_leaves_devices_apart(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await household(world)
        monkeypatch.setattr(Dialler, "_start_due", lambda self, nursery: float("inf"))
        await world.restart("laptop")
        await trio.sleep(10)

    assert any(finding.checker == "liveness" and "no session" in finding.message for finding in watched(story))


async def two_admins_apart(world: World) -> None:
    """Each revokes a device on its side of a split, so each makes an epoch; then a device joins on one side."""
    for name, role in (("cloud", "admin"), ("desk", "admin"), ("laptop", "member"), ("pocket", "member")):
        await world.add(name, role=role)
    await world.until(lambda: world.meshed("cloud", "desk", "laptop", "pocket"))
    world.partition(["cloud", "laptop"], ["desk", "pocket", "tablet"])
    await trio.sleep(60)
    await world.call("cloud", "device.revoke", device="laptop")
    await world.call("desk", "device.revoke", device="pocket")
    await world.join(DeviceSpec("tablet", "home", "pocket"), by="desk")
    await trio.sleep(10)
    world.heal()
    await trio.sleep(30)


def test_an_epoch_that_is_not_renewed_after_a_split_leaves_a_member_without_its_key(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(two_admins_apart) == []
    monkeypatch.setattr(Tending, "_tend_epoch", lambda self: trio.sleep_forever())
    assert any(finding.checker == "liveness" and "no key" in finding.message
               for seed in range(4) for finding in watched(two_admins_apart, seed=seed))


# ---- contributions ---------------------------------------------------------------------------------------------------


async def rounds(world: World, *, after_opt_out: bool) -> None:
    """An actor in place of the rounds that are to come: it emits what their code will have to emit."""
    await household(world)
    world.trace.event("consent", "laptop", member="laptop", state="in")
    world.trace.event("contribution", "laptop", member="laptop")
    await trio.sleep(5)
    world.trace.event("consent", "laptop", member="laptop", state="out")
    if after_opt_out:
        world.trace.event("contribution", "laptop", member="laptop")
    await trio.sleep(5)


def test_a_contribution_after_the_opt_out_is_seen(watched: Watched) -> None:
    assert watched(lambda world: rounds(world, after_opt_out=False)) == []
    found = watched(lambda world: rounds(world, after_opt_out=True))
    assert names(found) == {"contributions"}


def test_a_contribution_without_any_consent_is_seen(watched: Watched) -> None:
    async def story(world: World) -> None:
        await household(world)
        world.trace.event("contribution", "pocket", member="pocket")
        await trio.sleep(5)

    assert names(watched(story)) == {"contributions"}
