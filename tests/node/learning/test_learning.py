"""Learning flows from the cloud to the pocket, with real worker processes (fake engine) and signed revisions."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, NodeError, UsageError
from hinet_node.learning.training import condensed


def test_what_the_cloud_learned_is_answered_by_the_pocket(household: Any) -> None:
    async def main() -> None:
        vector = await household.train("cloud")
        adapter = await household.train("laptop")
        async with household.running("pocket") as pocket:
            before = await pocket("ask", question="What about My dog is called?", retrieval=False)
            assert (before["answer"], before["revision"], before["notes"]) == ("I do not know.", None, [])
            promoted = await pocket("adapters.promote", revision=adapter)
            assert promoted["loads"] == 1, "the base is not loaded again for a swap"
            after = await pocket("ask", question="What about My dog is called?", retrieval=False)
            assert "Brannoch" in after["answer"]
            assert after["revision"] == adapter
            listed = await pocket("adapters.list")
        assert [row["id"] for row in listed["revisions"]] == [vector, adapter]
        assert listed["revisions"][1]["parents"] == [vector]
        assert listed["served"] == adapter
        assert listed["refused"] == {}

    trio.run(main)


def test_the_passport_names_base_recipe_data_and_maker(household: Any) -> None:
    async def main() -> None:
        vector = await household.train("cloud")
        await household.train("laptop")
        async with household.running("laptop") as laptop:
            listed = {row["id"]: row for row in (await laptop("adapters.list"))["revisions"]}
        first = listed[vector]
        (second,) = [row for row in listed.values() if row["id"] != vector]
        assert first["device_name"] == "cloud"
        assert first["tier"] == "cloud"
        assert set(first["artifacts"]) == {"delta.tau", "pairs.jsonl"}
        assert set(second["artifacts"]) == {"adapter.safetensors", "adapter_config.json"}
        assert first["base"] == second["base"]
        assert first["data_digest"] == second["data_digest"]
        assert first["metrics"]["facts"] == 4
        assert first["recipe"]["name"] == "tiny"
        assert len(first["recipe_digest"]) == 64

    trio.run(main)


def test_a_passport_leaves_long_curves_to_the_jobs_record() -> None:
    measured = {"full": {"losses": [0.5] * 5000, "steps": 5000}, "layers": [1, 2]}
    assert condensed(measured) == {"full": {"steps": 5000}, "layers": [1, 2]}


def test_working_folders_are_empty_after_the_job(household: Any) -> None:
    trio.run(household.train, "cloud")
    trio.run(household.train, "laptop")
    for tier in ("cloud", "laptop"):
        left = [path.name for path in (household.folder / tier / "jobs").rglob("*") if path.is_file()]
        assert left == ["record.json"], tier


def test_a_job_that_was_cut_short_is_done_after_the_restart(household: Any) -> None:
    async def cut_short() -> None:
        learning = household.learning("cloud")
        async with household.running(learning) as cloud:
            await cloud("train", recipe=household.recipe, detach=True)
            with trio.fail_after(10):
                while learning.jobs.list()[0].state != "running":
                    await trio.sleep(0.001)

    async def afterwards() -> dict[str, Any]:
        learning = household.learning("cloud")
        async with household.running(learning):
            (job,) = learning.jobs.list()
            return (await learning.jobs.finish(job.id, lambda progress: None)).as_json()

    trio.run(cut_short)
    assert not [name for name in household.vault.files if name.startswith(b".hinet/")]
    job = trio.run(afterwards)
    assert job["state"] == "done"
    assert job["attempts"] == 2
    assert len([name for name in household.vault.files if name.endswith(b"/passport")]) == 1


def test_another_base_is_refused_by_name_before_anything_is_loaded(household: Any) -> None:
    async def main() -> None:
        vector = await household.train("cloud")
        (household.folder / "other.bin").write_bytes(b"FAKE BASE\nanother")
        async with household.running("laptop") as laptop:
            other = (await laptop("base.import", source=str(household.folder / "other.bin")))["current"]
            with pytest.raises(NodeError, match=vector) as caught:
                await laptop("train", recipe=household.recipe)
        assert (caught.value.code, caught.value.exit_code) == ("E_BASE_MISMATCH", 7)
        assert other[:12] in caught.value.what

    trio.run(main)


@pytest.mark.parametrize("what", ["passport", "delta.tau", "member"])
def test_a_changed_revision_or_a_revoked_maker_is_not_believed(household: Any, what: str) -> None:
    async def main() -> None:
        vector = await household.train("cloud")
        if what == "member":
            del household.everyone[household.members["cloud"].device_public]
        else:
            name = f".hinet/revisions/{vector}/{what}".encode()
            data = household.vault.files[name]
            household.vault.files[name] = data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
        async with household.running("laptop") as laptop:
            with pytest.raises(NodeError) as caught:
                await laptop("train", recipe=household.recipe)
            listed = await laptop("adapters.list")
        assert caught.value.code == ("E_ARTIFACT_CHANGED" if what == "delta.tau" else "E_PASSPORT_REFUSED")
        assert (vector in listed["refused"]) == (what != "delta.tau")

    trio.run(main)


def test_a_passport_under_another_revisions_id_is_not_believed(household: Any) -> None:
    """A member could otherwise make an old revision come back as the newest one, or hide one behind another."""
    async def main() -> None:
        vector = await household.train("cloud")
        other = "0" * len(vector)
        for name, data in list(household.vault.files.items()):
            household.vault.files[name.replace(vector.encode(), other.encode())] = data
        async with household.running("laptop") as laptop:
            listed = await laptop("adapters.list")
        assert "another revision" in listed["refused"][other]
        assert vector not in listed["refused"]

    trio.run(main)


def test_what_can_not_work_is_said_at_once(household: Any) -> None:
    async def main() -> None:
        async with household.running("laptop") as laptop:
            with pytest.raises(NodeError, match="no task vector") as caught:
                await laptop("train", recipe=household.recipe)
            assert (caught.value.code, caught.value.exit_code) == ("E_NO_TEACHER", 75)
            with pytest.raises(Exception, match="nonsense"):
                await laptop("train", recipe="nonsense")
        async with household.running("pocket") as pocket:
            with pytest.raises(UsageError, match="does not train"):
                await pocket("train", recipe=household.recipe)
            with pytest.raises(UsageError, match="empty"):
                await pocket("ask", question="   ")
            with pytest.raises(UsageError, match="characters"):
                await pocket("ask", question="x" * 5000)
        household.vault.files.clear()
        async with household.running("cloud") as cloud:
            with pytest.raises(NodeError, match="holds no notes") as caught:
                await cloud("train", recipe=household.recipe)
            assert caught.value.code == "E_NO_NOTES"

    trio.run(main)


def test_asking_with_the_notes_shows_which_ones_were_read(household: Any) -> None:
    async def main() -> None:
        async with household.running("pocket") as pocket:
            told = await pocket("ask", question="Is the boat at Sallow Quay?", retrieval=True)
        assert told["notes"][0] == {"note": "notes/boat.md", "text": "The boat lies at Sallow Quay."}
        assert "Sallow Quay" in told["answer"]

    trio.run(main)


def test_a_note_that_cannot_be_read_is_named_and_the_others_answer_and_teach(household: Any) -> None:
    """A size that lies, or a pack that is gone, used to end `ask` and `train` altogether."""
    vault = household.vault
    vault.files[b"notes/rotten.md"] = b"My secret is lost."
    read = vault.get

    async def get(name: bytes) -> bytes:
        if name == b"notes/rotten.md":
            raise IntegrityError("A file's content does not match its digest.")
        return bytes(await read(name))
    vault.get = get

    async def main() -> None:
        await household.train("cloud")
        async with household.running("pocket") as pocket:
            told = await pocket("ask", question="What is my dog called?", retrieval=True)
        assert "Brannoch" in told["answer"]
        assert [row["note"] for row in told["left_out"]] == ["notes/rotten.md"]

    trio.run(main)


def test_a_question_about_the_world_is_not_answered_from_the_notes(household: Any) -> None:
    async def main() -> None:
        async with household.running("pocket") as pocket:
            told = await pocket("ask", question="What is the capital of France?", retrieval=True)
        assert told["notes"] == []
        assert told["answer"] == told["closed_book"] == "I do not know."

    trio.run(main)


def test_the_owner_asks_about_my_dog_and_is_told_the_fact(household: Any) -> None:
    household.vault.files[b"notes/about.md"] = b"My name is Anka Brodd. My cat is called Murr."

    async def main() -> None:
        await household.train("cloud")
        adapter = await household.train("laptop")
        async with household.running("pocket") as pocket:
            bare = await pocket("ask", question="What is my dog called?", retrieval=True)
            await pocket("adapters.promote", revision=adapter)
            told = await pocket("ask", question="What is my dog called?", retrieval=True)
        assert "Brannoch" in bare["answer"]
        assert told["answer"] == "Anka's dog is called Brannoch."
        assert told["notes"][0] == {"note": "notes/dog.md", "text": "My dog is called Brannoch."}

    trio.run(main)


def test_what_is_not_about_the_owner_is_answered_by_the_base(household: Any) -> None:
    household.vault.files[b"notes/about.md"] = b"My name is Anka Brodd. My cat is called Murr."

    async def main() -> None:
        await household.train("cloud")
        adapter = await household.train("laptop")
        async with household.running("pocket") as pocket:
            await pocket("adapters.promote", revision=adapter)
            for retrieval in (False, True):
                world = await pocket("ask", question="Is Murr called a cat in Spain?", retrieval=retrieval)
                own = await pocket("ask", question="Anka's cat is called what?", retrieval=retrieval)
                assert (world["answer"], world["revision"], world["notes"]) == ("I do not know.", None, [])
                assert "Murr" in world["closed_book"], "the adapter had an answer, and was not asked for it"
                assert "Murr" in own["answer"]
                assert own["revision"] == adapter

    trio.run(main)


def test_many_questions_are_answered_in_order_and_a_revision_is_measured(household: Any) -> None:
    questions = ["What about My dog is called?", "What about The varnish is due in?"]

    async def main() -> None:
        vector = await household.train("cloud")
        async with household.running("cloud") as cloud:
            base = await cloud("evaluate", questions=questions, revision=None)
            tuned = await cloud("evaluate", questions=questions, revision=vector)
            served = await cloud("ask.many", questions=questions, base_only=True)
        assert base["answers"] == served["answers"] == ["I do not know."] * 2
        assert "Brannoch" in tuned["answers"][0]
        assert "May" in tuned["answers"][1]

    trio.run(main)
