"""All that can be typed: commands, their subcommands and options, read from the parsers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hinet_node.cli import commands, root
from hinet_node.errors import NodeError

GLOBAL_OPTIONS = (("--home", "the home folder", True), ("--json", "one JSON object on stdout", False),
                  ("--progress", "how far long work is, also off a terminal", False),
                  ("--debug", "show tracebacks", False), ("--help", "what there is", False))
CHOICES = {"--role": ("admin", "member", "keeper"), "--tier": ("cloud", "laptop", "pocket"),
           "--dtype": ("float32", "bf16")}
ARGUMENTS = {"completion": ("bash", "zsh", "fish")}
TAKES_DEVICE = ("revoke", "devices show", "devices rename")


@dataclass(frozen=True)
class Words:
    """What may follow `path` (`vault add`, or `` at the root): rows of name and help, and options of name, help and
    whether a value follows."""

    path: str
    subcommands: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str, bool], ...]

    @property
    def is_group(self) -> bool:
        return bool(self.subcommands)


def all_words() -> list[Words]:
    """The root first, then each command and subcommand in the order of the help."""
    table = [*commands.COMMANDS, *commands.extra_commands()]
    found = [Words("", tuple((command.name, command.help) for command in table), GLOBAL_OPTIONS)]
    for command in table:
        try:
            parser = root.parser_of(command, root.load(command, command.target))
        except (NodeError, ImportError):
            continue  # another package's command, which can't be loaded here: its name is there all the same
        found += _words(command.name, parser)
    return found


def _words(path: str, parser: Any) -> list[Words]:
    children: dict[str, Any] = {name: child for name, child in getattr(parser, "commands", {}).items()
                                if not child.hidden}
    options = [(name, _line(getattr(option, "help", "")), not getattr(option, "is_flag", False))
               for option in parser.params for name in (*option.opts, *option.secondary_opts)
               if name.startswith("--") and not getattr(option, "hidden", False)]
    own = Words(path, tuple((name, _line(child.help or "")) for name, child in children.items()),
                (*options, *GLOBAL_OPTIONS))
    return [own, *(words for name, child in children.items() for words in _words(f"{path} {name}", child))]


def _line(text: str | None) -> str:
    first = " ".join((text or "").split("\n\n")[0].split())
    return first if len(first) <= 60 else first[:59] + "…"
