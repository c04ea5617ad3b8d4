"""What a name on a Disk may be: shared by the real disk and its in-memory twin.

Leaves reading and writing to `hinet_node.real.disk` and `hinet_simnet.disk`. A name is a relative POSIX path whose
parts are plain: no `..`, no empty part, no backslash, NUL or leading slash, so no name can leave the home.
"""

from __future__ import annotations

TEMPORARY_PREFIX = ".hinet-tmp-"
"""Files that begin so are unfinished writes: never listed, never readable by name, removed at start."""

NAME_BYTES_MAX = 1024
PART_BYTES_MAX = 255


def split_name(name: str) -> tuple[str, ...]:
    """The parts of a file's name. Errors: `ValueError` for a name that is not plain (a bug of the caller)."""
    parts = split_folder(name)
    if not parts:
        raise ValueError("A file needs a name; this one is empty.")
    return parts


def split_folder(name: str) -> tuple[str, ...]:
    """The parts of a folder's name; "" is the home itself. Errors: `ValueError`."""
    if name == "":
        return ()
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise ValueError(f"The name {name[:60]!r}... is longer than {NAME_BYTES_MAX} bytes.")
    parts = tuple(name.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\\" in part or "\0" in part or part.startswith(TEMPORARY_PREFIX):
            raise ValueError(f"{name!r} is no plain relative name.")
        if len(part.encode("utf-8", "surrogateescape")) > PART_BYTES_MAX:
            raise ValueError(f"A part of the name {name[:60]!r} is longer than {PART_BYTES_MAX} bytes.")
    return parts
