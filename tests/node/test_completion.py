"""Completion, in the real shells: bash always, zsh and fish where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hinet_node.belonging.membership import Membership
from hinet_node.cli import commands, root
from hinet_node.cli.completion_scripts import bash_script, fish_script, zsh_script
from hinet_node.cli.completion_words import all_words
from hinet_node.real.disk import RealDisk
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_protocol.chain import make_device_add

NASTY = "$(touch stolen) `touch stolen` \"x\" 'y' *"


class Shells:
    """A home with devices, `hinet-node` on the PATH, and the scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        for sub in ("bin", "empty"):
            (folder / sub).mkdir()
        program = folder / "bin" / "hinet-node"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hinet_node "$@"\n')
        program.chmod(0o755)
        words = all_words()
        for shell, script in (("bash", bash_script(words)), ("zsh", zsh_script(words)), ("fish", fish_script(words))):
            (folder / shell).write_text(script)
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINET_HOME": str(self.home),
                            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}

    def run(self, line: list[str]) -> list[str]:
        done = subprocess.run(line, capture_output=True, text=True, env=self.environment, cwd=self.folder / "empty",
                              check=True, stdin=subprocess.DEVNULL)
        assert done.stderr == ""
        return sorted(done.stdout.splitlines())

    def bash(self, *words: str) -> list[str]:
        """What TAB offers after these words, the last of them half typed."""
        script = (f'set -u; source {self.folder / "bash"}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hinet_node; '
                  '[[ ${#COMPREPLY[@]} == 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"')
        return self.run(["bash", "--norc", "-c", script, "bash", "hinet-node", *words])

    def fish(self, *words: str) -> list[str]:
        lines = self.run(["fish", "--no-config", "-c", f'source {self.folder / "fish"}; complete -C "$argv"', "--",
                          " ".join(("hinet-node", *words))])
        return sorted(line.partition("\t")[0] for line in lines)


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Shells:
    shells = Shells(tmp_path_factory.mktemp("shells"))
    assert root.main(["--home", str(shells.home), "init", "--name", "first", "--words-file",
                      str(shells.folder / "words")]) == 0
    disk, randomness = RealDisk(shells.home), SystemRandomness()
    membership = Membership.load(disk, randomness, SystemClock())
    for name in ("kitchen pi", "kiosk", NASTY):
        membership.take_in([make_device_add(
            membership.chain(), membership.keys, name=name, public=randomness.draw(32),
            box_public=randomness.draw(32), role="keeper", tier="pocket", time_s=1)])
    return shells


def test_bash_completes_commands_subcommands_and_options(shells: Shells) -> None:
    assert shells.bash("re") == ["revoke"]
    assert set(shells.bash("")) >= {command.name for command in commands.COMMANDS}
    assert "--json" in shells.bash("-")
    assert "--json" not in shells.bash("")
    assert set(shells.bash("service", "")) >= {"install", "uninstall", "restart", "status", "logs"}
    assert shells.bash("vault", "ad") == ["add"]
    assert shells.bash("vault", "add", "--un") == ["--under"]
    assert shells.bash("vault", "add", "pat") == [], "a file's name: the shell's own business"
    assert shells.bash("invite", "--role", "k") == ["keeper"]
    assert shells.bash("completion", "f") == ["fish"]
    assert shells.bash("--home", "x", "--json", "vault", "ve") == ["verify"]
    assert shells.bash("status", "--ch") == ["--check"]
    assert shells.bash("--home", "") == []


def test_bash_completes_names_of_devices_and_never_runs_them(shells: Shells) -> None:
    for words in (["revoke"], ["devices", "show"]):
        assert shells.bash(*words, "ki") == sorted(["kiosk", "kitchen\\ pi"])
        assert shells.bash(*words, "kitchen\\ ") == ["kitchen\\ pi"]
        [nasty] = shells.bash(*words, "$")
        assert shells.run(["bash", "-c", f"printf '%s' {nasty}"]) == [NASTY]
    assert list((shells.folder / "empty").iterdir()) == []


def test_names_are_asked_of_the_home_that_was_typed(shells: Shells) -> None:
    assert shells.bash("--home", str(shells.folder / "nowhere"), "revoke", "") == []


def test_fish_and_zsh_read_their_scripts_where_they_are_installed(shells: Shells) -> None:
    """Where neither is there, the scripts must at least name every command."""
    for shell in ("fish", "zsh"):
        text = (shells.folder / shell).read_text()
        assert all(command.name in text for command in commands.COMMANDS)
    if shutil.which("zsh"):
        assert shells.run(["zsh", "-n", str(shells.folder / "zsh")]) == []
    if shutil.which("fish"):
        assert shells.fish("rev") == ["revoke"]
        assert "kitchen pi" in [name.replace("\\", "") for name in shells.fish("revoke", "kit")]
        assert "install" in shells.fish("service", "")
        assert "--under" in shells.fish("vault", "add", "--un")
    assert list((shells.folder / "empty").iterdir()) == []


def test_an_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.main(["completion", "tcsh"]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err
