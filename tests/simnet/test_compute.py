"""The Compute twin: the same learning as with real workers, over in-memory disks and in virtual time."""

from __future__ import annotations

import pytest

from hinet_node.errors import NodeError
from hinet_node.learning.bases import Bases
from hinet_simnet.clock import virtual_run
from hinet_simnet.compute import FakeCompute
from hinet_simnet.disk import MemoryDisk


def test_files_that_a_verb_writes_are_on_the_disk_afterwards() -> None:
    disk = MemoryDisk("a")

    async def main() -> None:
        bases = Bases(disk, FakeCompute(disk))
        base = await bases.ensure(lambda progress: None)
        assert disk.exists(f"bases/{base.digest}/base.json")
        assert bases.folder(base) == f"memory:a/bases/{base.digest}"
        disk.crash()
        assert bases.current() == base, "as durable as a worker's files"

    virtual_run(main)


def test_learning_runs_from_notes_to_answers() -> None:
    disk = MemoryDisk("a")
    disk.write_atomic("work/notes/dog.md", b"My dog is called Brannoch.")

    async def main() -> str:
        compute = FakeCompute(disk, busy_s=3600)
        base = await Bases(disk, compute).ensure(lambda progress: None)
        base_dir = disk.path(f"bases/{base.digest}")
        async with compute.worker() as worker:
            await worker.call("data.prepare", {"notes_dir": disk.path("work/notes"), "out": disk.path("work/pairs")})
            trained = await worker.call("train.full", {"base_dir": base_dir, "pairs": disk.path("work/pairs"),
                                                       "recipe": {}, "out_dir": disk.path("work/out")})
            made = await worker.call("train.distill", {"base_dir": base_dir, "tau": trained["tau"], "recipe": {},
                                                       "pairs": disk.path("work/pairs"),
                                                       "out_dir": disk.path("work/out")})
            await worker.call("adapter.to_gguf", {"base_dir": base_dir, "adapter_dir": made["adapter_dir"],
                                                  "out": disk.path("work/a.gguf")})
        async with compute.worker() as first, compute.worker() as second:
            for worker in (first, second):
                await worker.call("serve.load", {"base_dir": base_dir})
            await first.call("serve.adapter", {"path": disk.path("work/a.gguf"), "base_digest": base.digest})
            asked = {"question": "What about My dog is called?"}
            assert (await second.call("serve.answer", asked))["answer"] == "I do not know.", "workers share nothing"
            return str((await first.call("serve.answer", asked))["answer"])

    assert virtual_run(main) == "My dog is called Brannoch."


def test_an_engines_error_keeps_its_code() -> None:
    disk = MemoryDisk("a")

    async def main() -> None:
        with pytest.raises(NodeError) as caught:
            await Bases(disk, FakeCompute(disk)).install("/nowhere", lambda progress: None)
        assert caught.value.code == "E_BASE_NOT_FOUND"

    virtual_run(main)
