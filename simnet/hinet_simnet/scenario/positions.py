"""Where each key of a TOML text stands: line and column by path, for errors that point at the spot.

`tomllib` gives values without positions. This scanner reads a text that `tomllib` has accepted already, so it needs to
know where strings, arrays and inline tables end and nothing more. A path is keys and list numbers: `("step", 2, "at")`.
Leaves values to `tomllib` and their meaning to `parse`.
"""

from __future__ import annotations

import tomllib
from typing import Any

Path = tuple[str | int, ...]
Place = tuple[int, int]
"""Line and column, both from 1."""

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Positions:
    """The places of all keys, tables and list items of one accepted text."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._line, self._line_start = 1, 0
        self._lists: dict[Path, int] = {}
        self.places: dict[Path, Place] = {}
        self._scan()

    def of(self, path: Path) -> Place:
        """The place of this path, or of the nearest thing around it; (1, 1) for the whole file."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))

    def _scan(self) -> None:
        table: Path = ()
        while True:
            self._blank(lines=True)
            if self._at >= len(self._text):
                return
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        place = self._here()
        is_list = self._text.startswith("[[", self._at)
        self._move(2 if is_list else 1)
        keys = self._keys()
        self._blank()
        self._move(2 if is_list else 1)
        path = self._inside(tuple(key for key, _ in keys[:-1]))
        path = (*path, keys[-1][0])
        if is_list:
            number = self._lists.get(path, -1) + 1
            self._lists[path] = number
            self.places.setdefault(path, place)
            path = (*path, number)
        else:
            path = self._inside((path[-1],), path[:-1])
        self._mark(path, place)
        return path

    def _inside(self, keys: Path, start: Path = ()) -> Path:
        """The path that these keys of a header name: of a list of tables, its last one."""
        path = start
        for key in keys:
            path = (*path, key)
            if path in self._lists:
                path = (*path, self._lists[path])
        return path

    def _mark(self, path: Path, place: Place) -> None:
        self.places.setdefault(path, place)
        for length in range(1, len(path)):
            self.places.setdefault(path[:length], place)

    def _pair(self, table: Path) -> None:
        keys = self._keys()
        path = table
        for key, place in keys:
            path = (*path, key)
            self.places.setdefault(path, place)
        self._blank()
        self._move(1)
        self._blank()
        self._value(path)

    def _keys(self) -> list[tuple[str, Place]]:
        """A dotted key: its parts and their places."""
        found: list[tuple[str, Place]] = []
        while True:
            self._blank()
            place, start = self._here(), self._at
            if self._peek() in "\"'":
                self._string()
                found.append((_unquoted(self._text[start:self._at]), place))
            else:
                while self._peek() in _BARE:
                    self._move(1)
                found.append((self._text[start:self._at], place))
            self._blank()
            if self._peek() != ".":
                return found
            self._move(1)

    def _value(self, path: Path) -> None:
        first = self._peek()
        if first and first in "\"'":
            self._string()
        elif first == "[":
            self._move(1)
            number = 0
            while True:
                self._blank(lines=True)
                if self._peek() == "]":
                    break
                self.places[(*path, number)] = self._here()
                self._value((*path, number))
                number += 1
                self._comma()
            self._move(1)
        elif first == "{":
            self._move(1)
            while True:
                self._blank(lines=True)
                if self._peek() == "}":
                    break
                self._pair(path)
                self._comma()
            self._move(1)
        else:
            while self._peek() and self._peek() not in ",]}\n#":
                self._move(1)

    def _comma(self) -> None:
        self._blank(lines=True)
        if self._peek() == ",":
            self._move(1)

    def _string(self) -> None:
        quote = self._peek()
        long = self._text.startswith(quote * 3, self._at)
        end = quote * 3 if long else quote
        self._move(len(end))
        while self._at < len(self._text) and not self._text.startswith(end, self._at):
            self._move(2 if quote == '"' and self._peek() == "\\" else 1)
        self._move(len(end))
        while long and self._peek() == quote:  # a long string may end in up to five quotes
            self._move(1)

    def _blank(self, *, lines: bool = False) -> None:
        """Pass over spaces, and over ends of lines and comments where these may be."""
        while self._peek() and self._peek() in (" \t\n#" if lines else " \t"):
            if self._peek() == "#":
                end = self._text.find("\n", self._at)
                self._move((end if end >= 0 else len(self._text)) - self._at)
            else:
                self._move(1)

    def _peek(self) -> str:
        return self._text[self._at:self._at + 1]

    def _here(self) -> Place:
        return self._line, self._at - self._line_start + 1

    def _move(self, characters: int) -> None:
        if not self._text[self._at:self._at + characters]:
            raise ValueError("the text ends inside a value")  # never after tomllib; a loop without end otherwise
        passed = self._text[self._at:self._at + characters]
        if "\n" in passed:
            self._line += passed.count("\n")
            self._line_start = self._at + passed.rindex("\n") + 1
        self._at += characters


def _unquoted(text: str) -> str:
    return str(next(iter(tomllib.loads(f"{text} = 0"))))


def paths_of(value: Any, path: Path = ()) -> list[Path]:
    """All paths of what `tomllib` read: what `Positions` must know."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths_of(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += paths_of(item, (*path, number))
    return found
