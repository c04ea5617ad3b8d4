"""Full-text search over the owner's notes, for questions that the weights alone should not have to answer.

The table (SQLite FTS5 in memory, porter stems, BM25) holds *ways to ask*: each sentence of each note, its note's title,
and, where the sentence states a fact about the owner in a form that training knows, every way in which training asks
for such a fact. A passage is as good as its best few rows together, so a question in quite other words than the note's
still finds it; and a fact gains from what the rest of its note says. The table is a cache, made anew when the notes in
the vault change. What an answer is made of is left to `answers`. SPEC section 8.4.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hinet_node.errors import IntegrityError, UsageError

NOTE_SUFFIXES = (".md", ".txt")
RESERVED = b".hinet/"
NOTE_BYTES_MAX = 1024 * 1024
"""A longer file is searched up to here."""
NOTE_FILE_BYTES_MAX = 16 * NOTE_BYTES_MAX
"""A longer file is no note, whatever its name: it would be read whole into the agent's memory."""
LEFT_OUT_SHOWN_MAX = 64
NOTES_MAX = 20_000
NOTES_BYTES_MAX = 64 * NOTE_BYTES_MAX
"""What is read of all notes together; those after, by name, are left out."""
PASSAGES_MAX = 200_000
QUERY_WORDS_MAX = 48
ROWS_MAX = 1_000_000
ROWS_LOOKED_AT = 400
"""Best rows of a query that count."""
ROWS_OF_A_PASSAGE = 6
ROW_DECAY = 0.7
"""The second best row of a passage counts this share of what it scores, the third this share of that, and so on."""
NOTE_SHARE = 1.0
"""How much of its note's best other sentence a fact gains."""
SAID_SHARE = 0.5
"""How much the telling words of a sentence count where its note states no fact, so that nothing is known of how it may
be asked for."""
HINT_EXACT, HINT_LOOSE = 0.35, 0.3
"""What a guessed answer adds to the passage that says exactly that, and to those that it resembles; the best passage by
the question alone has 1."""

_COMMON_WORDS = """
a an and any are as at be been but by can could did do does for from had has have he her him his i if in is it its just
kindly know let me my of on or our out over please remind say she should so someone tell than that the their them then
there these they this those to up us was we were what when where which who whom whose why will with would you your
"""
COMMONEST = frozenset(_COMMON_WORDS.split())


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
    fact: bool = False
    """Whether the sentence states a fact about the owner, whole in itself."""


@dataclass(frozen=True)
class Notes:
    """Notes by name, and those that could not be read, each with the reason."""

    texts: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    left_out_names: list[bytes] = field(default_factory=list)

    def left_out_rows(self) -> list[dict[str, str]]:
        """For an answer to the command line; the first of many."""
        return [{"note": note, "why": why} for note, why in list(self.left_out.items())[:LEFT_OUT_SHOWN_MAX]]


async def read_notes(vault: VaultStore) -> Notes:
    """The household's notes: ordinary text files of the vault, by name. Bytes that are no UTF-8 are replaced.

    Conflict copies count as notes of their own, so that no edit is lost from view. A note that is damaged, that has not
    come yet, or whose content is not what its writer said of it, is left out and named: one bad note ends nothing.
    """
    notes = Notes()
    for item in await note_items(vault):
        name = item.name.decode("utf-8", "replace")
        try:
            raw = await vault.get(item.name)
        except (IntegrityError, UsageError) as error:  # the second: it was removed a moment ago
            notes.left_out[name] = error.what
            notes.left_out_names.append(item.name)
            continue
        notes.texts[name] = raw[:NOTE_BYTES_MAX].decode("utf-8", "replace")
    return notes


async def note_items(vault: VaultStore) -> list[Any]:
    """The vault's items that are notes, by name: as many of the first ones as the bounds allow."""
    items = [item for item in await vault.list() if not item.name.startswith(RESERVED)
             and item.size <= NOTE_FILE_BYTES_MAX
             and item.name.lower().endswith(tuple(suffix.encode() for suffix in NOTE_SUFFIXES))]
    fitting, left = [], NOTES_BYTES_MAX
    for item in sorted(items, key=lambda item: item.name)[:NOTES_MAX]:
        left -= min(item.size, NOTE_BYTES_MAX)
        if left < 0:
            break
        fitting.append(item)
    return fitting


class NotesIndex:
    """A searchable copy of some notes. Built whole; not changed afterwards."""

    def __init__(self, notes: Mapping[str, str]) -> None:
        self._passages: list[_Sentence] = []
        self._passage_of_row: list[int] = []
        self._owner: Any = None
        self._owner_words: frozenset[str] = frozenset()
        self._words_known = {word for text in notes.values() for word in re.findall(r"\w+", text.casefold())}
        # One connection is used from one thread at a time: by the agent's loop once it is built.
        self._table = sqlite3.connect(":memory:", check_same_thread=False)
        self._table.execute("CREATE VIRTUAL TABLE way USING fts5(text, tokenize='porter unicode61')")
        self._table.execute("CREATE VIRTUAL TABLE said USING fts5(text, title, tokenize='porter unicode61')")
        with self._table:
            self._table.executemany("INSERT INTO way(rowid, text) VALUES (?, ?)", self._rows(notes))
            with_facts = {row.note for row in self._passages if row.fact}
            self._table.executemany("INSERT INTO said(rowid, text, title) VALUES (?, ?, ?)",
                                    ((number, row.text, row.title) for number, row in enumerate(self._passages)
                                     if row.note not in with_facts))
        self._by_told = {_folded(sentence.told): number for number, sentence in enumerate(self._passages)}

    def __len__(self) -> int:
        return len(self._passages)

    def close(self) -> None:
        self._table.close()

    def search(self, question: str, hint: str = "", *, limit: int = 4) -> list[Passage]:
        """The passages that fit best, best first. `hint` is a guess at the answer: where it points counts as well.

        Any text is a valid question; one without words finds nothing.
        """
        scores = _relative(self._with_their_notes(self._kin(question)))
        for number, score in _relative(self._said(question)).items():
            scores[number] = scores.get(number, 0.0) + SAID_SHARE * score
        scores = _relative(scores)
        exact = self._by_told.get(_folded(hint)) if hint else None
        if exact is not None:
            scores[exact] = scores.get(exact, 0.0) + HINT_EXACT
        elif hint:
            for number, score in _relative(self._kin(hint)).items():
                scores[number] = scores.get(number, 0.0) + HINT_LOOSE * score
        best = sorted(scores, key=lambda number: (-scores[number], number))[:limit]
        return [Passage(note=self._passages[number].note, text=self._passages[number].text,
                        told=self._passages[number].told, score=scores[number],
                        fact=self._passages[number].fact) for number in best]

    def in_third_person(self, question: str) -> str:
        """The question with the owner's name for "I" and "my", as training asks; a question to the world stays.

        "How do I boil an egg?" means anybody, "Where do I live?" the owner: the notes tell them apart.
        """
        from hinet_tiers.data.asked import in_third_person

        turned = in_third_person(question, self._owner) if self._owner is not None else question
        own = re.search(r"\b(?:my|mine)\b", question, re.I) and not re.match(r"\W*how\b", question, re.I)
        return turned if (own or self.knows(turned)) and not self.names_a_stranger(question) else question

    @property
    def owner_is_known(self) -> bool:
        """Whether the notes tell the owner's name, so that a question about the owner can be told from others."""
        return self._owner is not None and bool(self._owner.first != "the owner")

    def names_the_owner(self, text: str) -> bool:
        """Whether a text speaks of the owner by first or full name."""
        if self._owner is None:
            return False
        names = "|".join(re.escape(name) for name in {self._owner.first, self._owner.full})
        return bool(re.search(rf"\b(?:{names})\b", text, re.I))

    def knows(self, question: str) -> bool:
        """Whether all telling words of a question stand together in a sentence of the notes or in a way to ask for one.

        A thing in general ("a dog") is no word of the notes.
        """
        general = {word.casefold() for word in re.findall(r"\ban? (?:\w+ )?(\w+)", question, re.I)}
        words = [word for word in self._words(question) if word not in COMMONEST]
        telling = [word for word in words if word not in general]
        if not telling:
            return False
        query = " AND ".join(f'"{word}"' for word in words)
        return self._table.execute("SELECT 1 FROM way WHERE way MATCH ? LIMIT 1", (query,)).fetchone() is not None

    def names_a_stranger(self, question: str) -> bool:
        """Whether a name in the question (a capital inside a sentence, or at its start with 's) stands in no note."""
        for sentence in re.split(r"[.!?:]\s+", question):
            names = re.findall(r"(?<!^)\b[A-Z]\w+", sentence)
            first = re.match(r"\W*([A-Z]\w+)['’]s\b", sentence)
            names += [first.group(1)] if first and first.group(1).casefold() not in COMMONEST else []
            if any(name.casefold() not in self._words_known for name in names):
                return True
        return False

    def _kin(self, text: str) -> dict[int, float]:
        """Passage -> how well its ways to ask fit a text, best few rows together."""
        words = self._words(text)
        if not words:
            return {}
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self._table.execute("SELECT rowid, bm25(way) FROM way WHERE way MATCH ? "
                                   "ORDER BY bm25(way), rowid LIMIT ?", (query, ROWS_LOOKED_AT))
        found: dict[int, list[float]] = {}
        for row, score in rows:  # best first; SQLite's BM25 is negative
            found.setdefault(self._passage_of_row[row], []).append(-float(score))
        return {number: sum(score * ROW_DECAY**place for place, score in enumerate(scores[:ROWS_OF_A_PASSAGE]))
                for number, scores in found.items()}

    def _said(self, text: str) -> dict[int, float]:
        """Passage of a note without facts -> how well its own words fit a text, the commonest ones left out."""
        words = [word for word in self._words(text) if word not in COMMONEST]
        if not words:
            return {}
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self._table.execute("SELECT rowid, bm25(said, 2.0, 1.0) FROM said WHERE said MATCH ? "
                                   "ORDER BY bm25(said, 2.0, 1.0), rowid LIMIT ?", (query, ROWS_LOOKED_AT))
        return {int(row): -float(score) for row, score in rows}

    def _with_their_notes(self, scores: dict[int, float]) -> dict[int, float]:
        """The scores, facts raised by the best of their note's other sentences."""
        best: dict[str, float] = {}
        for number, score in scores.items():
            sentence = self._passages[number]
            if not sentence.fact:
                best[sentence.note] = max(best.get(sentence.note, 0.0), score)
        raised = dict(scores)
        for number, sentence in enumerate(self._passages):
            if sentence.fact and sentence.note in best:
                raised[number] = raised.get(number, 0.0) + NOTE_SHARE * best[sentence.note]
        return raised

    def _words(self, text: str) -> list[str]:
        """The words of a text that count: folded, each once, without the owner's name."""
        words = dict.fromkeys(re.findall(r"\w+", text.casefold()))
        return [word for word in words if word not in self._owner_words and word != "s"][:QUERY_WORDS_MAX]

    def _rows(self, notes: Mapping[str, str]) -> Iterator[tuple[int, str]]:
        """(row, text) of every way to ask; fills `_passages` and `_passage_of_row` on the way."""
        from hinet_tiers.data.notes import find_facts, find_owner, read_note

        read = [read_note(name, notes[name]) for name in sorted(notes)]
        owner = find_owner(read)
        self._owner = owner
        self._owner_words = frozenset(re.findall(r"\w+", owner.full.casefold()))
        facts = {(fact.note, fact.answer): fact for fact in find_facts(read, owner)}
        for note in read:
            for sentence in note.sentences:
                told, fact = _fact_of(sentence, note.name, owner, facts)
                if len(self._passages) >= PASSAGES_MAX:
                    return
                self._passages.append(_Sentence(note.name, note.title, sentence, told, fact is not None))
                for text in (sentence, note.title, *(ways_asked(fact, owner) if fact is not None else ())):
                    words = self._words(text)
                    if words and len(self._passage_of_row) < ROWS_MAX:
                        self._passage_of_row.append(len(self._passages) - 1)
                        yield len(self._passage_of_row) - 1, " ".join(words)


@dataclass(frozen=True)
class _Sentence:
    note: str
    title: str
    text: str
    told: str
    fact: bool


def _fact_of(sentence: str, note: str, owner: Any, facts: Mapping[tuple[str, str], Any]) -> tuple[str, Any | None]:
    """A sentence as it is told to the model, and the fact that it states, if any."""
    from hinet_tiers.data.notes import as_first_person, read_fact

    fact = read_fact(as_first_person(sentence, owner), owner, note)
    if fact is None:
        return sentence, None
    return fact.answer, facts.get((note, fact.answer), fact)


def ways_asked(fact: Any, owner: Any) -> list[str]:
    """Every way in which training asks for a fact, and the sentence that answers."""
    from hinet_tiers.data.frames import cores
    from hinet_tiers.data.notes import filled
    from hinet_tiers.data.pairs import context_questions, lexicon_questions

    ways = [form for core in cores(fact, owner, "") for form in core]
    ways += [filled(template, owner, name="") for template in lexicon_questions(fact)]
    return [*ways, *context_questions(fact, owner), fact.answer]


def _relative(scores: dict[int, float]) -> dict[int, float]:
    """The scores as shares of the best one."""
    best = max(scores.values(), default=0.0)
    return {number: score / best for number, score in scores.items()} if best > 0 else {}


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


class Retrieval:
    """The notes of one device's vault, always searched as they are now."""

    def __init__(self, vault: VaultStore) -> None:
        self._vault = vault
        self._built_from: Sequence[tuple[bytes, bytes]] | None = None
        self._index: NotesIndex | None = None
        self._notes = Notes()

    @property
    def left_out(self) -> list[dict[str, str]]:
        """The notes that could not be read when the index was made: {note, why}."""
        return self._notes.left_out_rows()

    async def index(self) -> NotesIndex:
        """The index of the notes that are in the vault now; made anew only if one of them changed, or could not be
        read the last time."""
        now = [(item.name, item.digest) for item in await note_items(self._vault)]
        if self._index is None or now != self._built_from or await self._opens_again():
            notes = await read_notes(self._vault)
            if self._index is not None:
                self._index.close()
            self._index, self._built_from, self._notes = NotesIndex(notes.texts), now, notes
        return self._index

    async def _opens_again(self) -> bool:
        """Whether a note that was left out can be read by now: its pack came, or a whole copy did."""
        for name in self._notes.left_out_names:
            try:
                await self._vault.get(name)
            except (IntegrityError, UsageError):
                continue
            return True
        return False

    async def search(self, question: str, hint: str = "", *, limit: int = 4) -> list[Passage]:
        """As `NotesIndex.search`."""
        return (await self.index()).search(question, hint, limit=limit)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None
