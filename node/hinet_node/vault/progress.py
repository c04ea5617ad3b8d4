"""Counting long work: what becomes `Progress` values, often enough for a person and seldom enough to cost nothing."""

from __future__ import annotations

from hinet_node.vault.items import OnProgress, Progress

_TELL_BYTES = 1 << 20
_TELL_FILES = 64


class Counter:
    """Counts bytes and files done. It tells of each MiB and of every 64 files; `tell` says how it ended."""

    def __init__(self, what: bytes, bytes_total: int, files_total: int, report: OnProgress | None) -> None:
        self._what = what.decode("utf-8", "replace")
        self._totals = (bytes_total, files_total)
        self._report = report
        self._bytes = self._files = 0
        self._told = (0, 0)

    def bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes - self._told[0] >= _TELL_BYTES:
            self.tell()

    def file(self) -> None:
        self._files += 1
        if self._files - self._told[1] >= _TELL_FILES:
            self.tell()

    def tell(self) -> None:
        self._told = (self._bytes, self._files)
        if self._report is not None:
            self._report(Progress(self._what, self._bytes, self._totals[0], self._files, self._totals[1]))
