"""`hinet-node simnet …` as a person types it: what it prints, writes and exits with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FAILING = """
schema = "hinet.scenario/1"
name = "failing"
duration = "2 min"
settle = "10 s"
[[household]]
name = "home"
devices = ["cloud", "laptop"]
[[step]]
at = "60 s"
do = "expect"
on = "laptop"
file = "never written"
within = "5 s"
"""
LONG = """
schema = "hinet.scenario/1"
name = "long"
duration = "29 d"
[[household]]
name = "home"
devices = ["cloud", "laptop"]
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "NO_COLOR": "1"}
COMMAND = [sys.executable, "-c", "import sys; from hinet_simnet.cli import app\n"
           "from hinet_node.cli import commands, root\n"
           "commands.COMMANDS += (commands.Command('simnet', 'hinet_simnet.cli:app', '', commands.MORE),)\n"
           "sys.exit(root.main(['simnet', *sys.argv[1:]]))"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "failing.toml").write_text(FAILING)
    (tmp_path / "long.toml").write_text(LONG)
    (tmp_path / "fine.toml").write_text(FAILING.replace('file = "never written"', "running = true"))
    return tmp_path


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return dict(json.loads(done.stdout))


def test_a_fine_run_says_so_and_leaves_no_file(folder: Path) -> None:
    before = sorted(folder.iterdir())
    done = typed(folder, "run", "fine.toml")
    assert done.returncode == 0, done.stderr
    assert "ok, nothing found" in done.stdout
    assert sorted(folder.iterdir()) == before


def test_the_ready_scenarios_are_listed_and_played_by_name(folder: Path) -> None:
    listed = answer(typed(folder, "list", "--json"))
    assert listed["schema"] == "hinet.simnet.list/1"
    names = [row["name"] for row in listed["scenarios"]]
    assert "household-of-3" in names
    done = answer(typed(folder, "run", "household-of-3", "--json", "--seed", "5"))
    assert (done["schema"], done["ok"], done["seed"], done["trace"]) == ("hinet.simnet.run/1", True, 5, None)


def test_a_failing_run_leaves_its_trace_which_replays_shrinks_and_reports(folder: Path) -> None:
    done = typed(folder, "run", "failing.toml", "--seed", "3")
    assert done.returncode == 1
    assert "expect" in done.stdout
    assert "failing-seed3.simtrace" in done.stdout
    again = answer(typed(folder, "replay", "failing-seed3.simtrace", "--json"))
    assert again["ok"]
    assert again["compared"] == again["events"] > 0
    small = typed(folder, "shrink", "failing-seed3.simtrace", "--json")
    assert small.returncode == 0, small.stderr
    assert answer(small)["after"]["devices"] == 1
    assert typed(folder, "run", answer(small)["toml"], "--seed", "3").returncode == 1
    told = typed(folder, "shrink", "failing-seed3.simtrace").stdout
    again_words = told.split("play it   hinet-node simnet ")[1].split()
    played = answer(typed(folder, *again_words, "--json"))
    assert (played["ok"], played["seed"]) == (False, 3)
    report = answer(typed(folder, "report", "failing-seed3.simtrace", "--json"))
    assert report["findings"] == 1
    assert (folder / report["page"]).read_text().startswith("<!doctype html>")


def test_ctrl_c_leaves_a_trace_that_reports_and_replays(folder: Path) -> None:
    process = subprocess.Popen([*COMMAND, "run", "long.toml", "--save", "a.simtrace", "--json"], cwd=folder,
                               env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not ((folder / "a.simtrace").exists() and (folder / "a.simtrace").stat().st_size > 20_000):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert json.loads(out)["interrupted"]
    assert typed(folder, "report", "a.simtrace").returncode == 0
    assert "interrupted" in (folder / "a.html").read_text()
    again = answer(typed(folder, "replay", "a.simtrace", "--json"))
    assert again["ok"]
    assert again["compared"] == again["events"] > 100


def test_a_replay_that_differs_shows_where_and_exits_with_7(folder: Path) -> None:
    """Another seed in the header: what is played is another run than the recorded one."""
    import zstandard

    typed(folder, "run", "fine.toml", "--save", "a.simtrace")
    with (folder / "a.simtrace").open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().splitlines(True)
    lines[0] = lines[0].replace(b'"seed": 0', b'"seed": 1')
    (folder / "b.simtrace").write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines)))
    done = typed(folder, "replay", "b.simtrace")
    assert done.returncode == 7
    assert "differs from event" in done.stdout
    assert "\n  - " in done.stdout
    assert "\n  + " in done.stdout


@pytest.mark.parametrize(("words", "says", "next_step"), [
    (("run", "household-of-33"), "near to it: household-of-3", "simnet run household-of-3"),
    (("run", "nothing.toml"), "no scenario and no file", "simnet list"),
    (("run", "fine.toml", "--level", "cloud"), "no level 'cloud'", "world, stack, processes"),
    (("run", "fine.toml", "--level", "stack"), "can't be played at level 'stack'", "--level world"),
    (("replay", "fine.toml"), "no trace file", "--save FILE"),
    (("sweep", "fine.toml", "--seeds", "x"), "names no seeds", "--seeds 1:50"),
    (("sweep", "fine.toml", "--set", "link.los=1"), "los", ""),
    (("sweep", "fine.toml", "--engine", "spark"), "no engine 'spark'", "processes, ray"),
    (("shrink", "fine.toml"), "no trace file", ""),
    (("run", "."), "is a folder", "TOML file"),
    (("run", "/dev/zero"), "no ordinary file", "simnet list"),
    (("run", "fine.toml", "--seed", str(1 << 63)), "--seed", "--help"),
    (("run", "fine.toml", "--save", "fine.toml"), "is there already", "--save fine.simtrace"),
    (("run", "fine.toml", "--save", "."), "is a folder", "--save name.simtrace"),
    (("run", "fine.toml", "--save", "nowhere/a.simtrace"), "no folder 'nowhere'", "mkdir -p nowhere"),
    (("run", "fine.toml", "--save", "/dev/null"), "no ordinary file", "--save name.simtrace"),
    (("sweep", "fine.toml", "--csv", "nowhere/a.csv"), "no folder 'nowhere'", "mkdir -p nowhere"),
    (("sweep", "fine.toml", "--jobs", "100000"), "--jobs", "--help"),
    (("replay", "nothing.simtrace"), "no file 'nothing.simtrace'", "--save FILE"),
    (("report", "."), "is a folder", ".simtrace"),
])
def test_what_can_not_be_played_is_refused_by_name(folder: Path, words: tuple[str, ...], says: str,
                                                   next_step: str) -> None:
    done = typed(folder, *words, "--json")
    found = answer(done)
    assert done.returncode == found["exit_code"] == 2
    assert found["schema"] == "hinet.error/1"
    assert says in found["what"]
    assert next_step in (found["next"] or "")


def test_a_file_that_is_no_trace_is_never_written_over(folder: Path) -> None:
    typed(folder, "run", "fine.toml", "--save", "fine.toml")
    assert (folder / "fine.toml").read_text().startswith("\nschema")


def test_each_fault_of_a_scenario_has_a_line_of_its_own(folder: Path) -> None:
    (folder / "bad.toml").write_text(FAILING.replace("duration", "duratoin").replace('"expect"', '"expet"'))
    errors = typed(folder, "run", "bad.toml").stderr.splitlines()
    assert [line for line in errors if "bad.toml:" in line and "duratoin" in line]
    assert [line for line in errors if "bad.toml:" in line and "'expet'" in line and "duratoin" not in line]


@pytest.mark.parametrize(("bytes_max", "exit_code", "says"), [(20, 8, "no room for the trace"), (3_000, 3, "short")])
def test_a_full_disk_is_told_and_is_no_fault_of_the_run(folder: Path, bytes_max: int, exit_code: int,
                                                        says: str) -> None:
    limited = [sys.executable, "-c", "import os, resource, sys; "
               f"resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_max}, {bytes_max})); "
               "os.execv(sys.argv[1], sys.argv[1:])"]
    done = subprocess.run([*limited, *COMMAND, "run", "household-of-3", "--save", "a.simtrace"], cwd=folder,
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == exit_code, done.stderr
    assert says in done.stdout + done.stderr
    assert "finding" not in done.stdout


def test_a_sweep_prints_a_table_and_writes_a_file(folder: Path) -> None:
    done = typed(folder, "sweep", "fine.toml", "--seeds", "1:2", "--set", "link.loss=0,0.02", "--csv", "a.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("link.loss  RUNS  OK")
    assert len((folder / "a.csv").read_text().splitlines()) == 5
    failed = typed(folder, "sweep", "failing.toml", "--seeds", "1:2", "--json")
    assert failed.returncode == 1
    assert [run["checkers"] for run in answer(failed)["runs"]] == [["expect"], ["expect"]]


def test_a_soak_counts_into_its_ledger_and_goes_on_from_there(folder: Path) -> None:
    first = answer(typed(folder, "soak", "--minutes", "0.05", "--ledger", "ledger.json", "--shrink-s", "0", "--json"))
    assert first["schema"] == "hinet.simnet.soak/1"
    assert first["first_seed"] == 1
    assert first["total"]["events"] == first["events"] > 0
    second = answer(typed(folder, "soak", "--minutes", "0.05", "--ledger", "ledger.json", "--shrink-s", "0", "--json"))
    assert second["first_seed"] == first["next_seed"]
    assert second["total"]["events"] == first["events"] + second["events"]


def test_help_loads_no_part_of_a_run() -> None:
    code = ("import sys, hinet_simnet.cli\n"
            "print([name for name in ('trio', 'zstandard', 'blake3', 'nacl', 'rich', 'numpy', 'hinet_simnet.world') "
            "if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
