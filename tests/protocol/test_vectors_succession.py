"""The vectors of `3-succession.json`: new certificates, a new root, a checkpoint, consents and bases.

Our builders make the same bytes again from the seeds, and a reader comes to what the file says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hinet_protocol.chain import (
    Chain,
    entry_hash,
    make_base_adopt,
    make_checkpoint,
    make_consent,
    make_device_add,
    make_device_revoke,
    make_device_rotate,
    make_epoch,
    make_genesis,
    make_root_rotate,
    needs_epoch,
    open_keyring,
    parse_entry,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.identity import DeviceKeys, RootKey, Signer, root_commitment

FILE = Path(__file__).parents[2] / "protocol" / "vectors" / "3-succession.json"
ROOTS = [RootKey(bytes([16 * number + at for at in range(16)]) * 2) for number in (1, 2, 3)]
NAMES = ("anna", "bert", "bert again", "carl", "eve")
SEEDS = {name: DeviceKeys(bytes([number]) * 32, bytes([number + 100]) * 32) for number, name in enumerate(NAMES, 1)}
COMMUNE, TERMS, BASE, FIRST_BASE = (bytes([number]) * 32 for number in (0xC0, 0x7E, 0xB1, 0xB0))


class Story:
    """The chain of the vectors, grown by our builders; `names` are what the file calls its entries."""

    def __init__(self) -> None:
        self.chain = Chain.from_entries([make_genesis(ROOTS[0], 1, ROOTS[1].public)])
        self.names = {self.chain.genesis.hash: "genesis"}
        self.time_s = 1

    def take(self, name: str, raw: bytes) -> None:
        merged = self.chain.merge([raw])
        assert not merged.rejected, (name, merged.rejected)
        self.chain = merged.chain
        self.names[entry_hash(raw)] = name

    def tick(self) -> int:
        self.time_s += 1
        return self.time_s

    def add(self, name: str, signer: Signer, role: str) -> bytes:
        keys = SEEDS[name]
        return make_device_add(self.chain, signer, name=name, public=keys.public, box_public=keys.box_public, role=role,
                               tier="laptop", time_s=self.tick(), expires_s=1_000, ephemeral_seed=bytes([9]) * 32,
                               keyring=open_keyring(self.chain, SEEDS["anna"]))

    def epoch(self, number: int) -> bytes:
        return make_epoch(self.chain, SEEDS["anna"], key=bytes([0x30 + number]) * 32, time_s=self.tick(),
                          ephemeral_seed=bytes([0x50 + number]) * 32, keyring=open_keyring(self.chain, SEEDS["anna"]))

    def consent(self, name: str, agreed: bool, round_number: int) -> bytes:
        return make_consent(self.chain, SEEDS[name], commune=COMMUNE, terms=TERMS, agreed=agreed,
                            round_number=round_number, time_s=self.tick(), expires_s=900 if agreed else 0)


def told() -> Story:
    story = Story()
    anna, bert, again = (SEEDS[name] for name in ("anna", "bert", "bert again"))
    story.take("anna's certificate", story.add("anna", ROOTS[0], "admin"))
    story.take("first epoch", story.epoch(1))
    story.take("bert's certificate", story.add("bert", anna, "member"))
    story.take("bert's renewal", make_device_rotate(story.chain, anna, bert.public, time_s=story.tick(),
                                                    expires_s=2_000, name="bertram"))
    story.take("anna's own renewal", make_device_rotate(story.chain, anna, anna.public, time_s=story.tick(),
                                                        expires_s=3_000))
    fork = story.chain
    story.take("bert's new keys", make_device_rotate(
        story.chain, anna, bert.public, time_s=story.tick(), expires_s=2_500, new_public=again.public,
        new_box_public=again.box_public, keyring=open_keyring(story.chain, anna), ephemeral_seed=bytes([8]) * 32))
    story.take("second epoch", story.epoch(2))
    story.take("consent", story.consent("anna", True, 3))
    story.take("withdrawal", story.consent("bert again", False, 4))
    story.take("consent again", story.consent("anna", True, 5))
    story.take("first base", make_base_adopt(story.chain, anna, base=FIRST_BASE, time_s=story.tick()))
    story.take("base of a round", make_base_adopt(story.chain, anna, base=BASE, previous=FIRST_BASE, commune=COMMUNE,
                                                  round_number=6, time_s=story.tick()))
    story.take("checkpoint", make_checkpoint(story.chain, ROOTS[0], time_s=story.tick(), note="all is well"))
    story.take("new root", make_root_rotate(story.chain, ROOTS[1], time_s=story.tick(),
                                            next_root_public=ROOTS[2].public))
    story.take("epoch for the new root", story.epoch(3))
    late = Story()
    late.chain, late.time_s = fork, 100
    story.take("admin by the old root", raw := late.add("eve", ROOTS[0], "admin"))
    late.take("", raw)
    story.take("revocation by that admin", make_device_revoke(late.chain, SEEDS["eve"], anna.public, time_s=200))
    story.take("late certificate by anna", sign_entry(anna, fork.identity_id, fork.heads, "device.add", {
        "name": "carl", "sign": SEEDS["carl"].public, "box": SEEDS["carl"].box_public, "role": "keeper",
        "tier": "pocket", "expires": 0, "ephemeral": None, "epochs": []}, 300))
    return story


def refused(chain: Chain) -> dict[str, bytes]:
    """Entries on top of the chain that nobody may take."""
    anna, again, carl = (SEEDS[name] for name in ("anna", "bert again", "carl"))
    device = {"name": "x", "sign": again.public, "box": again.box_public, "expires": 9, "ephemeral": None, "epochs": [],
              "device": again.public}
    fresh = {**device, "sign": carl.box_public, "box": SEEDS["eve"].sign_seed}
    consent = {"commune": COMMUNE, "terms": TERMS, "decision": "in", "round": 7, "expires": 0}
    root = {"root": ROOTS[2].public, "box": ROOTS[2].box_public, "next": None}
    rows: list[tuple[str, Signer, str, dict[str, Any]]] = [
        ("a member renews", again, "device.rotate", device),
        ("a renewal with another box", anna, "device.rotate", {**device, "box": fresh["box"]}),
        ("a renewal of a removed key", anna, "device.rotate", {**device, "device": SEEDS["bert"].public,
                                                               "sign": SEEDS["bert"].public,
                                                               "box": SEEDS["bert"].box_public}),
        ("new keys that were used before", anna, "device.rotate", {**fresh, "sign": SEEDS["bert"].public}),
        ("new keys that were the root's", anna, "device.rotate", {**fresh, "sign": ROOTS[0].public}),
        ("the old root after its successor", ROOTS[0], "checkpoint", {"note": ""}),
        ("a checkpoint by an admin", anna, "checkpoint", {"note": ""}),
        ("a root that nobody promised", RootKey(bytes(32)), "root.rotate",
         {**root, "root": RootKey(bytes(32)).public}),
        ("a root that does not sign itself", ROOTS[1], "root.rotate", root),
        ("a consent by a member", again, "consent", consent),
        ("a withdrawal that expires", again, "consent", {**consent, "decision": "out", "expires": 9}),
        ("a base by a member", again, "base.adopt", {"base": BASE, "previous": None, "commune": None, "round": 0}),
        ("an epoch for the old root", anna, "epoch.new",
         {"ephemeral": again.box_public, "check": bytes(32), "wraps": [[ROOTS[0].public, bytes(48)]], "previous": []}),
    ]
    return {why: sign_entry(signer, chain.identity_id, chain.heads, kind, body, 1) for why, signer, kind, body in rows}


def vectors() -> dict[str, Any]:
    story = told()
    chain = story.chain
    standing = chain.standing_entries()
    rings = {name: open_keyring(chain, keys) for name, keys in SEEDS.items()}
    rings |= {f"root {number}": open_keyring(chain, root) for number, root in enumerate(ROOTS)}
    return {
        "section": "3",
        "root_seeds": [root.seed.hex() for root in ROOTS],
        "device_seeds": {name: {"sign_seed": keys.sign_seed.hex(), "box_seed": keys.box_seed.hex()}
                         for name, keys in SEEDS.items()},
        "entries": [{"name": story.names[entry.hash], "kind": entry.kind, "hash": entry.hash.hex(),
                     "height": chain.height_of(entry.hash), "stands": entry.hash in standing, "raw": entry.raw.hex()}
                    for entry in chain.entries()],
        "root": chain.root_public.hex(),
        "next_root_commitment": root_commitment(ROOTS[2].public).hex(),
        "devices": [{"name": one.name, "public": one.public.hex(), "role": one.role, "tier": one.tier,
                     "expires": one.expires_s, "live": one.live, "revoked": one.revoked, "void": one.void,
                     "certificate": one.entry.hex(), "replaced_by": one.replaced_by and one.replaced_by.hex()}
                    for one in chain.devices()],
        "current_epoch": chain.current_epoch and chain.current_epoch.epoch_id.hex(),
        "opened_by": {name: sorted(epoch.hex() for epoch in ring) for name, ring in rings.items()},
        "consents": [{"commune": one.commune.hex(), "agreed": one.agreed, "round": one.round, "expires": one.expires_s,
                      "entry": one.entry.hex()} for one in chain.consents()],
        "bases": [{"commune": one.commune and one.commune.hex(), "base": one.base.hex(), "entry": one.entry.hex()}
                  for one in chain.bases()],
        "checkpoints": [entry.hash.hex() for entry in chain.checkpoints()],
        "refused": [{"why": why, "code": chain.merge([raw]).rejected[0].error.code, "raw": raw.hex()}
                    for why, raw in refused(chain).items()],
    }


def test_the_succession_of_the_vectors_is_what_our_builders_make() -> None:
    assert json.loads(FILE.read_text()) == vectors()


def test_the_story_of_the_vectors_is_the_one_that_was_meant() -> None:
    """What the file says was written by our own code; this says what it ought to be."""
    story = told()
    chain, anna, again = story.chain, SEEDS["anna"], SEEDS["bert again"]
    aside = {name for key, name in story.names.items() if key not in chain.standing_entries()}
    assert aside == {"admin by the old root", "revocation by that admin", "late certificate by anna"}
    assert [(one.name, one.expires_s) for one in chain.members()] == [("anna", 3_000), ("bertram", 2_500)]
    assert chain.device(SEEDS["bert"].public).replaced_by == again.public
    assert chain.root_public == ROOTS[1].public
    assert chain.identity_id == ROOTS[0].identity_id
    assert len(open_keyring(chain, ROOTS[1])) == len(open_keyring(chain, anna)) == len(open_keyring(chain, again)) == 3
    assert len(open_keyring(chain, ROOTS[0])) == 2
    assert not needs_epoch(chain, open_keyring(chain, anna))
    (consent,) = chain.consents()
    assert (consent.agreed, consent.round) == (True, 5)
    assert {one.commune: one.base for one in chain.bases()} == {None: FIRST_BASE, COMMUNE: BASE}


@pytest.mark.parametrize("one", json.loads(FILE.read_text())["refused"],
                         ids=lambda one: one["why"])
def test_refused_successions_have_the_code_of_the_vectors(one: dict[str, str]) -> None:
    chain = Chain.from_entries([bytes.fromhex(entry["raw"]) for entry in json.loads(FILE.read_text())["entries"]])
    assert parse_entry(bytes.fromhex(one["raw"])).kind  # its form is right, its place is wrong
    (rejected,) = chain.merge([bytes.fromhex(one["raw"])]).rejected
    assert rejected.error.code == one["code"]
