"""`hinet-node demo`: a whole household on this machine, from the first words to an answer on the pocket."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from hinet_node.cli import output

DISK_BYTES_MIN = 3 * 2**30
"""Three bases of 350 MB, adapters, replicas, and room for a training."""
CLEAN_UP_TIMEOUT_S = 10.0


def demo(dir_: Annotated[str, typer.Option("--dir", metavar="PATH", help="Where the nodes' homes go (default: a "
                                                                         "temporary folder).")] = "",
         keep: Annotated[bool, typer.Option("--keep", help="Leave the homes there afterwards.")] = False,
         quick: Annotated[bool, typer.Option("--quick", help="Eight facts instead of forty, fewer steps.")] = False,
         ) -> int:
    """Four nodes on this machine become a household, learn about one person, and the pocket answers."""
    from hinet_node.demo.play import Play
    from hinet_node.demo.report import SCHEMA, verdict

    started_s = time.monotonic()
    with _folder(dir_, keep) as folder, _terminated_as_interrupted():
        play = Play(folder, quick=quick, say=output.say, progress=output.progress)
        play.run()
    result = verdict(play.facts, play.steps, quick=quick, seconds=time.monotonic() - started_s)
    output.emit(SCHEMA, result, lambda: _told(result))
    return 0 if result["ok"] else 1


@contextmanager
def _folder(wanted: str, keep: bool) -> Iterator[Path]:
    """An empty folder for the homes; gone afterwards unless it is to be kept. Errors: `UsageError`, `NoSpace`."""
    from hinet_node.errors import NoSpace, UsageError

    folder = Path(wanted).absolute() if wanted else Path(tempfile.mkdtemp(prefix="hinet-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty, and the demo starts from nothing",
                         next_step="choose another --dir, or remove it")
    made = not folder.exists() or not wanted
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < DISK_BYTES_MIN:
            raise NoSpace(f"the demo needs {output.size_text(DISK_BYTES_MIN)} in {folder}, and "
                          f"{output.size_text(free_bytes)} are free", next_step="free some space, or choose --dir")
        yield folder
    finally:
        if keep:
            output.say(f"the homes are in {folder}; for example: hinet-node --home {folder}/pocket status")
        else:
            _remove(folder, itself=made)


def _remove(folder: Path, *, itself: bool) -> None:
    """Remove what is in the folder, and the folder. A worker whose command was interrupted may still be writing: again,
    until it has ended. Errors: `OSError` when that does not help."""
    deadline_s = time.monotonic() + CLEAN_UP_TIMEOUT_S
    while True:
        for entry in folder.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        try:
            if itself:
                folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite kill cleans up like Ctrl-C does."""
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _told(result: Mapping[str, Any]) -> Iterable[str]:
    from hinet_node.demo.report import bar_rows, table_rows

    rows, heading = table_rows(result)
    yield ""
    yield from output.table(rows, heading)
    yield ""
    example = result["example"]
    yield f"asked   {output.clean(example['question'])}"
    yield f"before  {output.clean(example['before'])}"
    yield f"after   {output.clean(example['after'])}"
    yield ""
    yield from output.table([[name.replace("_", " "), output.size_text(size)]
                             for name, size in result["bytes"].items()], ("BYTES", ""))
    swap = result["swap"]
    yield ""
    yield (f"adapter swapped in {swap['swap_ms']:.3f} ms (read in {swap['init_ms']:.0f} ms); "
           f"loading the model again takes {swap['reload_ms']:.0f} ms")
    yield ""
    for row in bar_rows(result):
        state = output.style(row[0], "green" if row[0] == "reached" else "red")
        yield f"{state}  {row[1]}{'  (' + row[2] + ')' if row[2] else ''}"
    yield f"{len(result['steps'])} steps in {result['seconds']:.0f} s"
