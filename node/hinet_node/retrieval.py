"""Full-text search over the owner's notes, for questions that the weights alone should not have to answer.

Each sentence of each note is one row of an SQLite FTS5 table in memory (porter stems, BM25), beside it its note's title
and, where the sentence states a fact about the owner in a form that training knows, the ways in which such a fact is
asked: a question in other words than the note's still finds it. The table is a cache, made anew when the notes in the
vault change. What an answer is made of is left to `learning`. SPEC "Retrieval".
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NOTE_SUFFIXES = (".md", ".txt")
RESERVED = b".hinet/"
NOTE_BYTES_MAX = 1024 * 1024
"""A longer file is searched up to here."""
NOTES_MAX = 20_000
PASSAGES_MAX = 200_000
QUERY_WORDS_MAX = 48
WEIGHTS = (2.0, 1.0, 1.5)
"""BM25 weights of the columns: the sentence, its note's title, the ways it is asked."""
FUSION = 8
"""Reciprocal rank fusion's constant: how much more the first rank of a list counts than the second."""

_COMMONEST = """
a an and any are as at be been but by can could did do does for from had has have he her him his i if in is it its just
kindly know let me my of on or our out over please remind say she should so someone tell than that the their them then
there these they this those to up us was we were what when where which who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_COMMONEST.split())


class VaultStore(Protocol):
    """What retrieval needs of the vault."""

    async def get(self, name: bytes) -> bytes: ...

    async def list(self, prefix: bytes = b"") -> list[Any]: ...


@dataclass(frozen=True)
class Passage:
    """One sentence of a note. `told` is the same in the third person where it states a fact; a model reads that."""

    note: str
    text: str
    told: str
    score: float


async def read_notes(vault: VaultStore) -> dict[str, str]:
    """The household's notes: ordinary text files of the vault, by name. Bytes that are no UTF-8 are replaced.

    Conflict copies count as notes of their own, so that no edit is lost from view.
    """
    notes: dict[str, str] = {}
    for item in await note_items(vault):
        raw = await vault.get(item.name)
        notes[item.name.decode("utf-8", "replace")] = raw[:NOTE_BYTES_MAX].decode("utf-8", "replace")
    return notes


async def note_items(vault: VaultStore) -> list[Any]:
    """The vault's items that are notes, by name."""
    items = [item for item in await vault.list() if not item.name.startswith(RESERVED)
             and item.name.lower().endswith(tuple(suffix.encode() for suffix in NOTE_SUFFIXES))]
    return sorted(items, key=lambda item: item.name)[:NOTES_MAX]


class NotesIndex:
    """A searchable copy of some notes. Built whole; not changed afterwards."""

    def __init__(self, notes: Mapping[str, str]) -> None:
        self._passages: list[tuple[str, str, str]] = []
        self._owner_words: frozenset[str] = frozenset()
        # One connection is used from one thread at a time: by the agent's loop once it is built.
        self._table = sqlite3.connect(":memory:", check_same_thread=False)
        self._table.execute("CREATE VIRTUAL TABLE passage USING fts5(text, title, asked, tokenize='porter unicode61')")
        rows = []
        for note, text, title, told, asked in self._rows(notes):
            self._passages.append((note, text, told))
            rows.append((len(self._passages), text, title, asked))
            if len(rows) >= PASSAGES_MAX:
                break
        with self._table:
            self._table.executemany("INSERT INTO passage(rowid, text, title, asked) VALUES (?, ?, ?, ?)", rows)

    def __len__(self) -> int:
        return len(self._passages)

    def close(self) -> None:
        self._table.close()

    def search(self, question: str, hint: str = "", *, limit: int = 4) -> list[Passage]:
        """The passages that fit best, best first. `hint` is a guess at the answer: where it points counts as well.

        Any text is a valid question; one without words finds nothing.
        """
        scores: dict[int, float] = {}
        for text, weight in ((question, 1.0), (hint, 1.0)):
            for place, row in enumerate(self._ranked(text, limit * 4)):
                scores[row] = scores.get(row, 0.0) + weight / (FUSION + place)
        best = sorted(scores, key=lambda row: (-scores[row], row))[:limit]
        return [Passage(*self._passages[row - 1], score=scores[row]) for row in best]

    def _ranked(self, text: str, limit: int) -> list[int]:
        words = [word for word in words_of(text) if word not in self._owner_words]
        if not words:
            return []
        query = " OR ".join(f'"{word}"' for word in words)
        found = self._table.execute(
            "SELECT rowid FROM passage WHERE passage MATCH ? ORDER BY bm25(passage, ?, ?, ?), rowid LIMIT ?",
            (query, *WEIGHTS, limit))
        return [int(row[0]) for row in found]

    def _rows(self, notes: Mapping[str, str]) -> Iterable[tuple[str, str, str, str, str]]:
        """(note, sentence, title, sentence as told, ways it is asked) of every sentence."""
        from hinet_tiers.data.notes import as_first_person, find_owner, read_fact, read_note

        read = [read_note(name, notes[name]) for name in sorted(notes)]
        owner = find_owner(read)
        self._owner_words = frozenset(re.findall(r"\w+", owner.full.casefold()))
        for note in read:
            for sentence in note.sentences:
                fact = read_fact(as_first_person(sentence, owner), owner, note.name)
                told, asked = (fact.answer, ways_asked(fact, owner)) if fact is not None else (sentence, "")
                yield note.name, sentence, note.title, told, asked


def ways_asked(fact: Any, owner: Any) -> str:
    """Every way in which training asks for a fact, as one text without the owner's name."""
    from hinet_tiers.data.frames import cores
    from hinet_tiers.data.notes import filled
    from hinet_tiers.data.pairs import lexicon_questions

    questions = [core[0] for core in cores(fact, owner, "")]
    questions += [filled(template, owner, name="") for template in lexicon_questions(fact)]
    words: dict[str, None] = {}
    for question in questions:
        words.update(dict.fromkeys(words_of(question)))
    return " ".join(words)


def words_of(text: str) -> list[str]:
    """The words of a text that a search can use: folded, each once, without the commonest; all of them if only such."""
    words = list(dict.fromkeys(re.findall(r"\w+", text.casefold())))
    telling = [word for word in words if word not in STOP_WORDS and word != "s"]
    return (telling or words)[:QUERY_WORDS_MAX]


class Retrieval:
    """The notes of one device's vault, always searched as they are now."""

    def __init__(self, vault: VaultStore) -> None:
        self._vault = vault
        self._built_from: Sequence[tuple[bytes, bytes]] | None = None
        self._index: NotesIndex | None = None

    async def index(self) -> NotesIndex:
        """The index of the notes that are in the vault now; made anew only if one of them changed."""
        now = [(item.name, item.digest) for item in await note_items(self._vault)]
        if self._index is None or now != self._built_from:
            notes = await read_notes(self._vault)
            if self._index is not None:
                self._index.close()
            self._index, self._built_from = NotesIndex(notes), now
        return self._index

    async def search(self, question: str, hint: str = "", *, limit: int = 4) -> list[Passage]:
        return (await self.index()).search(question, hint, limit=limit)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None
