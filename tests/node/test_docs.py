"""The vault's guide: its blocks are run, in their order and in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hinet_node.cli import vault_cmd

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "vault.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r" # exit code (\d+)$")


def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "hinet-node").write_text(f'#!/bin/sh\nexec {sys.executable} -m hinet_node "$@"\n')
    (tools / "hinet-node").chmod(0o755)
    place = tmp_path / "here"
    place.mkdir()
    path = os.pathsep.join(part for part in sys.path if part.endswith(("protocol", "tiers", "node", "simnet")))
    environment = {**os.environ, "PYTHONPATH": path, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
                   "HINET_HOME": str(tmp_path / "home")}
    seen: dict[str, str] = {}
    try:
        for language, body in BLOCK.findall(TEXT):
            assert language == "console", f"nobody runs a block of {language!r}"
            for line in body.splitlines():
                assert line.startswith("$ "), f"a console block holds commands only: {line!r}"
                wanted = EXIT_CODE.search(line)
                done = subprocess.run(["bash", "-c", line[2:]], cwd=place, env=environment, capture_output=True,
                                      text=True, errors="replace", timeout=60, check=False)
                assert done.returncode == (int(wanted[1]) if wanted else 0), f"{line}\n{done.stdout}{done.stderr}"
                seen[line] = seen.get(line, "") + done.stdout
    finally:
        subprocess.run([tools / "hinet-node", "down"], env=environment, capture_output=True, timeout=60, check=False)
    assert seen["$ hinet-node vault cat notes/people.md"] == "Wenna's brother is called Tobrin.\n"
    assert "--confirm" in seen["$ hinet-node vault watch"]
    assert "notes/dog.md" in seen["$ hinet-node vault ls notes"], "an emptied folder emptied nothing"
    assert "held" not in seen["$ hinet-node vault watch --list"]
    assert (place / "copy/notes/dog.md").read_text() == "Bello is a very old beagle.\n"
    assert (place / "everything/notes/minka.md").exists()


def test_every_command_of_the_vault_is_in_the_guide() -> None:
    names = {command.name or getattr(command.callback, "__name__", "").replace("_", "-")
             for command in vault_cmd.app.registered_commands}
    names |= {group.name for group in vault_cmd.app.registered_groups}
    assert len(names) > 10
    assert [name for name in sorted(names) if not re.search(rf"\bvault {name}\b|`{name}`", TEXT)] == []
