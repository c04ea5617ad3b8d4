"""The tutorial's blocks are run, in their order and in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from hinet_simnet.cli import app

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "simnet.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "hinet_simnet.pytest_plugin"],
            "python": [sys.executable], "hinet-node": [sys.executable, "-m", "hinet_node"]}
EXIT_CODE = re.compile(r" # exit code (\d+)$")


def test_every_block_of_the_tutorial_runs(tmp_path: Path) -> None:
    path = os.pathsep.join(part for part in sys.path if part.endswith(("protocol", "tiers", "node", "simnet")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran, used, written = [], set(), set()
    for language, body in BLOCK.findall(TEXT):
        if language in ("python", "toml"):
            name = re.match(r"# file: (\w+\.(?:py|toml))\n", body)
            assert name, f"a {language} block begins with its file's name: {body[:60]!r}"
            (tmp_path / name[1]).write_text(body)
            written.add(name[1])
            continue
        assert language == "console", f"nobody runs a block of {language}"
        for line in body.splitlines():
            assert line.startswith("$ "), f"a console block holds commands only: {line!r}"
            program, *arguments = shlex.split(line[2:], comments=True)
            done = subprocess.run([*PROGRAMS[program], *arguments], cwd=tmp_path, env=environment, capture_output=True,
                                  text=True, timeout=120, check=False)
            wanted = EXIT_CODE.search(line)
            assert done.returncode == (int(wanted[1]) if wanted else 0), f"{line}\n{done.stdout}{done.stderr}"
            ran.append(line)
            used |= {argument for argument in arguments if argument.endswith((".py", ".toml"))}
    assert used >= written, "every file is used by a command"
    told = {line.split()[3] for line in ran if line.startswith("$ hinet-node simnet ")}
    assert told == {command.name for command in app.registered_commands}, "every command is shown"
