"""`hinet-node init`: a new identity, with this machine as its first device; or this machine as a device again.

Two papers of 24 words are shown once, or written once to files, and kept nowhere else: the root's, and the spare ones
that replace them if the first are stolen. Words never stand in arguments, logs or JSON. `--recover` and `--rekey` are
`recover_cmd`'s and `rekey_cmd`'s.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet_node.cli import context, output, root_key
from hinet_node.errors import UsageError

if TYPE_CHECKING:
    from hinet_protocol.identity import RootKey

UNRECOVERABLE = ("If the words and all devices are lost, everything is lost for good: nobody, nowhere, can bring it "
                 "back.")
FIRST_PAPER = (
    "These 24 words are your identity. Write them on paper, in order.",
    "They are shown only now. Whoever has them owns the household.",
    UNRECOVERABLE,
)
SPARE_PAPER = (
    "These are the spare words, for a second paper that you keep somewhere else.",
    "If the first paper is stolen, they replace it: hinet-node identity rotate. They open nothing until then.",
)


def init(name: Annotated[str, typer.Option(help="This device's name (default: the host name).")] = "",
         tier: Annotated[str, typer.Option(help="cloud, laptop or pocket (default: by this machine's memory).")] = "",
         words_file: Annotated[str, typer.Option(metavar="FILE", help="Write the 24 words to FILE and the spare words "
                                                                      "to FILE.spare (new files, 0600) instead of "
                                                                      "showing them.")] = "",
         sealed_root: Annotated[str, typer.Option(metavar="FILE", help="Also write the root to a new file that a "
                                                                       "passphrase opens.")] = "",
         passphrase_file: root_key.PassphraseFile = "",
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
    if passphrase_file and not sealed_root:
        raise UsageError("--passphrase-file belongs to a sealed root", next_step="add --sealed-root FILE")
    passphrase = root_key.read_passphrase(passphrase_file, new=True) if sealed_root else None
    with home.locked(folder), root_key.new_files() as write:
        refuse_second(disk)
        root, spare = draw_root(randomness), draw_root(randomness)
        if passphrase is not None:
            write(Path(sealed_root), root_key.sealed(root, passphrase))
        hand_over(root, spare, words_file, write, ask=not yes)
        Membership.found(disk, randomness, SystemClock(), name=wanted.name, tier=wanted.tier, root=root,
                         next_root_public=spare.public)
    config.write(disk, wanted)
    _report(folder, words_file, sealed_root)


def hand_over(root: RootKey, spare: RootKey, words_file: str, write: root_key.Write, *, ask: bool) -> None:
    """Both papers: to FILE and FILE.spare, or to the screen, one after the other."""
    if words_file:
        write(Path(words_file), root_key.words_line(root))
        write(Path(f"{words_file}.spare"), root_key.words_line(spare))
        return
    root_key.show_words(root, FIRST_PAPER, ask=ask)
    root_key.show_words(spare, SPARE_PAPER, ask=ask)


def _report(folder: str, words_file: str, sealed_root: str) -> None:
    from hinet_node.belonging.household import describe_household
    from hinet_node.cli.local_work import load_membership

    found = describe_household(load_membership(), {})
    device = found["device"]
    spare_file = f"{words_file}.spare" if words_file else None
    if words_file:
        output.say(UNRECOVERABLE)
    data = {"identity": found["identity"], "device": device, "home": folder, "words_file": words_file or None,
            "spare_words_file": spare_file, "sealed_root": sealed_root or None}
    output.emit("hinet.init/1", data, [
        f"{output.style(device['name'], 'bold')} is the first device of identity {found['identity']['id']} "
        f"({device['tier']}, admin, {device['fingerprint']}).",
        *([f"The 24 words are in {words_file}, the spare words in {spare_file}: print both, keep the papers in two "
           "places, delete the files."] if words_file else []),
        *([f"A sealed copy of the root is in {sealed_root}; its passphrase opens it."] if sealed_root else []),
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
