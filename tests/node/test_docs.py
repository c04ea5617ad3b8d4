"""The guides: their blocks are run, in their order and in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from hinet_node.cli import tau_cmd, vault_cmd
from hinet_tiers import safetensors_file

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "vault.md").read_text()
TAU_TEXT = (ROOT / "docs" / "task-vectors.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r" # exit code (\d+)$")


def environment_at(tmp_path: Path) -> dict[str, str]:
    """`hinet-node` on the PATH, and a home of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "hinet-node").write_text(f'#!/bin/sh\nexec {sys.executable} -m hinet_node "$@"\n')
    (tools / "hinet-node").chmod(0o755)
    path = os.pathsep.join(part for part in sys.path if part.endswith(("protocol", "tiers", "node", "simnet")))
    return {**os.environ, "PYTHONPATH": path, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "HINET_HOME": str(tmp_path / "home")}


def run_blocks(text: str, place: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run every command of a guide; gives what each printed."""
    seen: dict[str, str] = {}
    for language, body in BLOCK.findall(text):
        assert language == "console", f"nobody runs a block of {language!r}"
        for line in body.splitlines():
            assert line.startswith("$ "), f"a console block holds commands only: {line!r}"
            wanted = EXIT_CODE.search(line)
            done = subprocess.run(["bash", "-c", line[2:]], cwd=place, env=environment, capture_output=True,
                                  text=True, errors="replace", timeout=60, check=False)
            assert done.returncode == (int(wanted[1]) if wanted else 0), f"{line}\n{done.stdout}{done.stderr}"
            seen[line] = seen.get(line, "") + done.stdout
    return seen


def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    environment = environment_at(tmp_path)
    place = tmp_path / "here"
    place.mkdir()
    try:
        seen = run_blocks(TEXT, place, environment)
    finally:
        subprocess.run([tmp_path / "tools" / "hinet-node", "down"], env=environment, capture_output=True, timeout=60,
                       check=False)
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


def write_model(folder: Path, seed: int) -> None:
    """A small model; the seed moves its values."""
    folder.mkdir(parents=True)
    source = np.random.default_rng(0)
    step = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (64, 32), "model.norm.weight": (32,)}
    shapes |= {f"model.layers.{layer}.mlp.up_proj.weight": (96, 32) for layer in range(3)}
    with safetensors_file.Writer(folder / "model.safetensors",
                                 {name: ("F32", shape) for name, shape in shapes.items()}) as writer:
        for name in sorted(shapes):
            values = source.standard_normal(shapes[name]) + seed * 0.01 * step.standard_normal(shapes[name])
            writer.add(name, values.astype("<f4").tobytes())
    (folder / "config.json").write_text('{"tie_word_embeddings": true}')


def test_every_block_of_the_guide_to_task_vectors_runs(tmp_path: Path) -> None:
    place = tmp_path / "here"
    write_model(place / "base", 0)
    write_model(place / "tuned", 1)
    seen = run_blocks(TAU_TEXT, place, environment_at(tmp_path))
    digest = seen["$ hinet-node base digest base"].split()[0]
    assert digest == seen["$ hinet-node base digest base/model.safetensors"].split()[0]
    assert digest in seen["$ hinet-node tau info fifth.tau"]
    assert "up_proj" not in seen["$ hinet-node tau verify fifth.tau --base base"]
    assert "norm.weight" in seen["$ hinet-node tau verify small.tau # exit code 7"], "the last block holds the damage"
    assert not (place / "none.tau").exists()
    assert not (tmp_path / "home").exists()


def test_every_command_on_task_vectors_is_in_the_guide() -> None:
    names = {command.name or getattr(command.callback, "__name__", "") for command in tau_cmd.app.registered_commands}
    assert len(names) >= 5
    assert [name for name in sorted(names) if f"tau {name}" not in TAU_TEXT] == []
