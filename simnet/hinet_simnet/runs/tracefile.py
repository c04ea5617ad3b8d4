"""Trace files (`*.simtrace`): what happened in a run, with all that playing it again needs. SPEC "Trace files".

A file is a row of zstandard frames of text lines, so `zstdcat` shows it: a header line (JSON), one line an event, a
footer line (JSON). Each frame is written at once and holds whole lines: a run that is killed leaves a file that reads
up to its last frame. Leaves what the events mean to their makers, and comparing runs to `replay`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import zstandard
from blake3 import blake3

from hinet_simnet.errors import BadTrace
from hinet_simnet.findings import Finding, Outcome

SCHEMA = "hinet.simtrace/1"
MAGIC = b"\x28\xb5\x2f\xfd"
FRAME_BYTES = 1 << 18
FRAME_EVERY_S = 1.0
"""A frame is written after so many bytes of lines, or so much (real) time, whichever is first."""
WINDOW_BYTES_MAX = 1 << 21
LINE_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 1 << 23
"""Header and footer: the scenario's text, the outcome."""
FILE_BYTES_MAX = 1 << 30
PIECE_BYTES = 1 << 16
LEVEL = 3


class TraceWriter:
    """Writes one run's trace; `line` is the `Trace`'s sink. After `bytes_max` bytes of file, events are counted and no
    longer written; the footer says so."""

    def __init__(self, path: Path, header: Mapping[str, Any], *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = path
        self.events = self.recorded = 0
        self.problem = ""
        """Why the file ends early, when writing it failed: a full disk must not look like a fault of the run."""
        self._bytes_max = bytes_max
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._lines: list[str] = []
        self._held = self._written = 0
        self._due_s = time.monotonic() + FRAME_EVERY_S
        self._frame(_json_line({"schema": SCHEMA, **header}))

    @property
    def cut(self) -> bool:
        """Whether the file holds fewer events than there were."""
        return self.recorded < self.events

    def line(self, line: str) -> None:
        """One event."""
        self.events += 1
        if self._written >= self._bytes_max or self.problem:
            return
        self._lines.append(line)
        self._held += len(line)
        if self._held >= FRAME_BYTES or (self.events & 63 == 0 and time.monotonic() >= self._due_s):
            self._flush()

    def end(self, outcome: Outcome, *, asked_to_stop_at: int | None = None) -> None:
        """The footer. `asked_to_stop_at`: how many events there were when the run was told to end early."""
        self._flush()
        footer = {"end": outcome.as_dict(), "events": self.events, "recorded": self.recorded,
                  "asked_to_stop_at": asked_to_stop_at}
        try:
            self._frame(_json_line(footer))
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror or error}"
        self.close()

    def close(self) -> None:
        """Let go of the file; without `end` it reads as that of a run that was killed."""
        self._file.close()

    def _flush(self) -> None:
        self._due_s = time.monotonic() + FRAME_EVERY_S
        if self._lines:
            text, lines = "\n".join(self._lines) + "\n", len(self._lines)
            self._lines.clear()
            self._held = 0
            try:
                self._frame(text.encode("utf-8", "surrogateescape"))
            except OSError as error:
                self.problem = f"{self.path}: {error.strerror or error}"
            else:
                self.recorded += lines

    def _frame(self, content: bytes) -> None:
        compressed = memoryview(self._compressor.compress(content))
        self._written += len(compressed)
        while compressed:
            compressed = compressed[self._file.write(compressed):]


@dataclass(frozen=True)
class Header:
    """What a trace file opens with."""

    scenario: str
    text: str
    file: str
    seed: int
    level: str
    program: dict[str, Any]


def header_of(*, scenario: str, text: str, file: str, seed: int, level: str, program: Mapping[str, Any],
              ) -> dict[str, Any]:
    """The header's fields, as `TraceWriter` wants them."""
    return {"program": dict(program), "scenario": scenario, "file": file, "seed": seed, "level": level, "text": text}


class TraceReader:
    """Reads a trace file in one pass: `header` at once, `lines()` once, then `footer` (None: the run was killed).

    Errors: `BadTrace` when the file is no trace, newer, or damaged. Nothing is allocated beyond the bounds above.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.footer: dict[str, Any] | None = None
        self.events = 0
        self._hash = blake3()
        self._file = path.open("rb")
        try:
            if self._file.read(len(MAGIC)) != MAGIC:
                raise self._bad("it is no trace file", "hinet-node simnet run SCENARIO --save FILE")
            self._file.seek(0)
            self._raw = self._texts()
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._file.close()

    def lines(self) -> Iterator[str]:
        """The events' lines. The footer is checked when the last one has been given."""
        for line in self._raw:
            if line[:1] == b"{":
                self.footer = self._footer(line)
                if next(self._raw, None) is not None:
                    raise self._bad("something follows its footer")
                return
            self.events += 1
            self._hash.update(line + b"\n")
            yield line.decode("utf-8", "surrogateescape")

    def outcome(self) -> Outcome | None:
        """How the run ended, after `lines` is through; None when it was killed."""
        return None if self.footer is None else outcome_of(self.footer["end"])

    @property
    def cut(self) -> bool:
        """Whether the writer stopped writing events at its limit. After `lines`."""
        return self.footer is not None and self.footer["recorded"] < self.footer["events"]

    # ---- bytes and bounds ------------------------------------------------------------------------------------------

    def _texts(self) -> Iterator[bytes]:
        """Whole lines without their newline; what a killed writer left unfinished at the end is dropped."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        rest = b""
        with decompressor.stream_reader(self._file, read_size=PIECE_BYTES, read_across_frames=True,
                                        closefd=False) as stream:
            while True:
                try:
                    piece = stream.read(PIECE_BYTES)
                except (zstandard.ZstdError, MemoryError) as error:
                    raise self._bad(f"it is damaged ({error})") from error
                if not piece:
                    return
                *whole, rest = (rest + piece).split(b"\n") if b"\n" in piece else [rest + piece]
                yield from whole
                if len(rest) > HEADER_BYTES_MAX or (len(rest) > LINE_BYTES_MAX and rest[:1] != b"{"):
                    raise self._bad("it has a line longer than any trace's")

    def _header(self) -> Header:
        found = self._json(next(self._raw, b""), "its header")
        schema = str(found.get("schema"))
        if schema != SCHEMA:
            if schema.startswith("hinet.simtrace/"):
                raise self._bad(f"it has the format {schema}, this program reads {SCHEMA}", "update hinet-node")
            raise self._bad("it is no trace file")
        if not (isinstance(found.get("seed"), int) and isinstance(found.get("program"), dict)
                and all(isinstance(found.get(key), str) for key in ("scenario", "text", "file", "level"))):
            raise self._bad("its header lacks something")
        return Header(found["scenario"], found["text"], found["file"], found["seed"], found["level"], found["program"])

    def _footer(self, line: bytes) -> dict[str, Any]:
        found = self._json(line, "its footer")
        counts = [found.get("events"), found.get("recorded")]
        if not (isinstance(found.get("end"), dict) and all(isinstance(count, int) for count in counts)
                and isinstance(found.get("asked_to_stop_at"), int | None)):
            raise self._bad("its footer lacks something")
        digest = found["end"].get("digest")
        if found["recorded"] != self.events or (
                found["recorded"] == found["events"] and digest and digest != self._hash.hexdigest(16)):
            raise self._bad("its events are not those that its footer counts and digests")
        try:
            outcome_of(found["end"])
        except (TypeError, ValueError, AttributeError) as error:
            raise self._bad(f"its footer is none ({error})") from error
        return found

    def _json(self, line: bytes, what: str) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._bad(f"{what} can't be read") from error
        if not isinstance(found, dict):
            raise self._bad(f"{what} can't be read")
        return found

    def _bad(self, why: str, next_step: str = "choose another file, or play the scenario again") -> BadTrace:
        return BadTrace(f"{self.path}: {why}", next_step=next_step)


def outcome_of(fields: Mapping[str, Any]) -> Outcome:
    """An `Outcome` from what `as_dict` made of it. Errors: `TypeError`, `ValueError`."""
    values = {key: value for key, value in fields.items() if key not in ("ok", "findings")}
    findings = [Finding(**found) for found in fields.get("findings", ())]
    outcome = Outcome(**values, findings=findings)
    wanted: dict[str, type | tuple[type, ...]] = {
        "scenario": str, "level": str, "digest": str, "seed": int, "events": int, "messages": int,
        "message_bytes": int, "nodes": int, "virtual_s": (int, float), "wall_s": (int, float), "cpu_s": (int, float),
        "facts": dict}
    for name, kind in wanted.items():
        if not isinstance(getattr(outcome, name), kind):
            raise ValueError(f"{name} is {getattr(outcome, name)!r}")
    for finding in findings:
        if not (isinstance(finding.at_s, int | float) and all(
                isinstance(text, str) for text in (finding.checker, finding.message, finding.node,
                                                   finding.traceback))):
            raise ValueError("a finding is none")
    return outcome


def read_header(path: Path) -> Header:
    """The header alone. Errors: `BadTrace`, `OSError`."""
    with TraceReader(path) as reader:
        return reader.header


def _json_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(fields), ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"


def finite(value: Any) -> Any:
    """The value with null for each number that JSON does not know: one odd measurement must not cost the file."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
