"""`hinet-node init`: a new identity, with this machine as its first device.

The 24 words are the root key; they are shown once, or written once to a file, and kept nowhere else. They never stand
in arguments, logs or JSON.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from hinet_node.cli import context, output
from hinet_node.errors import NodeError, UsageError

WORDS_ASKED = 3
TRIES_MAX = 3


def init(name: Annotated[str, typer.Option(help="This device's name (default: the host name).")] = "",
         tier: Annotated[str, typer.Option(help="cloud, laptop or pocket (default: by this machine's memory).")] = "",
         words_file: Annotated[str, typer.Option(metavar="FILE", help="Write the 24 words to a new file (0600) "
                                                                      "instead of showing them.")] = "",
         yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask the words back.")] = False) -> None:
    """Make a new identity; this machine is its first device."""
    from hinet_node import config, home, machine
    from hinet_node.belonging.membership import Membership, draw_root, refuse_second
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness

    folder = context.home_path()
    disk, randomness = RealDisk(folder), SystemRandomness()
    refuse_second(disk)
    wanted = config.Config(name=name or default_name(), tier=checked_tier(tier) or
                           machine.suggested_tier(machine.describe()))
    if not words_file and not output.at_terminal():
        raise UsageError("nobody is at the terminal to write down the 24 words, and they are shown only once",
                         next_step=context.typed("init --words-file FILE"))
    with home.locked(folder):
        refuse_second(disk)
        root = draw_root(randomness)
        written = _write_words(Path(words_file), root.words()) if words_file else None
        try:
            if written is None:
                _show_words(root.words(), ask=not yes)
            membership = Membership.found(disk, randomness, SystemClock(), name=wanted.name, tier=wanted.tier,
                                          root=root)
        except BaseException:
            if written is not None:
                written.unlink(missing_ok=True)
            raise
        config.write(disk, wanted)
    from hinet_node.belonging.household import describe_household

    found = describe_household(membership, {})
    data = {"identity": found["identity"], "device": found["device"], "home": folder,
            "words_file": str(written) if written else None}
    output.emit("hinet.init/1", data, [
        f"{output.style(wanted.name, 'bold')} is the first device of identity {found['identity']['id']} "
        f"({wanted.tier}, admin, {found['device']['fingerprint']}).",
        *([f"The 24 words are in {written}: print it, keep the paper safe, delete the file."] if written else []),
        "",
        f"next: {context.typed('run')}       start the agent",
        f"      {context.typed('invite')}    then let your other machines join",
    ])


def default_name() -> str:
    """The host name's first part, as a device name."""
    from hinet_protocol import limits

    bare = socket.gethostname().partition(".")[0]
    kept = "".join(letter for letter in bare if letter.isalnum() or letter in "-_")
    return kept.encode("utf-8")[:limits.name_bytes_max].decode("utf-8", "ignore") or "device"


def checked_tier(tier: str) -> str:
    """The tier, if it is one or empty. Errors: `UsageError`."""
    from hinet_node.config import TIERS

    if tier and tier not in TIERS:
        raise UsageError(f"there is no tier {tier!r}", next_step=f"--tier {', '.join(TIERS[:-1])} or {TIERS[-1]}")
    return tier


def _write_words(path: Path, words: tuple[str, ...]) -> Path:
    """A new file, 0600 from its first byte; an existing one is never replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists already, and words are never written over a file",
                         next_step="choose another --words-file") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(" ".join(words) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    return path


def _show_words(words: tuple[str, ...], *, ask: bool) -> None:
    output.say("These 24 words are your identity. Write them on paper, in order.")
    output.say("They are shown only now. Whoever has them owns the household; without them, a household whose")
    output.say("devices are all lost can't be brought back.")
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
                                next_step=context.typed("init"), code="E_WORDS_NOT_CONFIRMED")
            output.say("That is another word. Look at your paper once more.")
    output.say("All three are right.")
    sys.stderr.flush()
