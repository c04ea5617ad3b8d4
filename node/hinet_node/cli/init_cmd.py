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
    "Keep them as safe as the first: whoever has them can put them in its place.",
)


def init(code: Annotated[str, typer.Argument(metavar="[CODE]", help="With --rekey on a device that is no admin: what "
                                                                    "the inviting device shows.")] = "",
         name: Annotated[str, typer.Option(help="This device's name (default: the host name).")] = "",
         tier: Annotated[str, typer.Option(help="cloud, laptop or pocket (default: by this machine's memory).")] = "",
         words_file: Annotated[str, typer.Option(metavar="FILE", help="Write the 24 words to FILE and the spare words "
                                                                      "to FILE.spare (new files, 0600) instead of "
                                                                      "showing them. With --recover: read them.")] = "",
         sealed_root: Annotated[str, typer.Option(metavar="FILE", help="Also write the root to a new file that a "
                                                                       "passphrase opens. With --recover: read "
                                                                       "it.")] = "",
         passphrase_file: root_key.PassphraseFile = "",
         yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: neither the words back, nor about "
                                                              "the copy.")] = False,
         recover: Annotated[bool, typer.Option("--recover", help="Make this machine an admin of the identity whose "
                                                                 "words you have.")] = False,
         chain: Annotated[str, typer.Option(metavar="FILE", help="With --recover: the chain, from identity "
                                                                 "export-chain.")] = "",
         revoke_others: Annotated[bool, typer.Option("--revoke-others", help="With --recover: put all other devices "
                                                                             "out of the household.")] = False,
         rekey: Annotated[bool, typer.Option("--rekey", help="Give this copied home keys of its own; vault and chain "
                                                             "stay.")] = False,
         address: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="With --recover or --rekey: where "
                                                                                   "another device is.")] = None,
         timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="How long to look for it.")] = 60.0,
         ) -> None:
    """Make a new identity; this machine is its first device."""
    _refuse_mixtures(recover=recover, rekey=rekey, code=code, chain=chain, addresses=address,
                     revoke_others=revoke_others, papers=bool(words_file or sealed_root))
    checked_tier(tier)
    if recover:
        from hinet_node.cli import recover_cmd
        from hinet_node.cli.run_cmd import multiaddr

        recover_cmd.recover(recover_cmd.Wish(name, tier, words_file, sealed_root, passphrase_file, chain,
                                             tuple(map(multiaddr, address or ())), revoke_others, timeout))
    elif rekey:
        from hinet_node.cli import rekey_cmd

        rekey_cmd.rekey(code, name=name, addresses=tuple(address or ()), timeout_s=timeout, ask=not yes)
    else:
        _init(name, tier, words_file, sealed_root, passphrase_file, ask=not yes)


def _refuse_mixtures(*, recover: bool, rekey: bool, code: str, chain: str, addresses: list[str] | None,
                     revoke_others: bool, papers: bool) -> None:
    """Errors: `UsageError` for options that do not belong together."""
    wrong = [
        (recover and rekey, "--recover and --rekey are two ways", "take --recover with the words, --rekey for a copy"),
        (bool(code) and not rekey, "init takes no code", "to join your other devices: hinet-node join CODE"),
        ((bool(chain) or revoke_others) and not recover, "--chain and --revoke-others belong to --recover",
         "add --recover"),
        (bool(addresses) and not (recover or rekey), "--address belongs to --recover or --rekey",
         "to join your other devices: hinet-node join CODE --address ADDRESS"),
        (rekey and papers, "--rekey needs no words", "leave out --words-file and --sealed-root"),
    ]
    for is_wrong, what, next_step in wrong:
        if is_wrong:
            raise UsageError(what, next_step=next_step)


def _init(name: str, tier: str, words_file: str, sealed_root: str, passphrase_file: str, *, ask: bool) -> None:
    """A new identity."""
    from hinet_node import config, home, machine
    from hinet_node.belonging.membership import Membership, draw_root, refuse_second
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness

    folder = context.home_path()
    disk, randomness = RealDisk(folder), SystemRandomness()
    refuse_second(disk)
    wanted = config.Config(name=name or default_name(), tier=tier or machine.suggested_tier(machine.describe()))
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
        hand_over(root, spare, words_file, write, ask=ask)
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
        f"next: {context.typed('up')}        start the agent",
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
