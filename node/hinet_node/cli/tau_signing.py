"""Task vectors and this home: signing one with the device's key, and whose signature one carries.

Without a home nothing is signed, and that is said. The signature covers the header, which covers every block (SPEC
section 7.2); blocks are not read here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hinet_node import home
from hinet_node.belonging.membership import Membership
from hinet_node.cli import context, local_work
from hinet_protocol import taskvectors
from hinet_protocol.tau_errors import TauUnsigned


def sign(path: Path) -> dict[str, Any]:
    """Sign a `.tau` that no one else has seen yet. Gives what `signer_of` does; without a home `household` is `no key`.

    Errors: `IntegrityError`, `NotAuthorised` when there is a home and its keys can't be used; `OSError`.
    """
    membership = _membership()
    if membership is None or not membership.device.live:
        return {"signer": None, "household": "no key", "device": None}
    with path.open("r+b") as file:
        header = taskvectors.read_header(file, path.stat().st_size)
        signature = membership.sign(taskvectors.SIGNING_DOMAIN, taskvectors.signing_message(header))
        file.seek(0)
        file.write(taskvectors.with_signature(header, membership.device_public, signature))
    return {"signer": membership.device_public.hex(), "household": "member", "device": membership.name}


def require_usable_key() -> None:
    """Before work whose result will be signed. Errors: `IntegrityError`, `NotAuthorised` where there is a home whose
    keys can't be used."""
    _membership()


def signer_of(path: Path) -> dict[str, Any]:
    """Who signed a `.tau`: `signer` (hex or null), `device` (its name in this household, or null), and `household`:
    `unsigned`, `broken` (the signature does not match), `no home`, `member`, `keeper`, `removed` or `stranger`."""
    with path.open("rb") as file:
        header = taskvectors.read_header(file, path.stat().st_size)
    if header.signer is None:
        return {"signer": None, "household": "unsigned", "device": None}
    signer = header.signer.hex()
    try:
        taskvectors.check_signature(header)
    except TauUnsigned:
        return {"signer": signer, "household": "broken", "device": None}
    membership = _membership()
    if membership is None:
        return {"signer": signer, "household": "no home", "device": None}
    name = membership.names().get(header.signer)
    if name is None:
        return {"signer": signer, "household": "stranger", "device": None}
    standing = "member" if header.signer in membership.members() else "keeper" if (
        header.signer in membership.keepers()) else "removed"
    return {"signer": signer, "household": standing, "device": name}


def signed_text(found: dict[str, Any]) -> str:
    """One line for a person."""
    short = f"key {str(found['signer'])[:12]}"
    texts = {"unsigned": "not signed", "no key": "not signed: there is no home here",
             "broken": f"the signature of {short} does NOT match: it was changed afterwards",
             "no home": f"signed by {short} (there is no home here to know it)",
             "member": f"signed by {found['device']}, a device of this household",
             "keeper": f"signed by {found['device']}, a keeper of this household, which may write nothing",
             "removed": f"signed by {found['device']}, which belongs to this household NO MORE",
             "stranger": f"signed by {short}, which does NOT belong to this household"}
    return texts[str(found["household"])]


def _membership() -> Membership | None:
    """This home's place in its household, None without a home."""
    if not (Path(context.home_path()) / home.CHAIN_HEAD).exists():
        return None
    return local_work.load_membership()
