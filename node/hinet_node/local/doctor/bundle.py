"""`doctor --bundle FILE`: findings, facts, versions and redacted logs in one archive, for a bug report.

What goes in is chosen here piece by piece; nothing is copied from the home unread, and neither keys nor chain nor vault
nor invitations are opened. `redact` looks over each text once more.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from hinet_node.errors import ConflictError
from hinet_node.home import LOG
from hinet_node.local import logfile
from hinet_node.local.doctor.facts import Facts
from hinet_node.local.doctor.gather import ERRORS_LOG
from hinet_node.local.doctor.redact import Redactor, traceback_only

LOG_LINES_MAX = 2_000
README = """\
A report of `hinet-node doctor --bundle`. It has no keys, no words, no invitations, nothing of the vault and no file
names. Names of devices are numbers{names}. Look through it before you send it: it is plain text.
"""
STATUS_KEPT = {"agent": ("running", "version", "addresses", "started_unix_s", "backends", "memory_bytes"),
               "identity": ("height", "heads"), "device": ("name", "role", "tier"),
               "vault": ("head_seq", "packs", "packs_bytes", "files", "files_bytes", "conflicts", "missing_packs",
                         "free_bytes", "readable", "damaged_packs", "copies_least", "single_packs", "other_devices",
                         "verified_packs", "verified_oldest", "verify_days")}
DEVICE_KEPT = ("name", "role", "tier", "state", "via", "behind", "version", "backends", "memory_bytes",
               "clock_offset_s", "added_unix_s", "expires_unix_s", "last_seen_unix_s", "unaware_of")


def write(target: Path, facts: Facts, findings: Sequence[Mapping[str, Any]], status: Mapping[str, Any] | None, *,
          file_names: Sequence[str] = (), with_names: bool = False) -> list[str]:
    """Write the archive (0600); the names of what is in it. Errors: `ConflictError` when the file exists."""
    redactor = Redactor(() if with_names else device_names(facts, status), _private_words(facts, file_names))
    home = Path(facts.home)
    parts: dict[str, Any] = {
        "README": README.format(names=" (they were asked for, so they stand)" if with_names else ""),
        "findings.json": [redactor.value(finding) for finding in findings],
        "facts.json": redactor.value(asdict(facts)),
        "status.json": redactor.value(_status(status)),
        "versions.json": _versions(),
        "agent.log": redactor.log(logfile.last_lines(home / LOG, LOG_LINES_MAX)),
        "errors.log": traceback_only(logfile.last_lines(home / ERRORS_LOG, LOG_LINES_MAX)),
    }
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConflictError(f"{target} exists already, and it was left as it is",
                            next_step="choose another name: hinet-node doctor --bundle FILE") from None
    with os.fdopen(descriptor, "wb") as stream, gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w") as archive:
        for name, part in parts.items():
            content = _bytes(part)
            entry = tarfile.TarInfo(f"hinet-doctor/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return list(parts)


def device_names(facts: Facts, status: Mapping[str, Any] | None) -> list[str]:
    """All names of devices that may stand in a text."""
    devices = [] if status is None else [device["name"] for device in status["devices"]]
    return [*devices, *(one.name for one in facts.siblings), *facts.void]


def _private_words(facts: Facts, file_names: Sequence[str]) -> list[str]:
    """Names of files, whole and in parts, and of the user and the machine."""
    words = [part for name in file_names for part in (name, *name.split("/"))]
    return [*words, facts.home, str(Path.home()), Path.home().name, platform.node()]


def _status(status: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parts of the status that are known to be harmless."""
    if status is None:
        return {}
    kept: dict[str, Any] = {part: {key: status[part].get(key) for key in keys}
                            for part, keys in STATUS_KEPT.items() if status.get(part) is not None}
    kept["devices"] = [{key: device.get(key) for key in DEVICE_KEPT} for device in status["devices"]]
    kept["warnings"] = list(status["warnings"])
    return kept


def _versions() -> dict[str, Any]:
    """The platform and the installed libraries."""
    found = {one.metadata["Name"]: one.version for one in distributions() if one.metadata["Name"]}
    return {"python": sys.version, "platform": platform.platform(), "processor": platform.machine(),
            "libraries": dict(sorted(found.items()))}


def _bytes(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode("utf-8")
    if isinstance(part, list) and all(isinstance(line, str) for line in part):
        return "".join(f"{line}\n" for line in part).encode("utf-8", "backslashreplace")
    return json.dumps(part, indent=1, ensure_ascii=True).encode("ascii")
