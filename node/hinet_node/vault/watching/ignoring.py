"""What a watch leaves out: editors' and file managers' leftovers, and what `.hinetignore` in its root says. Pure.

A line is a pattern of a name, `*` `?` `[…]` as in the shell: without `/` for any depth, with `/` from the root. An
ending `/` means folders only, a leading `!` takes back in, `#` begins a comment; the last line that fits decides. What
was in the vault already stays there.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

IGNORE_FILE = b".hinetignore"
IGNORE_BYTES_MAX = 65_536
PATTERNS_MAX = 1_000

DEFAULTS = (b"*~", b".*.sw?", b".#*", b"#*#", b"4913", b"*.tmp", b"~$*", b".~lock.*#", b"*.part", b"*.crdownload",
            b".goutputstream-*", b".hinet-restore-*", b".nfs*", b".fuse_hidden*", b".DS_Store", b"Thumbs.db",
            b"desktop.ini", b".Trash-*/", b".trashed-*")

Ignored = Callable[[bytes, bool], bool]
"""From a name below the root, and whether it is a folder, to whether it is left out."""


def rules(text: bytes) -> Ignored:
    """The defaults and then the lines of an ignore file; lines beyond the limit do not count."""
    patterns = [_pattern(line) for line in DEFAULTS]
    for line in text[:IGNORE_BYTES_MAX].splitlines()[:PATTERNS_MAX]:
        line = line.strip()
        if line and not line.startswith(b"#"):
            patterns.append(_pattern(line))

    def ignored(name: bytes, folder: bool) -> bool:
        last = name.rpartition(b"/")[2]
        found = False
        for out, folders_only, anchored, fits in patterns:
            if (folder or not folders_only) and fits(name if anchored else last):
                found = out
        return found

    return ignored


def _pattern(line: bytes) -> tuple[bool, bool, bool, Callable[[bytes], object]]:
    out = not line.startswith(b"!")
    line = line.removeprefix(b"!")
    folders_only = line.endswith(b"/")
    line = line.rstrip(b"/")
    anchored = b"/" in line
    # Translated as latin-1, so that a byte is a letter, whatever it means.
    fits = re.compile(fnmatch.translate(line.lstrip(b"/").decode("latin-1")).encode("latin-1"), re.DOTALL).match
    return out, folders_only, anchored, fits
