"""A point in time as a person types it: a date, a date and a time, or so long ago."""

from __future__ import annotations

import re
import time
from datetime import datetime

_AGO = re.compile(r"(\d{1,6})\s*(m|min|h|d|w)(?:\s+ago)?")
_UNIT_S = {"m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def unix_s(text: str, now_s: float | None = None) -> int:
    """Unix seconds of `2026-12-01`, `2026-12-01 14:30`, `14:30` (today), `30m`, `2h`, `3d`, `2w` (ago). Local time, if
    no offset is given. Errors: `UsageError`."""
    now = time.time() if now_s is None else now_s
    wanted = text.strip()
    ago = _AGO.fullmatch(wanted)
    if ago:
        return int(now) - int(ago[1]) * _UNIT_S[ago[2]]
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", wanted):
        today = datetime.fromtimestamp(now).strftime("%Y-%m-%d")
        wanted = f"{today} {wanted.zfill(5 if wanted.count(':') == 1 else 8)}"
    try:
        return int(datetime.fromisoformat(wanted).timestamp())
    except (ValueError, OverflowError, OSError):
        from hinet_node.errors import UsageError

        raise UsageError(f"{text!r} is no time", next_step="for example 2026-12-01, '2026-12-01 14:30', 14:30, 2h or "
                                                           "3d (that long ago)") from None
