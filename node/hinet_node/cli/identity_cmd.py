"""`hinet-node identity show|rotate|seal|export-chain`: the household's identity, and copies of it for bad days."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, root, root_key

app = root.group("Show the identity; seal, rotate or export what it needs.")

NEW_SPARE_PAPER = (
    "These are the new spare words, for a second paper that you keep somewhere else.",
    "They can replace the words that are in force from now on, so keep them as safe as those.",
)
NewFile = Annotated[str, typer.Argument(metavar="FILE", help="A new file; an existing one is never written over.")]


@app.command()
def show() -> None:
    """The identity, its root, and how it could be brought back."""
    from hinet_node.cli.local_work import load_membership
    from hinet_protocol.identity import fingerprint, identity_text

    membership = load_membership()
    chain = membership.chain()
    admins = [device.name for device in chain.members() if device.role == "admin"]
    data: dict[str, Any] = {
        "id": identity_text(chain.identity_id), "identity": chain.identity_id, "height": chain.height,
        "heads": list(chain.heads), "root_fingerprint": fingerprint(chain.root_public),
        "spare_promised": chain.root_promise is not None, "admins": admins,
        "epochs": len(chain.epochs()), "epochs_open": len(membership.keyring)}
    output.emit("hinet.identity/1", data, lambda: [
        f"identity  {data['id']}, chain height {chain.height}",
        f"root      {data['root_fingerprint']}, behind the 24 words",
        f"spare     {'promised: the spare words can replace the root' if data['spare_promised'] else 'none promised'}",
        f"admins    {output.clean(', '.join(admins)) or 'none: only the words can let a device in'}",
        f"keys      {data['epochs_open']} of {data['epochs']} vault keys open here",
        "",
        f"If every admin is lost: {context.typed('init --recover')}   with the words and this chain, or a sibling.",
        f"A copy of the chain:    {context.typed('identity export-chain FILE')}"])


@app.command()
def seal(file: NewFile, words_file: root_key.WordsFile = "",
         passphrase_file: root_key.PassphraseFile = "") -> None:
    """Write the root, from its words (or the spare ones), to a new file that a passphrase opens."""
    from hinet_node.belonging.recovery import check_root
    from hinet_node.cli.local_work import load_membership
    from hinet_protocol.identity import root_commitment

    chain = load_membership().chain()
    key = root_key.read_root(words_file)
    spare = root_commitment(key.public) == chain.root_promise
    if not spare:
        check_root(chain, key)
    passphrase = root_key.read_passphrase(passphrase_file, new=True)
    with root_key.new_files() as write:
        write(Path(file), root_key.sealed(key, passphrase))
    output.emit("hinet.identity-seal/1", {"file": file, "spare": spare}, [
        f"{file} holds the {'spare root' if spare else 'root'}; the passphrase opens it. Keep both, in two places; the "
        "paper stays good."])


@app.command("export-chain")
def export_chain(file: NewFile) -> None:
    """Write the chain to a new file, for init --recover on a machine that reaches no sibling."""
    from hinet_node.cli.local_work import load_membership

    chain = load_membership().chain()
    raw = chain.to_bytes()
    with root_key.new_files() as write:
        write(Path(file), raw)
    output.emit("hinet.identity-export-chain/1", {"file": file, "height": chain.height, "entries": len(chain),
                                                  "bytes": len(raw)}, [
        f"{file} holds the chain at height {chain.height} ({output.size_text(len(raw))}). It names your devices and "
        "holds no secret key."])


@app.command()
def rotate(words_file: root_key.WordsFile = "", sealed_root: root_key.SealedRoot = "",
           passphrase_file: root_key.PassphraseFile = "",
           new_spare_file: Annotated[str, typer.Option(metavar="FILE", help="Write the new spare words to a new file "
                                                                            "(0600) instead of showing them.")] = "",
           yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask the words back.")] = False) -> None:
    """Put the spare words in the place of the root's, for good; for a paper that was lost or stolen."""
    from hinet_node.belonging import recovery
    from hinet_node.belonging.membership import draw_root
    from hinet_node.cli import root_entries
    from hinet_node.cli.local_work import load_membership
    from hinet_node.errors import UsageError
    from hinet_node.real.system import SystemClock, SystemRandomness
    from hinet_protocol.identity import fingerprint

    membership, randomness = load_membership(), SystemRandomness()
    chain = membership.chain()
    if not new_spare_file and not output.at_terminal():
        raise UsageError("nobody is at the terminal to write down the new spare words, and they are shown only once",
                         next_step=context.typed("identity rotate --new-spare-file FILE"))
    spare = root_key.read_root(words_file, sealed_root, passphrase_file, which="24 spare words")
    recovery.check_spare(chain, spare)
    following = draw_root(randomness)
    with root_key.new_files() as write:
        if new_spare_file:
            write(Path(new_spare_file), root_key.words_line(following))
        else:
            root_key.show_words(following, NEW_SPARE_PAPER, ask=not yes)
        after = recovery.rotated(chain, spare, following.public, membership.keyring, randomness,
                                 int(SystemClock().now_unix_s()))
        by_agent = root_entries.put_in(chain, after)
    data = {"root_fingerprint": fingerprint(after.root_public), "height": after.height, "by_agent": by_agent,
            "new_spare_file": new_spare_file or None, "epoch_made": after.current_epoch != chain.current_epoch}
    output.emit("hinet.identity-rotate/1", data, lambda: [
        f"The spare words are the root now ({data['root_fingerprint']}).",
        "  The first paper, and sealed copies of it: destroy them. They count for nothing any more, but still open "
        "what was written up to now.",
        "  The spare paper: it is the first one now. The new spare words: keep them somewhere else.",
        *([] if data["epoch_made"] else ["  This device opens no vault key; an admin's device makes the new one."]),
        "  What devices did that this one does not know of is set aside; look who belongs: "
        + context.typed("devices")])
