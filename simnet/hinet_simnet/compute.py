"""The in-memory twin of the Compute port: the fake engine's verbs, at once, over a node's in-memory disk.

The engine (`hinet_tiers.fake`) works on real files. So a call that names files gets a scratch folder: what its
arguments name is copied there from the node's disk, and what it wrote is written back through the disk, durably and in
the order of names, as a worker's files are. A call that names none runs as it is.
Leaves processes, limits and crashes to `hinet_node.real.compute`.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from hinet_node.errors import WorkerFailed
from hinet_node.ports import Disk
from hinet_tiers import fake
from hinet_tiers.backend import Verb
from hinet_tiers.errors import TierError


class FakeCompute:
    """`Compute` over one node's disk. `busy_s` is how long each call takes, in the clock that trio runs by. `verbs` are
    the engine's: the fake one's, or those of `hinet_simnet.learning`."""

    def __init__(self, disk: Disk, *, busy_s: float = 0.0, verbs: Mapping[str, Verb] = fake.VERBS) -> None:
        self._disk = disk
        self._busy_s = busy_s
        self._verbs = verbs

    def worker(self, *, memory_bytes_max: int | None = None) -> AbstractAsyncContextManager[FakeWorker]:
        """A worker; limits are not simulated."""
        return self._run()

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[FakeWorker]:
        await trio.lowlevel.checkpoint()
        yield FakeWorker(self._disk, self._busy_s, self._verbs)


class FakeWorker:
    """One worker: its served model lives as long as it does."""

    def __init__(self, disk: Disk, busy_s: float, verbs: Mapping[str, Verb]) -> None:
        self._disk = disk
        self._busy_s = busy_s
        self._verbs = verbs
        self._prefix = disk.path("")
        self._served: dict[str, Any] = {}

    async def call(self, verb: str, args: Mapping[str, Any], *,
                   on_progress: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
        """As the port says. Errors: `WorkerFailed` with the engine's code."""
        def progress(step: int, total: int, note: str = "", **more: Any) -> None:
            if on_progress is not None:
                on_progress({"step": step, "total": total, "note": note, **more})

        await trio.sleep(self._busy_s)
        if not any(self._is_file(value) for value in args.values()):
            return self._run(verb, dict(args), progress)
        with tempfile.TemporaryDirectory(prefix="hinet-simnet-") as folder:
            scratch = Path(folder)
            inside = {name: self._bring(value, scratch) for name, value in args.items()}
            before = {path: path.read_bytes() for path in scratch.rglob("*") if path.is_file()}
            try:
                result = self._run(verb, inside, progress)
            except WorkerFailed as error:
                error.what = self._named(error.what, scratch)
                error.args = (error.what, *error.args[1:])
                raise
            finally:
                self._take_back(scratch, before)
            return {name: self._named(value, scratch) for name, value in result.items()}

    def _run(self, verb: str, args: dict[str, Any], progress: Callable[..., None]) -> dict[str, Any]:
        """One verb of the engine, with this worker's served model in the engine's place for it."""
        fake._served.clear()
        fake._served.update(self._served)
        try:
            return dict(self._verbs[verb](args, progress))
        except TierError as error:
            raise WorkerFailed.from_frame({"code": error.code, "exit_code": error.exit_code, "message": str(error)},
                                          verb) from error
        finally:
            self._served = dict(fake._served)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    def _is_file(self, value: Any) -> bool:
        if isinstance(value, list):
            return any(self._is_file(one) for one in value)
        return isinstance(value, str) and value.startswith(self._prefix + "/")

    def _bring(self, value: Any, scratch: Path) -> Any:
        """An argument with the files that it names copied into the scratch folder."""
        if not self._is_file(value):
            return value
        if isinstance(value, list):
            return [self._bring(one, scratch) for one in value]
        name = value[len(self._prefix) + 1:]
        self._copy(name, scratch / name)
        return str(scratch / name)

    def _copy(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.write_bytes(self._disk.read(name))
        except FileNotFoundError:
            return
        except IsADirectoryError:
            target.mkdir(exist_ok=True)
            for inner in self._disk.list(name):
                self._copy(f"{name}/{inner}", target / inner)

    def _take_back(self, scratch: Path, before: Mapping[Path, bytes]) -> None:
        for path in sorted(scratch.rglob("*")):
            if path.is_file() and before.get(path) != path.read_bytes():
                self._disk.write_atomic(str(path.relative_to(scratch)), path.read_bytes())

    def _named(self, value: Any, scratch: Path) -> Any:
        return value.replace(str(scratch), self._prefix) if isinstance(value, str) else value
