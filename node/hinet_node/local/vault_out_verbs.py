"""The local API's verbs that take files out: vault.get, vault.cat, vault.export.

Leaves writing to `hinet_node.vault.outgoing` and `tarring`. A stream to the caller goes through a pipe that the caller
made (`to` of vault.cat, and of vault.export as tar): the socket carries calls, not gigabytes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from hinet_node.api import Emit, Handler, text_of
from hinet_node.errors import ConflictError, NetworkError, UsageError
from hinet_node.local.vault_verbs import name_bytes, no_such_file, progress_report, text_name
from hinet_node.vault import Item, Progress, Vault
from hinet_node.vault.files import reported
from hinet_node.vault.finding import RESERVED
from hinet_node.vault.outgoing import KEEP, OVERWRITE, OutReport
from hinet_node.vault.progress import Counter
from hinet_node.vault.tarring import write_tar
from hinet_protocol.trees import Version

CONTENT_BYTES_MAX = 4 * 1_048_576

Rows = dict[bytes, Version]


def vault_out_verbs(vault: Vault) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def get(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        # Without `to` the content is the answer. A file goes to the path `to`, a folder below `into`, where its files
        # keep their whole names.
        name, to = name_bytes(text_of(args, "name")), text_of(args, "to", "")
        if not to:
            return {"content": await _content(vault, name)}
        into = text_of(args, "into", to)
        if vault.core.view.lookup(name) is not None or not name:
            return await _get_file(vault, name, Path(to), args.get("overwrite") is True, _reporter(emit))
        folder = name.rstrip(b"/") + b"/"
        rows = _rows(vault, folder, every=folder.startswith(RESERVED))
        if not rows:
            raise no_such_file(name)
        report = await vault.take_out(rows, Path(into), existing=_existing(args), on_progress=_reporter(emit))
        return {**described(report), "to": str(Path(into, text_name(folder)))}

    async def cat(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        name, to = name_bytes(text_of(args, "name")), text_of(args, "to")
        version = vault.core.version(name)[0]

        def work() -> None:
            with _pipe(to) as stream:
                for piece in vault.core.content(version):
                    stream.write(piece)

        await _to_reader(vault, work)
        return {"name": text_name(name), "bytes": version.size}

    async def export(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        to, kind = text_of(args, "to"), text_of(args, "kind", "folder")
        under = name_bytes(text_of(args, "under", "")).strip(b"/")
        rows = _rows(vault, under + b"/" if under else b"", every=args.get("all") is True)
        if under and not rows:
            raise no_such_file(under)
        if kind == "folder":
            report = await vault.take_out(rows, Path(to), existing=_existing(args), on_progress=_reporter(emit))
        else:
            report = await _tar(vault, rows, to, kind, args.get("overwrite") is True, _reporter(emit))
        return {**described(report), "to": to}

    return {"vault.get": get, "vault.cat": cat, "vault.export": export}


def described(report: OutReport) -> dict[str, Any]:
    """A report as the socket can say it."""
    return {"files": report.files, "bytes": report.size_bytes, "there": report.there,
            "kept": report.kept, "kept_count": report.kept_count,
            "beside": [{"name": text_name(name), "path": path} for name, path in report.beside],
            "beside_count": report.beside_count,
            "left_out": [{"name": text_name(name), "why": why} for name, why in report.left_out],
            "left_out_count": report.left_out_count}


def _reporter(emit: Emit) -> Callable[[Progress], None]:
    return lambda done: emit(progress_report(done))


def _existing(args: Mapping[str, Any]) -> str:
    return OVERWRITE if args.get("overwrite") is True else KEEP


def _rows(vault: Vault, prefix: bytes, *, every: bool) -> Rows:
    return {name: version for name, (version, _) in vault.core.shown().items()
            if name.startswith(prefix) and (every or not name.startswith(RESERVED))}


async def _content(vault: Vault, name: bytes) -> bytes:
    item = next((item for item in await vault.list(name) if item.name == name), None)
    if item is None:
        raise no_such_file(name)
    if item.size > CONTENT_BYTES_MAX:
        raise UsageError(f"{text_name(name)!r} is too long to print ({item.size} bytes)",
                         next_step="write it to a file: hinet-node vault get NAME --out PATH")
    return await vault.get(name)


async def _get_file(vault: Vault, name: bytes, path: Path, overwrite: bool,
                    on_progress: Callable[[Progress], None]) -> dict[str, Any]:
    """One file, to a path of the owner's own, whatever its name in the vault is."""
    vault.core.version(name)
    if path.is_dir() and not path.is_symlink():
        path = path / os.fsdecode(name.rpartition(b"/")[2])
    if not overwrite and (path.exists() or path.is_symlink()):
        raise ConflictError(f"{path} exists already", code="E_FILE_EXISTS",
                            next_step="to replace it: --overwrite; or name another: --out PATH")
    item: Item = await vault.get_to(name, path, on_progress=on_progress)
    return {**described(OutReport(files=1, size_bytes=item.size)), "to": str(path)}


async def _tar(vault: Vault, rows: Rows, to: str, kind: str, overwrite: bool,
               on_progress: Callable[[Progress], None]) -> OutReport:
    count = Counter(b"", sum(version.size for version in rows.values()), len(rows), on_progress)
    report = OutReport()
    if kind == "pipe":
        def stream_out() -> None:
            nonlocal report
            with _pipe(to) as stream:
                report = write_tar(rows, vault.core.content, stream, count)

        await _to_reader(vault, stream_out)
        return report
    if kind != "tar":
        raise UsageError(f"an export can't be of the kind {kind!r}", next_step="folder, tar or pipe")
    path = Path(to)
    if not overwrite and (path.exists() or path.is_symlink()):
        raise ConflictError(f"{path} exists already", next_step="to replace it: --force", code="E_FILE_EXISTS")

    def write() -> None:
        nonlocal report
        part = path.with_name(f".hinet-restore-{os.getpid()}")
        with reported(path):
            try:
                descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as stream:
                    report = write_tar(rows, vault.core.content, stream, count)
                    stream.flush()
                    os.fsync(stream.fileno())
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise

    await vault.off_loop(write)
    return report


async def _to_reader(vault: Vault, work: Callable[[], None]) -> None:
    """Errors: `NetworkError` E_READER_GONE when whoever reads the pipe has left."""
    try:
        await vault.off_loop(work)
    except BrokenPipeError:
        raise NetworkError("whoever read the output has left", code="E_READER_GONE",
                           next_step="read it to its end") from None


def _pipe(path: str) -> IO[bytes]:
    """The writing end of the caller's pipe, whose reading end is open already. Errors: `UsageError`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise BrokenPipeError from None
        raise UsageError(f"{path} can't be written to: {error.strerror}",
                         next_step="name a pipe that is being read") from None
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path} is no pipe", next_step="make one: mkfifo PATH")
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb", buffering=0)
