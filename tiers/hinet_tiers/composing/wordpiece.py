"""BERT's uncased WordPiece, so that MiniLM needs no tokenizer library: a text becomes token numbers.

Exactly what the `tokenizers` library gives for the same `tokenizer.json` (BertNormalizer, BertPreTokenizer, WordPiece);
a test compares them. The vocabulary is read from that file. Leaves the model to `embedding`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping

from hinet_tiers.errors import ComposeRefused

CLS, SEP, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
CONTINUED = "##"
WORD_CHARS_MAX = 100
TOKENS_MAX = 256
"""What MiniLM was tuned on; what is longer is cut."""
TEXT_CHARS_MAX = 16_384
"""A longer text is cut before it is read: every token covers at least one character, so no result changes by it
unless there are more blanks than this."""
_WIDE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPiece:
    """An encoder with one vocabulary (token → number)."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._numbers = vocabulary
        self._cls, self._sep, self._unknown = vocabulary[CLS], vocabulary[SEP], vocabulary[UNKNOWN]

    @classmethod
    def from_json(cls, raw: bytes) -> WordPiece:
        """From a `tokenizer.json`. Raises ComposeRefused when it holds no WordPiece vocabulary."""
        try:
            model = json.loads(raw)["model"]
            vocabulary = {str(token): int(number) for token, number in model["vocab"].items()}
            return cls(vocabulary)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ComposeRefused(f"This tokenizer.json holds no WordPiece vocabulary ({error}).") from error

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text with [CLS] before and [SEP] behind, at most TOKENS_MAX in all."""
        ids: list[int] = []
        for word in _words(text[:TEXT_CHARS_MAX]):
            ids += self._pieces(word)
            if len(ids) >= TOKENS_MAX - 2:
                break
        return [self._cls, *ids[: TOKENS_MAX - 2], self._sep]

    def _pieces(self, word: str) -> list[int]:
        """The longest piece that fits, again and again; a word that can't be cut so is unknown as a whole."""
        if len(word) > WORD_CHARS_MAX:
            return [self._unknown]
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = CONTINUED if start else ""
            end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in self._numbers), None)
            if end is None:
                return [self._unknown]
            pieces.append(self._numbers[prefix + word[start:end]])
            start = end
        return pieces


def _words(text: str) -> Iterator[str]:
    """Words and single punctuation marks, small and without accents."""
    word: list[str] = []
    for char in _normal(text):
        if char.isspace():
            if word:
                yield "".join(word)
            word = []
        elif _is_punctuation(char):
            if word:
                yield "".join(word)
            yield char
            word = []
        else:
            word.append(char)
    if word:
        yield "".join(word)


def _normal(text: str) -> str:
    cleaned = []
    for char in text:
        code = ord(char)
        if code in (0, 0xFFFD) or (char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs")):
            continue
        if any(first <= code <= last for first, last in _WIDE):
            cleaned.append(f" {char} ")
        else:
            cleaned.append(" " if char.isspace() else char)
    flat = unicodedata.normalize("NFD", "".join(cleaned))
    return "".join(char for char in flat if unicodedata.category(char) != "Mn").lower()


def _is_punctuation(char: str) -> bool:
    code = ord(char)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_mark or unicodedata.category(char).startswith("P")
