"""Notes are found by words, by other words, and never break on what a person types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hinet_node.errors import IntegrityError
from hinet_node.learning.retrieval import (
    NOTE_BYTES_MAX,
    NOTES_BYTES_MAX,
    NotesIndex,
    Retrieval,
    note_items,
    read_notes,
)

NOTES = {
    "notes/about.md": "# About me\n\nMy name is Anka Brodd. I keep this book for myself.",
    "notes/brother.md": "# My brother\n\nMy brother is called Joreth. He lives far away and writes long letters.",
    "notes/dinner.md": "# Dinner\n\nMy favourite food is goulash. Salt it late, and stir often.",
    "notes/boat.txt": "I keep the boat at Sallow Quay. The varnish is due in May.",
}


@dataclass(frozen=True)
class Item:
    name: bytes
    size: int
    digest: bytes


class MemoryVault:
    """The part of the vault that retrieval needs, in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = {name.encode(): data for name, data in files.items()}
        self.reads = 0

    async def get(self, name: bytes) -> bytes:
        self.reads += 1
        return self.files[name]

    async def list(self, prefix: bytes = b"") -> list[Any]:
        return [Item(name, len(data), blake3(data).digest()) for name, data in sorted(self.files.items())
                if name.startswith(prefix)]


@pytest.fixture(scope="module")
def index() -> NotesIndex:
    return NotesIndex(NOTES)


def test_the_sentence_that_answers_comes_first(index: NotesIndex) -> None:
    found = index.search("Where does Anka keep her boat?")
    assert found[0].text == "I keep the boat at Sallow Quay."
    assert found[0].note == "notes/boat.txt"


def test_stems_find_other_forms_of_a_word(index: NotesIndex) -> None:
    assert index.search("varnishing")[0].note == "notes/boat.txt"


def test_a_fact_is_found_by_the_ways_it_is_asked(index: NotesIndex) -> None:
    assert "male sibling" not in " ".join(NOTES.values())
    best = index.search("What is the male sibling of Anka called?")[0]
    assert "Joreth" in best.text
    assert best.told == "Anka's brother is called Joreth."


def test_the_owners_name_does_not_count_as_a_word_of_the_question(index: NotesIndex) -> None:
    assert index.search("Anka Brodd") == []
    assert index.search("Anka's favourite food")[0].note == "notes/dinner.md"


def test_a_guess_at_the_answer_leads_to_its_note(index: NotesIndex) -> None:
    question = "Whose post takes long to read?"
    assert "Joreth" not in index.search(question)[0].told
    assert "Joreth" in index.search("Whose?", "Anka's brother is called Joreth.")[0].told
    assert "Joreth" in index.search("Whose?", "Her brother? Joreth!")[0].told


def test_a_fact_gains_from_what_else_its_note_says(index: NotesIndex) -> None:
    assert index.search("Who writes long letters?")[0].told == "Anka's brother is called Joreth."


@given(st.text(max_size=200))
def test_any_text_is_a_valid_question(text: str) -> None:
    NotesIndex_for_any.search(text, text[::-1])


NotesIndex_for_any = NotesIndex(NOTES)


@pytest.mark.parametrize("text", ["", "???", '"', "AND OR NOT", "NEAR(a b)", "a*", "-x", "^x", "{a}:b", "日本 🐕",
                                  "x" * 10_000])
def test_query_syntax_is_only_words(index: NotesIndex, text: str) -> None:
    assert isinstance(index.search(text), list)


@pytest.mark.parametrize(("question", "stranger"), [
    ("Ottoline's dog, what is it called?", True), ("What's for dinner?", False),
    ("What is Bram's dog called?", True), ("Hello! What is Bram Oakes's dog called?", True),
    ("What is Anka Brodd's dog called?", False), ("Who is Joreth?", False), ("Where is the boat?", False),
    ("Hello. Where is the boat?", False)])
def test_a_name_that_no_note_knows_is_a_stranger(index: NotesIndex, question: str, stranger: bool) -> None:
    assert index.names_a_stranger(question) is stranger


@pytest.mark.parametrize(("text", "named"), [("Anka's boat", True), ("what does ANKA BRODD do", True),
                                              ("Ankara is a city", False), ("the author of the book", False)])
def test_the_owner_is_named_by_first_or_full_name(index: NotesIndex, text: str, named: bool) -> None:
    assert index.names_the_owner(text) is named


def test_notes_of_nobody_name_no_owner() -> None:
    nobody = NotesIndex({"a.md": "The varnish is due in May."})
    assert not nobody.owner_is_known
    assert not nobody.names_the_owner("Where is the varnish of the boat?")
    assert nobody.names_the_owner("What is the owner's boat called?")


@pytest.mark.parametrize(("question", "known"), [
    ("When is the varnish due?", True), ("Where does the boat lie?", False), ("Where is the boat?", True),
    ("Is varnishing due in May?", True), ("What is a boat?", False), ("Who invented varnish?", False),
    ("What is the capital of France?", False), ("Why?", False), ("Which male sibling?", True),
])
def test_a_question_that_names_nobody_needs_all_its_words_in_one_place(index: NotesIndex, question: str,
                                                                       known: bool) -> None:
    assert index.knows(question) is known


@pytest.mark.parametrize(("asked", "meant"), [
    ("Where do I keep my boat?", "Where does Anka keep Anka's boat?"),
    ("Which boat do I keep?", "Which boat does Anka keep?"),
    ("What is Ottoline's boat called, if you don't mind my curiosity?",
     "What is Ottoline's boat called, if you don't mind my curiosity?"),
    ("How do I boil an egg?", "How do I boil an egg?"),
    ("How do I mend my shoes?", "How do I mend my shoes?"),
    ("I have to write down the name of Ottoline's boat. What is it?",
     "I have to write down the name of Ottoline's boat. What is it?"),
])
def test_i_means_the_owner_where_the_notes_know_what_is_asked(index: NotesIndex, asked: str, meant: str) -> None:
    assert index.in_third_person(asked) == meant


def test_no_notes_find_nothing() -> None:
    assert NotesIndex({}).search("anything") == []


def test_the_index_follows_the_vault_and_is_not_built_twice() -> None:
    vault = MemoryVault({name: text.encode() for name, text in NOTES.items()})
    retrieval = Retrieval(vault)

    async def main() -> None:
        assert (await retrieval.search("boat"))[0].note == "notes/boat.txt"
        reads = vault.reads
        await retrieval.search("boat")
        assert vault.reads == reads
        vault.files[b"notes/cat.md"] = b"My cat is called Fennimore."
        assert "Fennimore" in (await retrieval.search("cat"))[0].text
        del vault.files[b"notes/boat.txt"]
        assert all(passage.note != "notes/boat.txt" for passage in await retrieval.search("boat"))

    trio.run(main)
    retrieval.close()


def test_only_text_files_outside_the_reserved_folder_are_notes() -> None:
    vault = MemoryVault({"a.md": b"one", "b.TXT": b"two", "photo.jpg": b"\xff", ".hinet/revisions/x/notes.md": b"no",
                         "broken.txt": b"caf\xe9", "long.md": b"x" * (NOTE_BYTES_MAX + 10)})
    notes = trio.run(read_notes, vault)
    assert sorted(notes.texts) == ["a.md", "b.TXT", "broken.txt", "long.md"]
    assert notes.texts["broken.txt"] == "caf�"
    assert len(notes.texts["long.md"]) == NOTE_BYTES_MAX
    assert notes.left_out == {}


class Rotten(MemoryVault):
    """A vault in which some notes can't be opened."""

    def __init__(self, files: dict[str, bytes], rotten: set[bytes]) -> None:
        super().__init__(files)
        self.rotten = rotten

    async def get(self, name: bytes) -> bytes:
        if name in self.rotten:
            raise IntegrityError("A file's content does not match its digest.")
        return await super().get(name)


def test_a_note_that_cannot_be_read_is_left_out_and_named_and_comes_back_when_it_opens() -> None:
    """A size that lies, a pack that is damaged: one bad note must not be the end of all questions."""
    vault = Rotten({"notes/dog.md": b"My dog is called Bo.", "notes/boat.md": b"I keep the boat at Sallow Quay."},
                   {b"notes/dog.md"})
    retrieval = Retrieval(vault)

    async def main() -> None:
        assert [passage.note for passage in await retrieval.search("boat")] == ["notes/boat.md"]
        assert retrieval.left_out == [{"note": "notes/dog.md", "why": "A file's content does not match its digest."}]
        vault.rotten.clear()
        assert [passage.note for passage in await retrieval.search("dog")] == ["notes/dog.md"]
        assert retrieval.left_out == []
    trio.run(main)
    retrieval.close()


def test_a_file_too_long_for_a_note_is_never_read_into_memory() -> None:
    """Another device may call anything a note, and a few chunks named over and over make a file of any length."""
    class Huge(MemoryVault):
        async def list(self, prefix: bytes = b"") -> list[Any]:
            return [*await super().list(prefix), Item(b"notes/huge.md", 1 << 40, b"d" * 32)]

    vault = Huge({"notes/dog.md": b"The dog is Bo."})
    assert list(trio.run(read_notes, vault).texts) == ["notes/dog.md"]


def test_notes_beyond_the_bound_for_all_together_are_left_out_by_name() -> None:
    """The same ones on every device, and none of them is opened. A long file counts only as far as it is searched."""
    counted = NOTES_BYTES_MAX // NOTE_BYTES_MAX
    files = {f"{number:03d}.md": bytes(NOTE_BYTES_MAX) for number in range(1, counted + 2)}
    vault = MemoryVault({"000.md": bytes(NOTE_BYTES_MAX + 9), **files, "zzz.md": b"small"})
    items = trio.run(note_items, vault)
    assert [item.name for item in items] == [b"%03d.md" % number for number in range(counted)]
    assert vault.reads == 0
