"""Durations, sizes and rates as people write them: "10 min", "5 MB", "128 kB/s". Exact both ways.

A bare number is seconds, bytes, or bytes a second. Leaves bounds to `fields`.
"""

from __future__ import annotations

import math
import re

DURATIONS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
         "TiB": 2**40}
_ONE = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def seconds(value: object) -> float:
    """12, 1.5, "90 s", "1 h 30 min", "-2 h". Errors: `ValueError` in words."""
    if isinstance(value, str):
        text = value.strip()
        parts = list(_ONE.finditer(text))
        if not parts or _ONE.sub("", text).strip() or any(part[2] not in DURATIONS for part in parts):
            raise ValueError(f'{value!r} is no duration; write "30 s", "10 min", "1 h 30 min" or "7 d"')
        if any(part[1][0] in "+-" for part in parts[1:]):
            raise ValueError(f"{value!r}: a sign may stand at the beginning only")
        sign = -1.0 if text.startswith("-") else 1.0
        # Milliseconds divide: 0.001 is no exact number, 1000 is.
        return sign * sum(abs(float(part[1])) / 1000 if part[2] == "ms" else abs(float(part[1])) * DURATIONS[part[2]]
                          for part in parts)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'must be a duration such as "10 min", or a number of seconds, not {shown(value)}')
    if not math.isfinite(value):
        raise ValueError("must be a finite number of seconds")
    return float(value)


def size_bytes(value: object) -> int:
    """4096, "5 MB", "64 KiB". Errors: `ValueError` in words."""
    if isinstance(value, str):
        part = _ONE.fullmatch(value.strip())
        if part is None or part[2] not in SIZES:
            raise ValueError(f'{value!r} is no size; write "500 B", "64 KiB" or "5 MB"')
        return round(float(part[1]) * SIZES[part[2]])
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f'must be a size such as "5 MB", or a whole number of bytes, not {shown(value)}')
    return value


def rate_bytes_s(value: object) -> float:
    """125000, "1 MB/s". Errors: `ValueError` in words."""
    if isinstance(value, str):
        if not value.strip().endswith("/s"):
            raise ValueError(f'{value!r} is no rate; write "128 kB/s" or "1 MB/s"')
        return float(size_bytes(value.strip()[:-2].strip()))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f'must be a rate such as "1 MB/s", or a number of bytes a second, not {shown(value)}')
    return float(value)


def shown(value: object) -> str:
    """What a value of the file is, for an error."""
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    kind = names.get(type(value), "a date")
    return f"{kind} ({value!r})" if isinstance(value, bool | int | float | str) else kind


def duration_text(value: float) -> str:
    """The shortest form that `seconds` reads back to the same float."""
    for unit in ("d", "h", "min", "s", "ms"):
        count = value * 1000 if unit == "ms" else value / DURATIONS[unit]
        text = f"{count:.0f} {unit}"
        if count and count == int(count) and seconds(text) == value:
            return text
    text = f"{value!r} s"
    return text if _ONE.fullmatch(text) and seconds(text) == value else ""


def size_text(value: int) -> str:
    """The shortest form that `size_bytes` reads back to the same number."""
    for unit in ("GB", "MB", "kB"):
        if value and value % SIZES[unit] == 0:
            return f"{value // SIZES[unit]} {unit}"
    return f"{value} B"
