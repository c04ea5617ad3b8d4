"""Where the commands read and write: a wrong place is refused before anything is played.

Only a file of the same kind is ever written over. Leaves the files' contents to `tracefile` and the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hinet_node.errors import NoSpace, UsageError
from hinet_simnet.errors import BadTrace

TRACE_SUFFIX = ".simtrace"


def trace_file(text: str) -> Path:
    """A trace that a command reads. Errors: `BadTrace` when no file is there."""
    path = Path(text)
    if path.is_dir():
        raise BadTrace(f"{text} is a folder", next_step=f"name a {TRACE_SUFFIX} file in it")
    if not path.exists():
        raise BadTrace(f"there is no file {text!r}", next_step="hinet-node simnet run SCENARIO --save FILE makes one")
    return path


def new_file(text: str, option: str, *suffixes: str) -> Path:
    """A file that a command writes; one that is there is written over only when its name ends as such a file's does.

    Errors: `UsageError` when it can't be a file, or is another kind of file.
    """
    path = Path(text)
    if path.is_dir():
        raise UsageError(f"{option}: {text} is a folder", next_step=f"{option} {path / ('name' + suffixes[0])}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option}: {text} is no ordinary file", next_step=f"{option} name{suffixes[0]}")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {str(path.parent)!r}", next_step=f"mkdir -p {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option}: you may not write {text}", next_step=f"choose another place with {option}")
    if path.exists() and path.stat().st_size and path.suffix not in suffixes:
        raise UsageError(f"{option}: {text} is there already, and is no {' or '.join(suffixes)} file",
                         next_step=f"{option} {path.with_suffix(suffixes[0])}")
    return path


@contextmanager
def room_for(what: str, option: str) -> Iterator[None]:
    """A disk that is full or read-only is told in this command's terms. Errors: `NoSpace`."""
    import errno

    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG):
            raise
        raise NoSpace(f"no room for {what}: {error.strerror}",
                      next_step=f"free some space, or choose another place with {option}") from error
