"""The root of the command line: global options, help, dispatch.

The root is written by hand so that `--help` imports no parser; each command's own options are typer's. Global options
(`--home`, `--json`, `--progress`, `--debug`) may stand anywhere before a bare `--`.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

from hinet_node.cli import commands, context

if TYPE_CHECKING:
    import typer

USAGE_EXIT_CODE = 2
USAGE = "hinet-node [--home PATH] [--json] COMMAND [ARGUMENTS]"
TAGLINE = "One personal model, kept alive on all of its owner's machines and nowhere else."
GLOBAL_EPILOG = "Also: --home PATH, --json, --progress, --debug (see hinet-node --help)."
GLOBAL_HELP = """\
Options, anywhere on the line:
  --home PATH   the home folder (default: $HINET_HOME, then your data folder)
  --json        print one JSON object with a `schema` field on stdout
  --progress    how far long work is, in plain lines off a terminal too
  --debug       show the traceback of an unexpected error
  --help        this text, or a command's own: hinet-node COMMAND --help
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; every error ends as one line, the next step, and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal can't show is escaped, no error
    given = sys.argv[1:] if arguments is None else arguments
    context.current = context.Context(debug=os.environ.get("HINET_DEBUG") == "1")
    try:
        code = _run(_take_global_options(given))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (`| head`) has left: say nothing, and keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:  # trio puts Ctrl-C into a group
        from hinet_node.cli import failures

        return failures.report(error)


def help_text() -> str:
    """The whole of `hinet-node --help`."""
    table = [*commands.COMMANDS, *commands.extra_commands()]
    width = max(len(command.name) for command in table)
    lines = [f"Usage: {USAGE}", "", TAGLINE]
    for section in commands.SECTIONS:
        rows = [f"  {command.name:<{width}}  {command.help}" for command in table if command.section == section]
        if rows:
            lines += ["", f"{section}:", *rows]
    return "\n".join([*lines, "", GLOBAL_HELP])


def _take_global_options(given: list[str]) -> list[str]:
    """Take the global options out of the line and keep the rest in order."""
    kept: list[str] = []
    position = 0
    while position < len(given):
        argument = given[position]
        position += 1
        if argument == "--":
            return [*kept, *given[position - 1:]]
        if argument == "--json":
            context.current.json = True
        elif argument == "--progress":
            context.current.progress = True
        elif argument == "--debug":
            context.current.debug = True
        elif argument == "--home" or argument.startswith("--home="):
            value = argument.removeprefix("--home=") if argument != "--home" else None
            if value is None and position < len(given):
                value = given[position]
                position += 1
            if not value:
                _refuse("--home needs a folder", "hinet-node --home PATH COMMAND")
            context.current.home_option = value
        else:
            kept.append(argument)
    return kept


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h") or arguments == ["help"]:
        sys.stdout.write(help_text())
        return 0
    name, rest = arguments[0], arguments[1:]
    if name == "help":
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("--version", "-V"):
        name = "version"
    if name.startswith("-"):
        _refuse(f"there is no option {name}", "hinet-node --help")
    command = commands.find(name)
    if command is None:
        _refuse_unknown(name)
        return 2
    context.current.command = name
    return run_command(command, rest)


def run_command(command: commands.Command, rest: list[str]) -> int:
    """Import the command's module and run it; returns its exit code."""
    target = load(command, command.target if rest else command.bare or command.target)
    if not rest and not getattr(getattr(target, "__code__", None), "co_argcount", 1):
        target()  # nothing to parse, so the parser (and its 100 ms) is not loaded: `status` answers at once
        return 0
    return _parse_and_run(command, target, rest)


def load(command: commands.Command, target: str) -> Any:
    """The function or `typer.Typer` that a target names. Errors: `UsageError` when it is not installed."""
    import importlib

    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name != module_name:
            raise
        _refuse(f"{command.name} is not part of this installation", "hinet-node version")
    return getattr(module, attribute)


def parser_of(command: commands.Command, target: Any) -> Any:
    """The parser of a command: click's, as typer makes it."""
    import typer

    if isinstance(target, typer.Typer):
        app = target
        app.info.epilog = GLOBAL_EPILOG
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(command.name, epilog=GLOBAL_EPILOG)(target)
    return typer.main.get_command(app)


def _parse_and_run(command: commands.Command, target: Any, rest: list[str]) -> int:
    import typer

    parser = parser_of(command, target)
    if isinstance(target, typer.Typer) and not rest and not getattr(parser, "invoke_without_command", False):
        parser.main(args=["--help"], prog_name=f"hinet-node {command.name}", standalone_mode=False)
        return USAGE_EXIT_CODE
    try:
        outcome: object = parser.main(args=rest, prog_name=f"hinet-node {command.name}", standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return outcome if isinstance(outcome, int) else 0


def group(help_line: str) -> typer.Typer:
    """A `typer.Typer` for a command with subcommands, set up like every other command."""
    import typer

    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                       help=help_line)


def _refuse(what: str, next_step: str) -> None:
    from hinet_node.errors import UsageError

    raise UsageError(what, next_step=next_step)


def _refuse_unknown(name: str) -> None:
    import difflib

    names = [command.name for command in (*commands.COMMANDS, *commands.extra_commands())]
    near = difflib.get_close_matches(name, names, n=1)
    _refuse(f"there is no command {name!r}", f"hinet-node {near[0]}" if near else "hinet-node --help")
