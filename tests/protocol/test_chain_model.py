"""SPEC.md 3.3 and 3.4 a second time, word by word and by brute force, beside the chain that devices use.

Entries are made with msgpack and PyNaCl, never with our builders. Random histories of all kinds must be judged alike,
entry by entry and as a whole.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from nacl.public import PrivateKey
from nacl.signing import SigningKey

from hinet_protocol.chain import Chain
from hinet_protocol.chain.members import members_settled

Entry = dict[str, Any]
COMMUNES = (b"c" * 32, b"d" * 32)


def name_of(raw: bytes) -> bytes:
    return blake3(raw).digest()


def packed(value: Any) -> bytes:
    return msgpack.packb(in_order(value), use_bin_type=True)


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value, key=str.encode)}
    return [in_order(item) for item in value] if isinstance(value, list | tuple) else value


class Key:
    def __init__(self, label: str, seed: bytes | None = None) -> None:
        self.label = label
        self.signing = SigningKey(seed or name_of(b"sign " + label.encode()))
        self.public = bytes(self.signing.verify_key)
        self.box = bytes(PrivateKey(name_of(b"box " + label.encode())).public_key)


def root_key(label: str) -> Key:
    extracted = hmac.new(bytes(32), name_of(label.encode()), hashlib.sha256).digest()
    return Key(label, hmac.new(extracted, b"hinet/1/root/sign\1", hashlib.sha256).digest())


def promise(key: Key) -> bytes:
    return blake3(b"hinet/1/next-root\0" + key.public).digest()


ROOTS = [root_key(f"root {number}") for number in range(3)]
KEYS = [Key(f"key {number}") for number in range(7)]
IDENTITY = name_of(ROOTS[0].public)


def entry(signer: Key, parents: Iterable[bytes], kind: str, body: Entry, time_s: int = 1) -> bytes:
    payload = packed({"v": 1, "id": IDENTITY, "parents": sorted(name_of(raw) for raw in parents),
                      "signer": signer.public, "time": time_s, "kind": kind, "body": body})
    return packed([payload, signer.signing.sign(b"hinet-sign-v1\0\x0bchain-entry" + payload).signature])


def certificate(key: Key, name: str | None = None, expires: int = 0) -> Entry:
    return {"name": name or key.label, "sign": key.public, "box": key.box, "expires": expires, "ephemeral": None,
            "epochs": []}


GENESIS = entry(ROOTS[0], [], "genesis", {"root": ROOTS[0].public, "box": ROOTS[0].box, "next": promise(ROOTS[1])})


def follows(later: Entry, earlier: Entry) -> bool:
    return later["name"] == earlier["name"] or earlier["name"] in later["past"]


def apart(one: Entry, other: Entry) -> bool:
    return not follows(one, other) and not follows(other, one)


def place(one: Entry) -> tuple[int, bytes]:
    return one["height"], one["name"]


def certifies(one: Entry) -> bytes | None:
    return one["body"]["sign"] if one["kind"] in ("device.add", "device.rotate") else None


def renews(one: Entry) -> bool:
    return one["kind"] == "device.rotate" and one["body"]["sign"] == one["body"]["device"]


def introduces(one: Entry) -> bool:
    return certifies(one) is not None and not renews(one)


def removes(one: Entry) -> bytes | None:
    removal = one["kind"] == "device.revoke" or (one["kind"] == "device.rotate" and not renews(one))
    return one["body"]["device"] if removal else None


def withdraws(one: Entry) -> bool:
    return one["kind"] == "consent" and one["body"]["decision"] == "out"


def last_of(entries: Sequence[Entry]) -> list[Entry]:
    return [one for one in entries if not any(one["name"] in other["past"] for other in entries)]


class Model:
    """All valid entries, judged one after the other."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.settled: dict[frozenset[bytes], Settled] = {}

    def settle(self, names: Iterable[bytes]) -> Settled:
        wanted = frozenset(names)
        if wanted not in self.settled:
            self.settled[wanted] = Settled(self, [self.entries[name] for name in sorted(wanted)])
        return self.settled[wanted]

    def take(self, raw: bytes) -> bool:
        new: Entry = msgpack.unpackb(msgpack.unpackb(raw)[0])
        past: set[bytes] = set()
        for parent in new["parents"]:
            past |= {parent} | self.entries[parent]["past"]
        height = 1 + max((self.entries[parent]["height"] for parent in new["parents"]), default=-1)
        new |= {"name": name_of(raw), "past": past, "height": height, "as_root": True}
        if new["kind"] != "genesis":
            before = self.settle(past)
            new["as_root"] = new["kind"] == "root.rotate" or new["signer"] == before.root
            if not self.valid(new, before):
                return False
            new["gives"] = (new["body"].get("role"), new["body"].get("tier"))
            if new["kind"] == "device.rotate":
                new["gives"] = before.introduction(new["body"]["device"])["gives"]
        self.entries[new["name"]] = new
        return True

    def valid(self, new: Entry, before: Settled) -> bool:
        kind, body, signer = new["kind"], new["body"], new["signer"]
        may = new["as_root"] or signer in before.admins
        if kind == "root.rotate":
            known = {one["body"]["root"] for one in before.entries if one["kind"] in ("genesis", "root.rotate")}
            promised = blake3(b"hinet/1/next-root\0" + body["root"]).digest() == before.line[-1]["body"]["next"]
            return promised and signer == body["root"] and signer not in known and signer not in before.certificates
        if kind == "checkpoint":
            return bool(new["as_root"])
        if withdraws(new):
            return new["as_root"] or (signer in before.live and before.role(signer) in ("admin", "member"))
        if kind == "device.revoke":
            target = body["device"]
            leaves = signer == target and target in before.live
            last = before.admins == {target} and not new["as_root"]
            return (may or leaves) and target in before.certificates and not last
        if kind == "device.add":
            return may and self.fresh(new, before) and self.name_free(new, before)
        if kind == "device.rotate":
            device = body["device"]
            itself = signer == device and not new["as_root"] and before.admins != {device}
            if not may or device not in before.live or itself or not self.name_free(new, before):
                return False
            if renews(new):
                return bool(body["box"] == before.introduction(device)["body"]["box"])
            return self.fresh(new, before)
        if kind == "epoch.new":
            reads = all(key == before.root or (key in before.live and before.role(key) != "keeper")
                        for key, _ in body["wraps"])
            return may and reads and all(name in new["past"] and self.entries[name]["kind"] == "epoch.new"
                                         for name, _ in body["previous"])
        return may  # consent in, base.adopt

    def fresh(self, new: Entry, before: Settled) -> bool:
        roots = {one["body"]["root"] for one in before.entries if one["kind"] in ("genesis", "root.rotate")}
        boxes = {one["body"]["box"] for one in before.entries if introduces(one)}
        sign = new["body"]["sign"]
        return sign not in roots and sign not in before.certificates and new["body"]["box"] not in boxes

    def name_free(self, new: Entry, before: Settled) -> bool:
        device = new["body"].get("device")
        own = {one["body"]["name"].casefold() for one in before.certificates.get(device, [])}
        if new["body"]["name"].casefold() in own:
            return True
        others = [key for key in before.live if key != device]
        names = {one["body"]["name"].casefold() for key in others for one in last_of(before.certificates[key])}
        return new["body"]["name"].casefold() not in names


class Settled:
    """What stands in a set of entries that holds the past of each."""

    def __init__(self, model: Model, entries: list[Entry]) -> None:
        self.model, self.entries = model, entries
        self.certificates: dict[bytes, list[Entry]] = {}
        for one in entries:
            if (key := certifies(one)) is not None:
                self.certificates.setdefault(key, []).append(one)
        self.line = self.root_line()
        self.root = self.line[-1]["body"]["root"]
        self.checkpoints = [one for one in entries if one["kind"] == "checkpoint" and self.by_root(one)]
        self.rank = {key: min((self.grant_aside(one), *place(one)) for one in certificates if introduces(one))
                     for key, certificates in self.certificates.items()}
        self.all_removals = [one for one in entries if removes(one) is not None and not self.removal_aside(one)]
        self.removals = {key: [one for one in self.all_removals if removes(one) == key and not self.fell_to(one, key)]
                         for key in self.certificates}
        self.standing: set[bytes] = set()
        grants = [one for one in entries if certifies(one) or one["kind"] in ("epoch.new", "base.adopt")
                  or (one["kind"] == "consent" and not withdraws(one))]
        while more := [one for one in grants if one["name"] not in self.standing and self.stands(one)]:
            self.standing |= {one["name"] for one in more}
        self.live = [key for key in self.certificates
                     if not self.removals[key]
                     and any(one["name"] in self.standing for one in self.certificates[key] if introduces(one))]
        self.admins = {key for key in self.live if self.role(key) == "admin"}

    def root_line(self) -> list[Entry]:
        line = [one for one in self.entries if one["kind"] == "genesis"]
        while True:
            keys = {one["body"]["root"] for one in line}
            able = [one for one in self.entries if one["kind"] == "root.rotate" and one["body"]["root"] not in keys
                    and blake3(b"hinet/1/next-root\0" + one["body"]["root"]).digest() == line[-1]["body"]["next"]]
            if not able:
                return line
            line.append(min(able, key=place))

    def by_root(self, one: Entry) -> bool:
        for at, statement in enumerate(self.line):
            if one["as_root"] and statement["body"]["root"] == one["signer"]:
                return at + 1 == len(self.line) or one["name"] in self.line[at + 1]["past"]
        return False

    def grant_aside(self, one: Entry) -> bool:
        if one["as_root"]:
            return not self.by_root(one)
        return any(apart(one, checkpoint) for checkpoint in self.checkpoints)

    def removal_aside(self, one: Entry) -> bool:
        if one["as_root"]:
            return not self.by_root(one)
        for closing in [*self.checkpoints, *self.line[1:]]:
            there = self.model.settle(closing["past"])
            itself = one["signer"] in there.live and (removes(one) == one["signer"] or withdraws(one))
            if apart(one, closing) and one["signer"] not in there.admins and not itself:
                return True
        return False

    def fell_to(self, one: Entry, target: bytes) -> bool:
        return not one["as_root"] and one["signer"] != target and self.fell_as(one["signer"], one, target)

    def fell_as(self, key: bytes, one: Entry, target: bytes) -> bool:
        answers = [answer for answer in self.all_removals if removes(answer) == key and answer["signer"] == target]
        if self.rank[target] < self.rank[key] and any(not follows(answer, one) for answer in answers):
            return True
        held = [cert for cert in self.certificates[key] if introduces(cert) and cert["name"] in one["past"]]
        return all(self.fell_to(cert, target) or (cert["kind"] == "device.rotate"
                   and self.fell_as(cert["body"]["device"], cert, target)) for cert in held)

    def stands(self, one: Entry) -> bool:
        if self.grant_aside(one):
            return False
        if not one["as_root"]:
            signer = one["signer"]
            if not any(cert["name"] in self.standing and cert["gives"][0] == "admin" and introduces(cert)
                       for cert in self.certificates.get(signer, [])):
                return False
            if any(not follows(removal, one) for removal in self.removals[signer]):
                return False
        if one["kind"] != "device.rotate":
            return True
        device = one["body"]["device"]
        if not renews(one) and any(not follows(removal, one) for removal in self.removals[device]
                                   if removal["kind"] == "device.revoke"):
            return False
        return any(cert["name"] in self.standing and cert["gives"] == one["gives"] and cert["name"] in one["past"]
                   for cert in self.certificates[device] if introduces(cert))

    def order(self, one: Entry) -> tuple[Any, ...]:
        return (0, one["name"]) if self.by_root(one) else (1, self.rank[one["signer"]], one["name"])

    def introduction(self, key: bytes) -> Entry:
        return min((one for one in self.certificates[key] if introduces(one) and one["name"] in self.standing),
                   key=self.order)

    def role(self, key: bytes) -> str:
        return str(self.introduction(key)["gives"][0])

    def in_force(self, key: bytes) -> Entry:
        first = self.introduction(key)
        line = [one for one in self.certificates[key] if one is first or (
            renews(one) and one["name"] in self.standing and follows(one, first) and one["gives"] == first["gives"]
            and one["body"]["box"] == first["body"]["box"])]
        return min(last_of(line), key=lambda one: (-(one["body"]["expires"] or 2**64), one["name"]))

    def consent(self, commune: bytes) -> bytes | None:
        said = [one for one in self.entries if one["kind"] == "consent" and one["body"]["commune"] == commune]
        outs = [one for one in said if withdraws(one) and not self.removal_aside(one)]
        able = [one for one in said if one["name"] in self.standing and all(follows(one, out) for out in outs)]
        return min(last_of(able), key=self.order)["name"] if able else None

    def base(self) -> bytes | None:
        able = [one for one in self.entries if one["kind"] == "base.adopt" and one["name"] in self.standing]
        return min(last_of(able), key=self.order)["name"] if able else None


# --- random histories ------------------------------------------------------------------------------------------------

ACTS = {"add": 4, "revoke": 4, "leave": 1, "renew": 3, "new keys": 3, "root": 1, "checkpoint": 1, "epoch": 1, "in": 1,
        "out": 1, "base": 1}


def random_entry(dice: random.Random, model: Model, raws: Sequence[bytes], number: int) -> bytes:
    """An entry that is often valid: somebody says something, on parents anywhere."""
    recent = raws[-dice.choice([1, 2, 4, 8, 99]):]
    parents = dice.sample(recent, min(dice.choice([1, 1, 1, 2, 2, 3]), len(recent)))
    past = {name_of(raw) for raw in parents}.union(*(model.entries[name_of(raw)]["past"] for raw in parents))
    before = model.settle(past)
    root = next(key for key in ROOTS if key.public == before.root)
    admins = [key for key in KEYS if key.public in before.admins]
    signer = dice.choice(admins) if admins and dice.random() < 0.75 else dice.choice([root, *ROOTS, *KEYS])
    known = [key for key in KEYS if key.public in before.certificates] or KEYS
    fresh = [key for key in KEYS if key.public not in before.certificates] or KEYS
    live = [key for key in KEYS if key.public in before.live] or KEYS
    (act,) = dice.choices(list(ACTS), list(ACTS.values()))
    new = dice.choice(fresh if dice.random() < 0.9 else KEYS)
    name = dice.choice([new.label] * 6 + ["KEY 0", "same"])
    if act == "add":
        given = {"role": dice.choice(["admin", "admin", "admin", "member", "keeper"]), "tier": "laptop"}
        return entry(signer, parents, "device.add", {**certificate(new, name), **given}, number)
    if act in ("renew", "new keys"):
        old = dice.choice(live)
        body = {**certificate(new if act == "new keys" else old, name, dice.choice([0, 5, 9])), "device": old.public}
        return entry(signer, parents, "device.rotate", body, number)
    if act == "root":
        at = ROOTS.index(root) + 1 if dice.random() < 0.8 else dice.randrange(3)
        new_root = ROOTS[min(at, 2)]
        following = dice.choice([None, *map(promise, ROOTS)])
        return entry(new_root, parents, "root.rotate", {"root": new_root.public, "box": new_root.box,
                                                         "next": following}, number)
    if act == "checkpoint":
        return entry(root if dice.random() < 0.9 else signer, parents, "checkpoint", {"note": ""}, number)
    if act == "epoch":
        previous = [[name, bytes(48)] for name in sorted(past) if model.entries[name]["kind"] == "epoch.new"][:1]
        wraps = sorted([key.public, bytes(48)] for key in dice.sample([*known, root], min(len(known), 2)))
        body = {"ephemeral": KEYS[0].box, "check": bytes(32), "wraps": wraps, "previous": previous}
        return entry(signer, parents, "epoch.new", body, number)
    if act in ("in", "out"):
        body = {"commune": dice.choice(COMMUNES), "terms": bytes(32), "decision": act, "round": number, "expires": 0}
        return entry(dice.choice([signer, *live]), parents, "consent", body, number)
    if act == "base":
        return entry(signer, parents, "base.adopt", {"base": bytes(32), "previous": None, "commune": None,
                                                     "round": number}, number)
    key = dice.choice(known)
    body = {"device": key.public, "reason": ""}
    return entry(key if act == "leave" else signer, parents, "device.revoke", body, number)


def said_by(chain: Chain) -> dict[str, Any]:
    base = chain.base_of(None)
    return {
        "root": chain.root_public,
        "live": {one.public: (one.entry, one.role, one.expires_s) for one in chain.devices() if one.live},
        "order": [one.public for one in chain.devices()],
        "names": len({one.name.casefold() for one in chain.members()}),
        "epochs": {one.epoch_id for one in chain.epochs() if one.standing},
        "checkpoints": {one.hash for one in chain.checkpoints()},
        "consents": {one.commune: one.entry for one in chain.consents() if one.agreed},
        "base": None if base is None else base.entry,
    }


def said_by_model(model: Model) -> dict[str, Any]:
    settled = model.settle(model.entries)
    in_force = {key: settled.in_force(key) for key in settled.live}
    consents = {commune: name for commune in COMMUNES if (name := settled.consent(commune)) is not None}
    return {
        "root": settled.root,
        "live": {key: (one["name"], one["gives"][0], one["body"]["expires"]) for key, one in in_force.items()},
        "order": sorted(settled.rank, key=settled.rank.__getitem__),
        "names": len(in_force),
        "epochs": {name for name in settled.standing if model.entries[name]["kind"] == "epoch.new"},
        "checkpoints": {one["name"] for one in settled.checkpoints},
        "consents": consents,
        "base": settled.base(),
    }


@pytest.mark.parametrize("seed", [*range(40), 1147, 1219])
def test_every_history_says_what_the_text_says(seed: int) -> None:
    dice, model = random.Random(seed), Model()
    start = [{**certificate(key), "role": "admin", "tier": "laptop"} for key in KEYS[:3]]
    raws = [GENESIS, *(entry(ROOTS[0], [GENESIS], "device.add", body) for body in start)]
    assert all(model.take(raw) for raw in raws)
    chain = Chain.from_entries(raws)
    for number in range(2, 30):
        raw = random_entry(dice, model, raws, number)
        if raw in raws:
            continue
        valid, merged = model.take(raw), chain.merge([raw])
        assert valid == (not merged.rejected), (number, merged.rejected)
        raws += [raw] if valid else []
        chain = merged.chain
        for node in (chain._graph.get(name) for name in merged.added):
            assert node is not None
            assert node.members == members_settled(chain._graph, node.past), number
    assert said_by(chain) == said_by_model(model)
    dice.shuffle(raws)
    assert said_by(Chain.from_entries(raws)) == said_by_model(model)
