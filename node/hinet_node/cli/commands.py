"""The command table: name, where it lives, and its help line.

A command's module is imported only when the command runs or its own help is asked for, so the table is the whole cost
of `hinet-node --help`. A target `module:name` is either a plain function with typer annotations (one command) or a
`typer.Typer` (a group of commands). Other packages add commands through the entry-point group `hinet_node.commands`;
`extra_commands` finds them by reading the installed packages' metadata, without importing anything.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

ENTRY_POINT_GROUP = "hinet_node.commands"
METADATA_BYTES_MAX = 65_536


class Command(NamedTuple):
    """One row of the table. `section` is the heading it stands under in the help.

    `bare` is a function for the command without any argument: it runs without the parser, whose import takes longer
    than many an answer.
    """

    name: str
    target: str
    help: str
    section: str
    bare: str = ""


START, HOUSEHOLD, VAULT, LEARNING, MACHINE, MORE = (
    "Start here", "The household", "The vault", "Learning", "This machine", "More")
SECTIONS = (START, HOUSEHOLD, VAULT, LEARNING, MACHINE, MORE)

COMMANDS: tuple[Command, ...] = (
    Command("demo", "hinet_node.cli.demo_cmd:demo", "Three nodes on this machine learn about one person", START),
    Command("init", "hinet_node.cli.init_cmd:init", "Make a new identity; this machine is its first device", START),
    Command("join", "hinet_node.cli.join_cmd:join", "Make this machine a device of your household", START),
    Command("up", "hinet_node.cli.up_cmd:up", "Start the agent in the background", START),
    Command("run", "hinet_node.cli.run_cmd:run", "Run the agent in the foreground", START),
    Command("invite", "hinet_node.cli.invite_cmd:invite", "Let another machine join: prints a code", HOUSEHOLD),
    Command("status", "hinet_node.cli.status_options:status", "This device, its siblings and its vault on one screen",
            HOUSEHOLD, bare="hinet_node.cli.status_cmd:status"),
    Command("devices", "hinet_node.cli.devices_cmd:app", "List the household's devices, show or rename one", HOUSEHOLD),
    Command("revoke", "hinet_node.cli.revoke_cmd:revoke", "Put a device out of the household, for good", HOUSEHOLD),
    Command("identity", "hinet_node.cli.identity_cmd:app", "Show the identity; seal, rotate or export what it needs",
            HOUSEHOLD),
    Command("vault", "hinet_node.cli.vault_cmd:app", "Add, list, get and verify the household's files", VAULT),
    Command("train", "hinet_node.cli.train_cmd:train", "Teach the personal model what the vault's notes say", LEARNING),
    Command("adapters", "hinet_node.cli.adapters_cmd:app", "List what was learned; promote it or roll it back",
            LEARNING),
    Command("ask", "hinet_node.cli.ask_cmd:ask", "Ask the personal model a question", LEARNING),
    Command("base", "hinet_node.cli.base_cmd:app", "Show or import the base model", LEARNING),
    Command("tau", "hinet_node.cli.tau_cmd:app", "Task vectors: what a tuned model changed, as a small file", LEARNING),
    Command("compose", "hinet_node.cli.compose_cmd:app", "Combine task vectors of several tuned models", LEARNING),
    Command("experiment", "hinet_node.cli.experiment_cmd:app", "Run an experiment that ships with this program",
            LEARNING),
    Command("doctor", "hinet_node.cli.doctor_cmd:doctor", "Check this machine, and say how to mend what is wrong",
            MACHINE),
    Command("down", "hinet_node.cli.up_cmd:down", "Stop the agent", MACHINE),
    Command("logs", "hinet_node.cli.logs_cmd:logs", "What the agent wrote into its log", MACHINE),
    Command("service", "hinet_node.cli.service_cmd:app", "Start the agent at each login, and keep it running", MACHINE),
    Command("completion", "hinet_node.cli.completion_cmd:completion", "Print a script that completes what you type",
            MACHINE),
    Command("version", "hinet_node.cli.version_cmd:version", "Versions of this program and of what it speaks", MACHINE),
)

KNOWN_EXTRA = {"simnet": "Run many nodes on one machine, in virtual time", "image": "Build and flash edge images"}


def find(name: str) -> Command | None:
    """The command of that name: own ones first, then those of other packages."""
    for command in COMMANDS:
        if command.name == name:
            return command
    return next((command for command in extra_commands() if command.name == name), None)


def extra_commands() -> list[Command]:
    """Commands of other installed packages, by name. Reads metadata files only (a few ms); unreadable ones are skipped.

    `importlib.metadata` does the same but costs more to import than everything else that the help needs.
    """
    found: dict[str, Command] = {}
    own = {command.name for command in COMMANDS}
    for folder in sys.path:
        try:
            names = sorted(entry.name for entry in os.scandir(folder or ".") if entry.name.endswith(".dist-info"))
        except OSError:
            continue
        for package in names:
            for name, target in _entry_points(f"{folder or '.'}/{package}/entry_points.txt"):
                if name not in own and name not in found:
                    line = KNOWN_EXTRA.get(name, f"from {package.removesuffix('.dist-info').partition('-')[0]}")
                    found[name] = Command(name, target, line, MORE)
    return [found[name] for name in sorted(found)]


def _entry_points(file: str) -> list[tuple[str, str]]:
    try:
        with open(file, "rb") as stream:  # noqa: PTH123 - pathlib costs 5 ms of the help's time
            text = stream.read(METADATA_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return []
    pairs, inside = [], False
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            inside = line == f"[{ENTRY_POINT_GROUP}]"
        elif inside and "=" in line:
            name, _, target = line.partition("=")
            pairs.append((name.strip(), target.strip().partition(" ")[0]))
    return pairs
