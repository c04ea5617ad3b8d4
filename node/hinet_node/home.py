"""The home folder: what lies where, the lock that only one process may hold, and private files that are private.

    device.key   this device's secret keys, 0600        chain/        the signed log, in segments
    device.key.next   while keys are exchanged          device.wrote  this key has written to the vault
    config.toml  name, tier, ports                      invitations/  open and used invitations
    lock         held by the agent or by one command    vault/        packs and heads; index.sqlite is a cache
    bases/ revisions/ jobs/                             run/          agent.sock   log/  agent.log

Authoritative bytes go through the Disk port; the lock, the modes and the socket's place concern the real folder only
and are looked after here, by the command line, before an agent is built.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hinet_node.errors import ConflictError, NoSpace, NotAuthorised, NotInitialised

DEVICE_KEY = "device.key"
DEVICE_KEY_NEXT = "device.key.next"
CONFIG = "config.toml"
LOCK = "lock"
CHAIN = "chain"
CHAIN_HEAD = "chain/head"
INVITATIONS = "invitations"
RUN = "run"
SOCKET = "run/agent.sock"
LOG = "log/agent.log"

SOCKET_PATH_BYTES_MAX = 100
"""Unix socket addresses end at 104 bytes on macOS and 108 on Linux."""


def require_identity(folder: str | Path) -> None:
    """Errors: `NotInitialised` when the home holds no identity; `NotAuthorised` when its keys are open to others."""
    if not (Path(folder) / CHAIN_HEAD).exists():
        raise NotInitialised(f"this machine belongs to no household yet ({folder} holds no identity)",
                             next_step="hinet-node init   or, to join your other devices:  hinet-node join CODE")
    check_private(folder)


def check_private(folder: str | Path) -> None:
    """Refuse a device key that others may read. Errors: `NotAuthorised` with the chmod line."""
    for name in (DEVICE_KEY, DEVICE_KEY_NEXT):
        path = Path(folder) / name
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
        if mode & 0o077:
            raise NotAuthorised(f"{path} can be read by other users (mode {mode:04o}), so it is not used",
                                next_step=f"chmod 600 {path}", code="E_KEY_OPEN")


def check_folder(folder: str | Path) -> None:
    """Refuse a home that other users may write to: they could put another key or chain there. Errors: `NotAuthorised`.
    """
    try:
        mode = stat.S_IMODE(Path(folder).stat().st_mode)
    except OSError:
        return  # it is made, private, when it is locked; and `locked` says why it can't be
    if mode & 0o022:
        raise NotAuthorised(f"other users may write to {folder} (mode {mode:04o}), so it can't be a home",
                            next_step=f"chmod 700 {folder}   or choose another folder: --home PATH", code="E_HOME_OPEN")


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold the home's lock; makes the folder (0700) when it is missing.

    The kernel drops the lock when the process ends, however it ends. Errors: `ConflictError` naming the process that
    holds it; `NoSpace` for a full or read-only disk.
    """
    path = Path(folder) / LOCK
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = lock_holder(folder)
            raise ConflictError(
                f"another hinet-node process{f' ({holder})' if holder else ''} uses {folder} now",
                next_step=f"stop it first: kill {holder}" if holder else "wait for it to end", code="E_HOME_LOCKED",
            ) from None
        with suppress(OSError):  # the number is a courtesy; a full disk must not keep the agent from starting
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(folder: str | Path) -> int | None:
    """The process that holds the lock now, None when nobody does or it did not write its number."""
    path = Path(folder) / LOCK
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)


def unwritable(folder: str | Path, error: OSError) -> Exception:
    """What to say when the home can't be written."""
    why = {errno.EROFS: "it is on a read-only disk", errno.ENOSPC: "the disk is full",
           errno.EDQUOT: "the disk quota is used up", errno.EFBIG: "the disk is full",
           errno.EACCES: "this user may not write there", errno.EPERM: "this user may not write there",
           errno.ENOTDIR: "a part of the path is no folder", errno.EEXIST: "a file stands in the way"}.get(
               error.errno or 0, error.strerror or str(error))
    return NoSpace(f"the home {folder} can't be written: {why}; nothing was changed",
                   next_step="free some space there, or choose another folder: --home PATH or HINET_HOME",
                   code="E_HOME_UNWRITABLE")


def socket_path(folder: str | Path) -> Path:
    """Where the agent's socket is, or is to be: in the home, or in a short runtime folder when that path is too long.

    The place is derived from the home's path and the user alone, so that agent and commands agree without asking: an
    agent that the service manager starts has XDG_RUNTIME_DIR, and a command in cron or after `su` does not.
    """
    wanted = Path(folder).absolute() / SOCKET
    if len(os.fsencode(wanted)) <= SOCKET_PATH_BYTES_MAX:
        return wanted
    import hashlib
    import tempfile

    short = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    base = Path(runtime) if len(runtime) < 60 and Path(runtime).is_dir() else Path(tempfile.gettempdir())
    return base / f"hinet-{os.getuid()}-{short}" / "agent.sock"
