"""`hinet-node identity show|seal|export-chain`: what the household's identity is, and copies of it for bad days."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, root, root_key

app = root.group("Show the identity; seal, rotate or export what it needs.")

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
        "spare_promised": chain.genesis.body["next"] is not None, "admins": admins,
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
    """Write the root, from its words, to a new file that a passphrase opens."""
    from hinet_node.belonging.recovery import check_root
    from hinet_node.cli.local_work import load_membership

    chain = load_membership().chain()
    key = root_key.read_root(words_file)
    check_root(chain, key)
    passphrase = root_key.read_passphrase(passphrase_file, new=True)
    with root_key.new_files() as write:
        write(Path(file), root_key.sealed(key, passphrase))
    output.emit("hinet.identity-seal/1", {"file": file}, [
        f"{file} holds the root; the passphrase opens it. Keep both, in two places; the paper stays good."])


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
