"""A share of the crash matrix, drawn by a fixed seed, and that it notices what it should."""

from __future__ import annotations

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *(one for one in sys.path if one)])}


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`crash("scenes")` is the module `crash.scenes`."""
    monkeypatch.syspath_prepend(str(TESTS))
    return lambda name: importlib.import_module(f"crash.{name}")


def test_no_crash_state_breaks_a_promise() -> None:
    command = [sys.executable, str(TESTS / "crash.py"), "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    scenes = json.loads(done.stdout)["scenes"]
    assert [failure for scene in scenes for failure in scene["failures"]] == []
    assert done.returncode == 0
    assert sum(scene["states"] for scene in scenes) >= 10_000
    for scene in scenes:
        print(f"{scene['scene']}: {scene['points']} points, {scene['states']} states, {scene['checked']} checked")
        assert scene["checked"] >= 100


@pytest.mark.parametrize("neglect", ["files", "folders"])
def test_a_disk_that_does_not_sync_is_found_out(crash: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                neglect: str) -> None:
    filesystem = crash("device").Filesystem
    synced = filesystem.fsync

    def fsync(self: Any, fd: int) -> None:
        if stat.S_ISDIR(self.fstat(fd).st_mode) != (neglect == "folders"):
            synced(self, fd)

    monkeypatch.setattr(filesystem, "fsync", fsync)
    recording = crash("scenes").stored(tmp_path)
    assert crash("matrix").run(recording, tmp_path, seed=1, share=0.5, failures_max=1).failures


def test_a_pack_that_is_renamed_before_it_is_synced_is_found_out(crash: Any, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash("device").Disk, "commit", lambda self, part, name: self.move(part, name))
    recording = crash("scenes").stored(tmp_path)
    assert crash("matrix").run(recording, tmp_path, seed=1, failures_max=1).failures


def test_an_index_of_old_pages_beside_new_ones_is_found_out(crash: Any, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite finds nothing wrong with such a file, and would say that packs hold nothing."""
    index = importlib.import_module("hinet_node.vault.index")
    monkeypatch.setattr(index, "_is_as_left", lambda path: path.exists())
    recording = crash("scenes").stored(tmp_path)
    failures = crash("matrix").run(recording, tmp_path, seed=1, failures_max=1).failures
    assert failures
    assert "in memory" not in failures[0]


def test_a_head_that_stays_after_its_write_failed_is_found_out(crash: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be there at the next start, though storing said that it failed."""
    heads = importlib.import_module("hinet_node.vault.headstore").HeadStore
    monkeypatch.setattr(heads, "_end_doubt", lambda self: None)
    assert crash("errors").run(seed=1, failures_max=1).failures
