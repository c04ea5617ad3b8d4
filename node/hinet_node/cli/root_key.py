"""The root at the command line: shown or written once, and read back from words, a words file or a sealed copy.

Every command that needs the root asks here, with the same three ways in. Words and passphrases come from a terminal, a
file or stdin; they never stand in arguments, logs or JSON. What the root then signs is left to `belonging`.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet_node.cli import context, output
from hinet_node.errors import NodeError, UsageError

if TYPE_CHECKING:
    from hinet_protocol.identity import RootKey

WORDS_ASKED = 3
TRIES_MAX = 3
SECRET_FILE_BYTES_MAX = 4_096

WordsFile = Annotated[str, typer.Option("--words-file", metavar="FILE", help="Read the 24 words from a file (- for "
                                                                             "stdin) instead of asking for them.")]
SealedRoot = Annotated[str, typer.Option("--sealed-root", metavar="FILE", help="Read the root from its sealed copy "
                                                                               "instead of asking for the words.")]
PassphraseFile = Annotated[str, typer.Option("--passphrase-file", metavar="FILE", help="Read the sealed copy's "
                                                                                       "passphrase from a file (- for "
                                                                                       "stdin) instead of asking.")]


def read_root(words_file: str = "", sealed_root: str = "", passphrase_file: str = "", *,
              which: str = "24 words") -> RootKey:
    """The root, from the words file or sealed copy that was named, or typed at the terminal.

    Errors: `UsageError` when two ways are named or nobody is there to ask; `PhraseError`, `PassphraseWrong`.
    """
    from hinet_protocol.identity import RootKey

    if words_file and sealed_root:
        raise UsageError("--words-file and --sealed-root are two ways to the same root", next_step="name one of them")
    if passphrase_file and not sealed_root:
        raise UsageError("--passphrase-file belongs to a sealed root", next_step="add --sealed-root FILE")
    if words_file:
        return RootKey.from_words(_read_secret(words_file).decode("utf-8", "replace"))
    if sealed_root:
        from hinet_protocol.sealed_root import open_sealed_root

        raw = _read_secret(sealed_root)
        return open_sealed_root(raw, read_passphrase(passphrase_file))
    if not sys.stdin.isatty():
        raise UsageError(f"this needs the {which}, and nobody is at the terminal to type them",
                         next_step="add --words-file FILE, or --sealed-root FILE with --passphrase-file FILE")
    return _typed_root(which)


def read_passphrase(passphrase_file: str = "", *, new: bool = False) -> str:
    """The first line of the file, or what is typed without echo; a `new` one is typed twice.

    Errors: `UsageError` when nobody is there, the two differ, or a new one is too short.
    """
    from hinet_protocol import limits

    if passphrase_file:
        lines = _read_secret(passphrase_file).decode("utf-8", "replace").splitlines()
        typed = lines[0] if lines else ""
    else:
        typed = _typed_passphrase(again=new)
    if new and len(typed) < limits.passphrase_chars_min:
        raise UsageError(f"a passphrase needs {limits.passphrase_chars_min} characters at least, and this has "
                         f"{len(typed)}", next_step="take five or six words that nobody else would put together")
    return typed


def _typed_passphrase(*, again: bool) -> str:
    if not sys.stdin.isatty():
        raise UsageError("this needs the passphrase of the sealed root, and nobody is at the terminal to type it",
                         next_step="add --passphrase-file FILE (- for stdin)")
    typed = _typed_without_echo("Passphrase of the sealed root: ")
    if again and _typed_without_echo("The same passphrase once more: ") != typed:
        raise UsageError("the two passphrases differ, so nothing was written", next_step="run the command again")
    return typed


def sealed(root: RootKey, passphrase: str) -> bytes:
    """The bytes of a sealed copy. Takes about a second, on purpose."""
    from hinet_protocol.sealed_root import seal_root, sealing_entropy_bytes

    return seal_root(root, passphrase, secrets.token_bytes(sealing_entropy_bytes))


Write = Callable[[Path, bytes], None]


@contextmanager
def new_files() -> Iterator[Write]:
    """Gives a function that writes a new secret file, 0600 from its first byte and never over another one. When the
    work inside fails, what was written is removed: words of a root that never came to be would mislead."""
    written: list[Path] = []

    def write(path: Path, data: bytes) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise UsageError(f"{path} exists already, and secrets are never written over a file",
                             next_step="choose another file") from None
        written.append(path)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            error.filename = str(path)  # a failed write names no file by itself
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    try:
        yield write
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def words_line(root: RootKey) -> bytes:
    """What a words file holds."""
    return (" ".join(root.words()) + "\n").encode("utf-8")


def show_words(root: RootKey, introduction: Sequence[str], *, ask: bool) -> None:
    """Show the 24 words once at the terminal, and ask three of them back."""
    words = root.words()
    for line in introduction:
        output.say(line)
    output.say("")
    rows = [[f"{row + 1 + 6 * column:>2} {words[row + 6 * column]}" for column in range(4)] for row in range(6)]
    for line in output.table(rows, indent="  "):
        output.say(line)
    output.say("")
    if not ask:
        return
    positions = sorted(secrets.SystemRandom().sample(range(len(words)), WORDS_ASKED))
    for position in positions:
        for left in range(TRIES_MAX - 1, -1, -1):
            if output.ask(f"Word {position + 1}: ").lower() == words[position]:
                break
            if left == 0:
                raise NodeError("the words were not confirmed, so nothing was written",
                                next_step=context.typed(context.current.command or "init"),
                                code="E_WORDS_NOT_CONFIRMED")
            output.say("That is another word. Look at your paper once more.")
    output.say("All three are right.")
    output.say("")


def _typed_root(which: str) -> RootKey:
    """Words as they are typed, a few or all on a line; a mistyped one is named at once, a wrong phrase asked again."""
    from hinet_protocol.errors import PhraseError
    from hinet_protocol.identity import RootKey, nearest_word, root_words, word_number

    for left in range(TRIES_MAX - 1, -1, -1):
        output.say(f"Type the {which}, in order; as many on a line as you like.")
        words: list[str] = []
        while len(words) < root_words:
            given = output.ask(f"Words {len(words) + 1} to {root_words}: ").split()
            wrong = next((word for word in given if word_number(word) is None), None)
            if wrong is None:
                words += given
                continue
            near = nearest_word(wrong)
            output.say(f"{output.clean(wrong)!r} is not one of the words{f'; did you mean {near!r}?' if near else '.'} "
                       "Type that line again.")
        try:
            return RootKey.from_words(words)
        except PhraseError as error:
            if left == 0:
                raise
            output.say(str(error))
    raise AssertionError("the last try returns or raises")


def _typed_without_echo(question: str) -> str:
    import getpass

    return getpass.getpass(question, stream=sys.stderr)


def _read_secret(name: str) -> bytes:
    """A small file, or stdin for `-`. Errors: `OSError` as it is; `UsageError` for one that is too long."""
    if name == "-":
        found = sys.stdin.buffer.read(SECRET_FILE_BYTES_MAX + 1)
    else:
        with Path(name).open("rb") as stream:
            found = stream.read(SECRET_FILE_BYTES_MAX + 1)
    if len(found) > SECRET_FILE_BYTES_MAX:
        raise UsageError(f"{name} is too long to be words, a passphrase or a sealed root", next_step="check the path")
    return found
