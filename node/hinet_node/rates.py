"""Rates as people write them: `5M` is five million bytes a second.

Leaves keeping to a rate to `hinet_node.vault.pacing`.
"""

from __future__ import annotations

import re

from hinet_node.errors import UsageError

RATE_MIN, RATE_MAX = 10_000, 10**12
"""Slower, and a sibling that shares the rate with others would take us for one that stands still."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?([kmg]?)(?:b(?:/s)?)?", re.IGNORECASE)


def read_rate(text: str) -> int:
    """Bytes a second from `5M`, `800k` or `1.5 GB/s` (decimal units); 0 or "" is no limit. Errors: `UsageError`."""
    if not text.strip():
        return 0
    match = _RATE.fullmatch(text.strip())
    rate = int(float(match[1]) * _UNITS[match[2].lower()]) if match else -1
    if rate and not RATE_MIN <= rate <= RATE_MAX:
        raise UsageError(f"{text!r} is no rate that packs can be limited to",
                         next_step="for example --rate 5M for 5 million bytes a second, at least 10k; 0 for no limit")
    return rate


def show_rate(rate: int) -> str:
    """As people write it: `5 MB/s`."""
    for unit, size in (("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3)):
        if rate >= size:
            return f"{rate / size:.4g} {unit}"
    return f"{rate} B/s"
