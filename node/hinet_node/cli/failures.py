"""From an exception to one clear line, the next step, and an exit code (SPEC "Exit codes").

`error: what happened (why)` and `next: what to type` go to stderr; with `--json` one `hinet.error/1` object goes to
stdout instead. A traceback is for the log, or for the terminal with `--debug` or HINET_DEBUG=1.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback

from hinet_node.cli import context
from hinet_node.errors import NodeError, NoSpace
from hinet_node.foreign_errors import as_node_error as in_node_terms
from hinet_node.foreign_errors import is_foreign, with_exit_code

INTERRUPTED = 130


def report(error: BaseException) -> int:
    """Say what happened; returns the exit code."""
    error = _innermost(error)
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return 0
    failure = as_node_error(error)
    if context.current.debug:
        traceback.print_exception(error, file=sys.stderr)
    if context.current.json:
        sys.stdout.write(json.dumps(failure.as_json(), ensure_ascii=False) + "\n")
        sys.stdout.flush()
    else:
        sys.stderr.write(_lines(failure))
    return failure.exit_code


def as_node_error(error: BaseException) -> NodeError:
    """The error in the node's terms; an unexpected one is written to the log first."""
    if isinstance(error, NodeError):
        return error
    if is_foreign(error):
        return in_node_terms(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's, whichever click it carries
        return with_exit_code(NodeError(_one_line(error.format_message()), next_step=_help_of(error),
                                         code="E_USAGE"), 2)
    if isinstance(error, OSError):
        return _os_error(error)
    where = _write_log(error)
    failure = in_node_terms(error)
    failure.next_step = f"see {where}" if where else "run it again with --debug"
    return failure


def _os_error(error: OSError) -> NodeError:
    name = error.filename if isinstance(error.filename, str) else None
    what = f"{name}: {error.strerror}" if name and error.strerror else str(error)
    if error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG):
        return NoSpace(f"{what}; nothing was written", next_step="free some space, or choose another --home")
    if isinstance(error, FileNotFoundError):
        return NodeError(what, next_step="check the path", code="E_NO_SUCH_FILE")
    if isinstance(error, PermissionError):
        return NodeError(what, next_step="check who owns it: ls -ld PATH", code="E_PERMISSION")
    return NodeError(what)


def _innermost(error: BaseException) -> BaseException:
    """trio wraps errors in groups; the first one that is meant for a person stands for all."""
    while isinstance(error, BaseExceptionGroup):
        chosen = [part for part in error.exceptions if isinstance(part, (NodeError, BaseExceptionGroup))]
        error = (chosen or list(error.exceptions))[0]
    return error


def _lines(failure: NodeError) -> str:
    from hinet_node.cli import output

    text = output.style("error:", "red", "bold", stream=sys.stderr) + f" {output.clean(_what(failure))}\n"
    if failure.next_step:
        text += output.style("next:", "bold", stream=sys.stderr) + f" {output.clean(_one_line(failure.next_step))}\n"
    return text


def _what(failure: NodeError) -> str:
    faults = failure.what.splitlines() if failure.lines_kept else [failure.what]
    return "\n       ".join(_one_line(fault) for fault in faults)


def _help_of(error: BaseException) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    return f"{path or 'hinet-node'} --help"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _write_log(error: BaseException) -> str | None:
    """Append the traceback to `log/errors.log` of an existing home; None when that can't be done."""
    home = context.home_path()
    if not os.path.isdir(home):  # noqa: PTH112
        return None
    folder = os.path.join(home, "log")  # noqa: PTH118
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        path = os.path.join(folder, "errors.log")  # noqa: PTH118
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as log:
            traceback.print_exception(error, file=log)
    except OSError:
        return None
    return path
