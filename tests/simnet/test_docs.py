"""The tutorial's blocks are run, in their order and in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "simnet.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "hinet_simnet.pytest_plugin"],
            "python": [sys.executable]}


def test_every_block_of_the_tutorial_runs(tmp_path: Path) -> None:
    path = os.pathsep.join(part for part in sys.path if part.endswith(("protocol", "tiers", "node", "simnet")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran, used = [], set()
    for language, body in BLOCK.findall(TEXT):
        if language == "python":
            name = re.match(r"# file: (\w+\.py)\n", body)
            assert name, f"a python block begins with its file's name: {body[:60]!r}"
            (tmp_path / name[1]).write_text(body)
            continue
        assert language == "console", f"nobody runs a block of {language}"
        for line in body.splitlines():
            assert line.startswith("$ "), f"a console block holds commands only: {line!r}"
            program, *arguments = shlex.split(line[2:])
            done = subprocess.run([*PROGRAMS[program], *arguments], cwd=tmp_path, env=environment, capture_output=True,
                                  text=True, timeout=120, check=False)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            ran.append(line)
            used |= {argument for argument in arguments if argument.endswith(".py")}
    assert used == {path.name for path in tmp_path.glob("*.py")}, "every file is used by a command"
    assert len(ran) >= 6
