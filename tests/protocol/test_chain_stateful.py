"""A household of four replicas under any order of acts: additions, removals, races, forks, new certificates and roots,
checkpoints, crashes, replays, and thieves with old keys. What must hold is said after each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hinet_protocol.chain import (
    Chain,
    make_base_adopt,
    make_checkpoint,
    make_consent,
    make_device_add,
    make_device_revoke,
    make_device_rotate,
    make_epoch,
    make_genesis,
    make_root_rotate,
    open_keyring,
)
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys, RootKey, Signer

REPLICAS = 4
ROOTS = [RootKey(bytes([65 + number]) * 32) for number in range(4)]
COMMUNE = b"c" * 32
replicas = st.integers(0, REPLICAS - 1)
picks = st.integers(0, 30)
# Clocks are skewed as they like: nothing in a chain may depend on them.
times = st.sampled_from([0, 7, 1_800_000_000, 2**62])


def said(chain: Chain) -> tuple[Any, ...]:
    """Everything that a chain says."""
    return (chain.heads, chain.height, chain.raws(), chain.root_public, chain.root_box_public, chain.root_promise,
            chain.devices(), chain.epochs(), chain.epoch_tips, chain.current_epoch, chain.consents(), chain.bases(),
            chain.checkpoints(), chain.root_rotations(), chain.standing_entries())


def members(chain: Chain) -> dict[bytes, str]:
    return {device.public: device.role for device in chain.members()}


class Household(RuleBasedStateMachine):
    """`keys` are all that were ever made; `chains` is what each replica holds."""

    @initialize()
    def found(self) -> None:
        self.keys: dict[bytes, DeviceKeys] = {}
        chain = Chain.from_entries([make_genesis(ROOTS[0], 1, ROOTS[1].public)])
        first: Signer = ROOTS[0]
        for role in ("admin", "admin", "member"):
            chain = chain.with_entries([self.certificate(chain, first, role, 1)])
            first = next(iter(self.keys.values()))
        self.chains = [chain] * REPLICAS
        self.serial = 0

    # --- what the rules are made of ----------------------------------------------------------------------------------

    def new_keys(self) -> DeviceKeys:
        keys = DeviceKeys.from_entropy(blake3(b"stateful %d" % len(self.keys)).digest(64))
        self.keys[keys.public] = keys
        return keys

    def certificate(self, chain: Chain, signer: Signer, role: str, time_s: int) -> bytes:
        keys = self.new_keys()
        return make_device_add(chain, signer, name=f"d{len(self.keys)}", public=keys.public, tier="laptop", role=role,
                               box_public=keys.box_public, time_s=time_s)

    def root(self, chain: Chain) -> RootKey:
        return next(root for root in ROOTS if root.public == chain.root_public)

    def signer(self, chain: Chain, pick: int) -> Signer:
        able: list[Signer] = [self.keys[one.public] for one in chain.members() if one.role == "admin"]
        return able[pick % len(able)] if able and pick % 5 else self.root(chain)

    def target(self, chain: Chain, pick: int) -> bytes:
        known = chain.members() or chain.devices()
        return known[pick % len(known)].public

    def take(self, replica: int, raws: Iterable[bytes]) -> None:
        """Entries reach a replica. A key that was removed there stays so, whatever comes, except by what SPEC 3.4
        names: the root closed the place where the removal was made, or the key had itself removed the remover."""
        before = self.chains[replica]
        merged = before.merge(raws)
        after = self.chains[replica] = merged.chain
        closed = any(entry.kind in ("root.rotate", "checkpoint")
                     for name in merged.added if (entry := after.entry(name)) is not None)
        for device in before.devices():
            if device.revoked and after.is_member(device.public) and not closed:
                own = [entry for entry in after.entries() if entry.signer == device.public and entry.removes]
                assert own, "a removed key is live again"

    def say(self, replica: int, make: Any, *args: Any, **more: Any) -> None:
        """An act that its maker may be refused; what was made is valid where it was made."""
        try:
            raw = make(self.chains[replica], *args, **more)
        except ProtocolError:
            return
        self.take(replica, [raw])
        assert raw in self.chains[replica].raws()

    def past(self, chain: Chain, name: bytes) -> Chain:
        """The chain as it was when the entry of this hash had just been made."""
        return Chain.from_entries(entry.raw for entry in chain.entries() if chain.in_past(entry.hash, (name,)))

    # --- honest acts -------------------------------------------------------------------------------------------------

    @rule(replica=replicas, pick=picks, role=st.sampled_from(["admin", "admin", "member", "keeper"]), time_s=times)
    def add(self, replica: int, pick: int, role: str, time_s: int) -> None:
        chain = self.chains[replica]
        self.take(replica, [self.certificate(chain, self.signer(chain, pick), role, time_s)])

    @rule(replica=replicas, pick=picks, victim=picks, time_s=times)
    def revoke(self, replica: int, pick: int, victim: int, time_s: int) -> None:
        chain = self.chains[replica]
        self.say(replica, make_device_revoke, self.signer(chain, pick), self.target(chain, victim), time_s=time_s)

    @rule(pick=picks, one=picks, other=picks)
    def race(self, pick: int, one: int, other: int) -> None:
        """All replicas act at once: two remove, two add."""
        for replica in range(REPLICAS):
            if replica < 2:
                self.revoke(replica, pick + replica, (one, other)[replica], 7)
            else:
                self.add(replica, pick + replica, "admin", 7)

    @rule(replica=replicas, pick=picks, victim=picks, time_s=times, fresh=st.booleans())
    def renew(self, replica: int, pick: int, victim: int, time_s: int, fresh: bool) -> None:
        chain = self.chains[replica]
        public, more = self.target(chain, victim), {}
        if fresh:
            keys = self.new_keys()
            more = {"new_public": keys.public, "new_box_public": keys.box_public}
        self.say(replica, make_device_rotate, self.signer(chain, pick), public, time_s=time_s, expires_s=time_s + 5,
                 **more)

    @rule(replica=replicas, pick=picks)
    def epoch(self, replica: int, pick: int) -> None:
        chain = self.chains[replica]
        signer, self.serial = self.signer(chain, pick), self.serial + 1
        seed = blake3(b"epoch %d" % self.serial).digest(64)
        assert isinstance(signer, RootKey | DeviceKeys)
        self.say(replica, make_epoch, signer, key=seed[:32], ephemeral_seed=seed[32:], time_s=1,
                 keyring=open_keyring(chain, signer))

    @rule(replica=replicas, pick=picks, agreed=st.booleans())
    def consent(self, replica: int, pick: int, agreed: bool) -> None:
        signer = self.keys[self.target(self.chains[replica], pick)]
        self.say(replica, make_consent, signer, commune=COMMUNE, terms=bytes(32), agreed=agreed, round_number=1,
                 time_s=1)
        self.say(replica, make_base_adopt, signer, base=bytes(32), time_s=1)

    @rule(replica=replicas)
    def rotate_root(self, replica: int) -> None:
        at = ROOTS.index(self.root(self.chains[replica])) + 1
        if at < len(ROOTS):
            following = ROOTS[at + 1].public if at + 1 < len(ROOTS) else None
            self.say(replica, make_root_rotate, ROOTS[at], time_s=1, next_root_public=following)

    @rule(replica=replicas)
    def checkpoint(self, replica: int) -> None:
        self.say(replica, make_checkpoint, self.root(self.chains[replica]), time_s=1)

    # --- how news travel ---------------------------------------------------------------------------------------------

    @rule(here=replicas, there=replicas)
    def sync(self, here: int, there: int) -> None:
        self.take(here, self.chains[there].raws())

    @rule(here=replicas, there=replicas, bytes_max=st.integers(1, 3_000))
    def pull_a_batch(self, here: int, there: int, bytes_max: int) -> None:
        raws, _ = self.chains[there].entries_for(self.chains[here].locator(), bytes_max)
        self.take(here, reversed(raws))

    @rule(replica=replicas)
    def crash(self, replica: int) -> None:
        """Memory is lost, the file is read anew."""
        chain = self.chains[replica]
        self.chains[replica] = Chain.from_bytes(chain.to_bytes(), chain.identity_id)
        assert said(self.chains[replica]) == said(chain)

    @rule(here=replicas, there=replicas, pick=picks)
    def replay(self, here: int, there: int, pick: int) -> None:
        """Entries that were taken long ago, and the beginning of another replica's, come once more."""
        chain = self.chains[here]
        assert chain.with_entries(chain.raws()[: pick + 1]) is chain
        self.take(here, [*self.chains[there].raws()[:pick], *chain.raws()])

    # --- thieves -----------------------------------------------------------------------------------------------------

    @rule(replica=replicas, pick=picks, role=st.sampled_from(["admin", "member"]))
    def a_key_without_the_right_signs(self, replica: int, pick: int, role: str) -> None:
        chain = self.chains[replica]
        others = [keys for public, keys in self.keys.items() if chain.role_of(public) != "admin"]
        others += [root for root in ROOTS if root.public != chain.root_public]
        if not others:
            return
        signer = others[pick % len(others)]
        victims = [device.public for device in chain.devices() if device.public != signer.public]  # all may leave
        acts = [
            lambda: self.certificate(chain, signer, role, 1),
            lambda: make_checkpoint(chain, signer, time_s=1),
            lambda: make_device_rotate(chain, signer, self.target(chain, pick), time_s=1, expires_s=0),
            lambda: make_base_adopt(chain, signer, base=bytes(32), time_s=1),
            lambda: make_device_revoke(chain, signer, victims[pick % len(victims)], time_s=1),
        ]
        for act in acts:
            with pytest.raises(ProtocolError):
                act()

    @rule(replica=replicas, thief=picks, place=picks, victim=picks)
    def a_removed_admin_key_acts_on_an_old_height(self, replica: int, thief: int, place: int, victim: int) -> None:
        chain = self.chains[replica]
        gone = [device for device in chain.devices() if device.revoked and device.role == "admin"]
        if not gone:
            return
        keys = self.keys[gone[thief % len(gone)].public]
        entries = [entry for entry in chain.entries() if entry.removes != keys.public]
        old = self.past(chain, entries[place % len(entries)].hash)
        if old.role_of(keys.public) != "admin":
            return
        raws = [self.certificate(old, keys, "admin", 1)]
        helper = self.keys[list(self.keys)[-1]]
        closed = any(
            not chain.in_past(point.hash, old.heads)
            and self.past(chain, point.hash).role_of(keys.public) != "admin"
            for point in chain.checkpoints()
        )
        self.take(replica, raws)
        assert not self.chains[replica].is_member(helper.public)
        assert members(self.chains[replica]) == members(chain)
        if closed:
            grown = old.with_entries(raws)
            for make, signer in ((make_device_revoke, keys), (make_device_revoke, helper)):
                try:
                    raws.append(make(grown, signer, self.target(old, victim), time_s=1))
                except ProtocolError:
                    continue
            self.take(replica, raws)
            assert members(self.chains[replica]) == members(chain), "something was inserted below a checkpoint"

    @precondition(lambda self: any(chain.root_rotations() for chain in self.chains))
    @rule(replica=replicas, victim=picks)
    def an_old_root_acts_where_it_was_in_force(self, replica: int, victim: int) -> None:
        chain = self.chains[replica]
        if not chain.root_rotations():
            return
        taken_over = chain.root_rotations()[0]
        old = Chain.from_entries(entry.raw for entry in chain.entries()
                                 if entry.hash != taken_over.hash and chain.in_past(entry.hash, (taken_over.hash,)))
        root = self.root(old)
        raws = [self.certificate(old, root, "admin", 1), make_checkpoint(old, root, time_s=1)]
        helper, grown = self.keys[list(self.keys)[-1]], old.with_entries(raws)
        for signer in (root, helper):
            try:
                raws.append(make_device_revoke(grown, signer, self.target(old, victim), time_s=1))
            except ProtocolError:
                continue
        before = said(chain)
        self.take(replica, raws)
        after = self.chains[replica]
        assert members(after) == members(chain)
        assert after.root_public == before[3]
        assert after.checkpoints() == chain.checkpoints()

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def replicas_with_the_same_entries_say_the_same(self) -> None:
        seen: dict[tuple[bytes, ...], Chain] = {}
        for chain in getattr(self, "chains", ()):
            other = seen.setdefault(chain.heads, chain)
            assert other is chain or said(other) == said(chain)

    @invariant()
    def everybody_who_belongs_was_let_in_by_the_root_or_an_admin_that_counts(self) -> None:
        for chain in {id(chain): chain for chain in getattr(self, "chains", ())}.values():
            roots = {chain.genesis.signer, *(entry.signer for entry in chain.root_rotations())}
            for device in chain.members():
                at, steps = device, 0
                while at.added_by not in roots:
                    adder = chain.device(at.added_by)
                    assert adder is not None
                    assert not adder.void
                    assert steps < len(chain.devices())
                    at, steps = adder, steps + 1

    def teardown(self) -> None:
        """In the end all hear all, each in its own order."""
        raws = [raw for chain in getattr(self, "chains", ()) for raw in chain.raws()]
        for replica in range(REPLICAS if raws else 0):
            self.take(replica, raws[replica * 7 :] + raws[: replica * 7])
        if raws:
            assert all(said(chain) == said(self.chains[0]) for chain in self.chains)


TestHousehold = Household.TestCase
TestHousehold.settings = settings(max_examples=120, stateful_step_count=30, deadline=None, print_blob=True)
