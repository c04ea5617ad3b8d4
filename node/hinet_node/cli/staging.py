"""What a command makes appears whole or not at all: it is made in a hidden folder beside its place and then renamed.

The folder is gone whatever happens to the work; what a killed command left is cleared by the next one for the same
place. A file or folder that is in the way is refused before any work begins.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hinet_node.errors import ConflictError, UsageError


@contextmanager
def staged(target: Path, *, folder: bool = False, replace: bool = False) -> Iterator[Path]:
    """Gives the path to make the thing at; when the block ends well it is moved to `target`.

    The thing is a file, or with `folder` a folder, for which an empty one at `target` is taken as its place; `replace`
    lets a file be replaced. Errors: `ConflictError` when something is there, `UsageError` when the folder that it
    should lie in is missing.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - `..` is taken out, and a link stays one
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent} to write {target.name} to",
                         next_step=f"make it first: mkdir -p {target.parent}", code="E_NO_SUCH_FILE")
    _refuse_what_is_there(target, folder=folder, replace=replace)
    _clear_leftovers(target)
    making = target.with_name(f".{target.name}.{os.getpid()}.making")
    making.mkdir(mode=0o700)
    try:
        made = making / target.name
        yield made
        _refuse_what_is_there(target, folder=folder, replace=replace)
        made.rename(target)  # an empty folder there is replaced by ours, in one step
        _sync(target.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _refuse_what_is_there(target: Path, *, folder: bool, replace: bool) -> None:
    if target.is_dir() and not target.is_symlink():
        if folder and not any(target.iterdir()):
            return
        what = "is there already and not empty" if folder else "is in the way"
        raise ConflictError(f"the folder {target} {what}; nothing was changed",
                            next_step="choose another --out", code="E_FILE_EXISTS")
    if target.is_symlink() or (target.exists() and (folder or not replace)):
        raise ConflictError(f"{target} is there already; nothing was changed",
                            next_step=f"choose another --out{'' if folder else ', or add --force'}",
                            code="E_FILE_EXISTS")


def _clear_leftovers(target: Path) -> None:
    for stale in target.parent.glob(f".{_literal(target.name)}.*.making"):
        process = stale.name.split(".")[-2]
        if process.isdigit() and not _alive(int(process)):
            shutil.rmtree(stale, ignore_errors=True)


def _literal(name: str) -> str:
    import glob

    return glob.escape(name)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    with suppress(OSError):  # not every file system lets a folder be synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
