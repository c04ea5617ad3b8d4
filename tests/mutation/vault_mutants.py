"""Verifications of the vault: what siblings send and claim, what moves over bulk connections, what may be deleted."""

from __future__ import annotations

from mutation.mutant import FALSE, GONE, Mutant, within

_HEADSTORE = within("node/hinet_node/vault/headstore.py", "node/vault/test_hostile_member.py")
_FORKS = within("node/hinet_node/vault/headstore.py", "node/vault/test_copies.py", "node/vault/test_acceptance.py",
                "node/vault/test_twins.py")
_TWINS = within("node/hinet_node/vault/twins.py", "node/vault/test_twins.py", "node/vault/test_hostile_member.py")
_CORE = within("node/hinet_node/vault/core.py", "node/vault/test_acceptance.py", "node/vault/test_copies.py",
               "node/vault/test_hostile_member.py")
_VIEW = within("node/hinet_node/vault/view.py", "node/vault/test_hostile_member.py")
_PUBLISH = within("node/hinet_node/vault/publish.py", "node/vault/test_hostile_member.py")
_REPLICATE = within("node/hinet_node/vault/replicate.py", "node/vault/test_hostile_member.py",
                    "node/vault/test_copies.py")
_PULL = within("node/hinet_node/vault/pull.py", "node/vault/test_replicate.py")
_PULL_BULK = within("node/hinet_node/vault/pull_bulk.py", "node/vault/test_bulk.py")
_BULK = within("node/hinet_node/vault/bulk.py", "node/vault/test_bulk.py")
_TLS = within("node/hinet_node/real/transport/bulk.py", "node/real/test_bulk.py")
_WIRE = within("protocol/hinet_protocol/bulk.py", "protocol/test_bulk.py", "protocol/test_vectors_reread.py")
_RANGES = within("protocol/hinet_protocol/ranges.py", "protocol/test_ranges.py")
_PACKS = within("protocol/hinet_protocol/packs.py", "protocol/test_packs.py")
_COUNTING = within("node/hinet_node/vault/counting.py", "node/vault/test_collect.py",
                   "node/vault/test_collect_hostile.py")
_COLLECT = within("node/hinet_node/vault/collect.py", "node/vault/test_collect_hostile.py",
                  "node/vault/test_collect.py")
_RETAINING = within("node/hinet_node/vault/retaining.py", "node/vault/test_collect_hostile.py")

HEADS = [
    _HEADSTORE("absurd numbers", "number <= newest.get(device, 0) + _CLAIM_AHEAD_MAX or ", "True or "),
    _FORKS("that contradicting heads are few", "(forked and not self._crowded(head.device))", "forked"),
    _FORKS("that a device's own last head is not forgotten",
           "prev_seq is None and one.hash != head.prev and one.seq < head.seq))", "False))"),
    _FORKS("a fork of long ago", 'or (kind == "older" and len(together[head.device, head.seq]) > 1)', ""),
    _TWINS("what a number hides", "includes(one, version, read) is False", "False"),
    _CORE("that a settled newest head is told", "(own,) if own and own.device in members and own not in told else ()",
          "()"),
    _CORE("that one old head alone is told to nobody",
          "if head.seq == newest[head.device] or count[head.device, head.seq] > 1]", "if True]"),
    _CORE("that a lost pack keeps no head away", ", self.acceptance.lost())", ")"),
    _VIEW("versions that saw the future", "            _refuse_future(entries, numbers)", GONE),
    _VIEW("that a version's devices belong", "\n                   if device in devices}", "}"),
    _PUBLISH("that the devices of a vector belong", "if row[0] in devices\n", "if True\n"),
    _REPLICATE("how many packs lists name", "if names[head.device] <= packs_needed_max]", "]"),
    _REPLICATE("that a joined head is published", " or self._core.head_due():", ":"),
]

TRANSFERS = [
    _PULL("that a pack is what its name says", "if state.digest() == name:", "if True:"),
    _PULL_BULK("that a pack is what its name says, in bulk", "if state.digest() == wanted.name:", "if True:"),
    _BULK("how many bulk connections one sibling has", "self._serving[public] >= limits.bulk_connections_each_max",
          "False"),
    _BULK("that nothing comes unasked", "if not message.pulls and (session not in self._wanted or "
          "self._wanted[session]):", FALSE),
    _BULK("that a bulk connection ends with its session", "    await session.over.wait()\n",
          "    await trio.sleep_forever()\n"),
    _TLS("the pinned certificate", "if end is None or shown != end.remote_certificate:", "if end is None:"),
    _TLS("the version of TLS", "context.minimum_version = ssl.TLSVersion.TLSv1_3", GONE),
    _TLS("that a token is good for one", "        del self.expected[expected.end.token]\n        try:", "        try:"),
    _TLS("how many are expected", " or len(self.expected) >= limits.bulk_connections_max", ""),
    _WIRE("the offset of a request", "    if offset > _OFFSET_MAX:", "    if False:"),
    _WIRE("the size in an answer", "if status != HERE or not 0 < size <= pack_bytes_max:", "if status != HERE:"),
    _RANGES("order and bounds of names", "if name <= last or name < lower or (upper and name >= upper):", FALSE),
    _RANGES("the depth of parts", " or depth >= _DEPTH_MAX", ""),
    _RANGES("order and bounds of parts",
            "if number < len(parts) and (bound <= at or (upper and bound >= upper)):", FALSE),
    _RANGES("that an answer leads somewhere", "        if not progress:", "        if False:"),
    _RANGES("that answers have an end", "self._answers > limits.range_answers_max or ", ""),
    _RANGES("how many packs are listed", "if len(self.found) > limits.ranges_found_max:", FALSE),
    _PACKS("that a foreign id's epoch is told", "if not id_epoch or id_epoch == self.header.epoch_id:", FALSE),
    _PACKS("that a foreign epoch is there for a chunk",
           "if id_epoch and not any(slot.id_epoch for slot in slots):", FALSE),
]

COLLECTING = [
    _COUNTING("the newest sets", "not any(pack in packs for packs in self.newest.values()) and all(", "all("),
    _COUNTING("the sets before", "packs is not None and pack not in packs for packs in", "True for packs in"),
    _COLLECT("the age", "elif ages[name] < age_s and not waive_age:", "elif False:"),
    _COLLECT("the last copy", "elif name in found.claimed and not self._elsewhere(name):", "elif False:"),
    _COLLECT("pins", "            if name in pinned:", "            if False:"),
    _COLLECT("that lists are whole", "        if not found.whole:", "        if False:"),
    _COLLECT("that a head is here", "        if not core.heads.current():", "        if False:"),
    _COLLECT("that this device's own head is here", "if own is None or own.seq != core.heads.reserved:", FALSE),
    _COLLECT("that a removed device deletes nothing", "        elif core.household.epoch_keys():",
             "        elif False:"),
    _RETAINING("that what is referred to is retained",
               "            self._ledger.take_out(self.reached_again(self._ledger.unneeded))\n", ""),
]

MUTANTS: list[Mutant] = [*HEADS, *TRANSFERS, *COLLECTING]
