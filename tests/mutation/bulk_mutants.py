"""Verifications of bulk connections and of ranges of packs that must be missed when they are gone. SPEC 5.12, 6.6."""

from __future__ import annotations

from mutation.mutant import FALSE, Mutant, within

_TLS = within("node/hinet_node/real/transport/bulk.py", "node/real/test_bulk.py")
_BULK = within("node/hinet_node/vault/bulk.py", "node/vault/test_bulk.py")
_PULL = within("node/hinet_node/vault/pull_bulk.py", "node/vault/test_bulk.py")
_SAID = within("protocol/hinet_protocol/bulk.py", "protocol/test_bulk.py")
_RANGES = within("protocol/hinet_protocol/ranges.py", "protocol/test_ranges.py")

MUTANTS: list[Mutant] = [
    _TLS("the pin on a bulk certificate", "if end is None or shown != end.remote_certificate:", "if end is None:"),
    _TLS("that a bulk token is expected", "return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)",
         "expected = next(iter(self.expected.values()))"),
    _TLS("that bulk speaks TLS 1.3", "    context.minimum_version = ssl.TLSVersion.TLSv1_3\n", ""),
    _TLS("how many bulk connections are expected",
         " or len(self.expected) >= limits.bulk_connections_max", ""),
    _TLS("that a bulk token is good once", "        del self.expected[expected.end.token]\n", ""),
    _TLS("that a still peer is given up", "if not poll.poll(STALL_S * 1000):", "if not poll.poll(3_600_000):"),
    _BULK("who opens bulk connections",
          "if session.relayed or session.dialled_by_us or self._nursery is None:", FALSE),
    _BULK("that a bulk connection was wanted",
          "if not message.pulls and (session not in self._wanted or self._wanted[session]):",
          "if not message.pulls and session in self._wanted and self._wanted[session]:"),
    _BULK("how many bulk connections are served", "if (self._serving[public] >= limits.bulk_connections_each_max",
          "if (False and self._serving[public] >= 0"),
    _BULK("that bulk connections end with their session",
          "                nursery.start_soon(_cancel_at_end, session, nursery.cancel_scope)\n", ""),
    _PULL("that a pack has its name", "if state.digest() == wanted.name:", "if True:"),
    _PULL("the size of a pack on a bulk connection", "if size != wanted.size_bytes:", FALSE),
    _SAID("the size that an answer promises",
          "if status != HERE or not 0 < size <= pack_bytes_max:", "if status != HERE:"),
    _RANGES("the order of names in a range", "if name <= last or name < lower or (upper and name >= upper):",
            "if name < lower or (upper and name >= upper):"),
    _RANGES("the bounds of names in a range", "if name <= last or name < lower or (upper and name >= upper):",
            "if name <= last:"),
    _RANGES("the bounds of parts",
            "if number < len(parts) and (bound <= at or (upper and bound >= upper)):", FALSE),
    _RANGES("how deep ranges are split", " or depth >= _DEPTH_MAX", ""),
    _RANGES("that an answer settles something", "        if not progress:", "        if False:"),
]
