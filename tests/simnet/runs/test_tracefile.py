"""Trace files: what is written is read, also after a crash; what is damaged, foreign or newer is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from blake3 import blake3

from hinet_simnet.errors import BadTrace
from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.runs import tracefile
from hinet_simnet.runs.tracefile import TraceReader, TraceWriter

HEADER = {"program": {"version": "1"}, "scenario": "s", "file": "s.toml", "seed": 3, "level": "world",
          "text": "x = 1\n"}
LINES = [f"{number}.000000000 note a n={number}" for number in range(100)]


def digest(lines: list[str]) -> str:
    return blake3("".join(f"{line}\n" for line in lines).encode()).hexdigest(16)


def written(path: Path, lines: list[str] = LINES, **more: Any) -> Path:
    writer = TraceWriter(path, HEADER, **more)
    for line in lines:
        writer.line(line)
    writer.end(Outcome("s", "world", 3, digest=digest(lines), findings=[Finding("chains", "two heads", 4.5, "a")],
                       facts={"recall": [[1.0, float("nan")]]}))
    return path


def plain(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return reader.read(1 << 24).splitlines(keepends=True)


def packed(path: Path, *lines: bytes) -> Path:
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines)))
    return path


def refused(path: Path) -> str:
    with pytest.raises(BadTrace) as caught, TraceReader(path) as reader:
        list(reader.lines())
    assert str(path) in caught.value.what
    assert caught.value.exit_code == 2
    return caught.value.what


def test_header_events_and_outcome_come_back(tmp_path: Path) -> None:
    with TraceReader(written(tmp_path / "a.simtrace")) as reader:
        assert (reader.header.seed, reader.header.text) == (3, "x = 1\n")
        assert list(reader.lines()) == LINES
        outcome = reader.outcome()
    assert outcome is not None
    assert outcome.findings == [Finding("chains", "two heads", 4.5, "a")]
    assert outcome.facts == {"recall": [[1.0, None]]}
    assert not reader.cut


def test_a_file_is_text_for_any_zstandard_program(tmp_path: Path) -> None:
    lines = plain(written(tmp_path / "a.simtrace"))
    assert json.loads(lines[0])["schema"] == "hinet.simtrace/1"
    assert lines[1:-1] == [f"{line}\n".encode() for line in LINES]
    assert json.loads(lines[-1])["events"] == 100


def test_the_bytes_of_the_specification_are_read(tmp_path: Path) -> None:
    vector = json.loads((Path(__file__).parent / "11-simtrace.json").read_text())
    path = tmp_path / "vector.simtrace"
    path.write_bytes(bytes.fromhex(vector["file"]))
    with TraceReader(path) as reader:
        assert list(reader.lines()) == vector["events"]
        outcome = reader.outcome()
    assert outcome is not None
    assert outcome.digest == vector["digest"] == digest(vector["events"])
    assert vars(reader.header) == vector["header"]


def test_a_killed_writer_leaves_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "FRAME_BYTES", 500)
    writer = TraceWriter(tmp_path / "a.simtrace", HEADER)
    for line in LINES:
        writer.line(line)
    writer.close()
    with TraceReader(tmp_path / "a.simtrace") as reader:
        found = list(reader.lines())
    assert found == LINES[:len(found)]
    assert len(found) > 80
    assert reader.outcome() is None


def test_a_file_that_is_cut_anywhere_reads_up_to_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "FRAME_BYTES", 500)
    whole = written(tmp_path / "a.simtrace").read_bytes()
    counts = []
    for size in range(400, len(whole), 37):
        (tmp_path / "cut").write_bytes(whole[:size])
        with TraceReader(tmp_path / "cut") as reader:
            found = list(reader.lines())
        assert found == LINES[:len(found)]
        assert reader.outcome() is None
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] > 50


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.simtrace").read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        (tmp_path / "b").write_bytes(damaged)
        try:
            with TraceReader(tmp_path / "b") as reader:
                lines = list(reader.lines())
                assert lines == LINES[:len(lines)]
                assert reader.footer is None or (vars(reader.header), lines) == (
                    vars(TraceReader(tmp_path / "a.simtrace").header), LINES)
        except BadTrace:
            continue


def test_a_changed_event_is_noticed_by_the_digest(tmp_path: Path) -> None:
    lines = plain(written(tmp_path / "a.simtrace"))
    lines[50] = lines[50].replace(b"note", b"NOTE")
    assert "digest" in refused(packed(tmp_path / "b", *lines))


def test_foreign_and_newer_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("schema = 1\n")
    assert "no trace file" in refused(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    assert "no trace file" in refused(tmp_path / "empty")
    assert "no trace file" in refused(packed(tmp_path / "other", b'{"schema": "something/1"}\n'))
    header = json.dumps({**HEADER, "schema": "hinet.simtrace/2"}).encode()
    assert "hinet.simtrace/2" in refused(packed(tmp_path / "newer", header + b"\n"))
    assert "header" in refused(packed(tmp_path / "poor", b'{"schema": "hinet.simtrace/1", "seed": "x"}\n'))


def test_a_file_that_unpacks_to_an_endless_line_is_stopped(tmp_path: Path) -> None:
    first = json.dumps({**HEADER, "schema": "hinet.simtrace/1"}).encode() + b"\n"
    assert "longer" in refused(packed(tmp_path / "bomb", first, b"1" * (40 << 20)))


def test_a_file_stops_growing_at_its_limit_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "FRAME_BYTES", 500)
    with TraceReader(written(tmp_path / "a.simtrace", bytes_max=600)) as reader:
        found = list(reader.lines())
    assert 0 < len(found) < 100
    assert found == LINES[:len(found)]
    assert reader.cut
    assert reader.outcome() is not None


def test_a_full_disk_is_told_and_is_no_fault_of_the_run() -> None:
    writer = TraceWriter(Path("/dev/null"), HEADER)
    writer._file.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer._file = full
        for line in LINES:
            writer.line(line)
        writer.end(Outcome("s", "world", 3))
    assert "space" in writer.problem
    assert writer.cut
