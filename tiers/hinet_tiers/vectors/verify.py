"""The verb `tau.verify`: every block of a task vector read, and everything that is wrong, by tensor.

Unlike a reader that stops at the first fault it goes on, since a person wants to know how much is lost. Leaves whose
signature it is to the command line, which knows the household.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_protocol import taskvectors
from hinet_protocol.tau_errors import TauError, TauUnsigned
from hinet_tiers import sparsify
from hinet_tiers.backend import Progress
from hinet_tiers.errors import BaseMismatch
from hinet_tiers.vectors.layers import square
from hinet_tiers.weights import open_weights

FAULTS_MAX = 200


def verify_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`{tau, base?}` → `ok`, `faults` (tensor or null, code, fault; the first 200), `faults_count`, and what was read.

    Raises TauMalformed when the header can't be read: nothing can be said of the blocks then.
    """
    path = Path(args["tau"])
    header = sparsify.read_tau_header(path)
    faults: list[dict[str, Any]] = []
    signed = header.signer is not None
    if signed:
        try:
            taskvectors.check_signature(header)
        except TauUnsigned as error:
            faults.append(_fault(None, error))
    if args.get("base"):
        faults += _against_base(path, header, Path(args["base"]), progress)
    faults += _blocks(path, header, progress)
    return {
        "path": str(path), "ok": not faults, "faults": faults[:FAULTS_MAX], "faults_count": len(faults),
        "signed": signed, "base": header.base.hex(), "base_checked": bool(args.get("base")),
        "tensors": len(header.tensors), "kept": header.kept, "bytes": path.stat().st_size,
        "displacement": header.displacement,
    }  # fmt: skip


def _blocks(path: Path, header: taskvectors.TauHeader, progress: Progress) -> list[dict[str, Any]]:
    faults = []
    total, whole = 0.0, True
    with path.open("rb") as file:
        for step, row in enumerate(header.tensors):
            progress(step, len(header.tensors), "reading blocks")
            try:
                total += square(taskvectors.read_tensor(file, header, row.name)[1])
            except TauError as error:
                whole = False
                faults.append(_fault(row.name, error))
    progress(len(header.tensors), len(header.tensors), "reading blocks")
    if whole and abs(math.sqrt(total) - header.displacement) > 1e-9 + 1e-6 * header.displacement:
        faults.append({
            "tensor": None, "code": "E_TAU_DAMAGED",
            "fault": f"The header says a displacement of {header.displacement:.9f}; its values give "
                     f"{math.sqrt(total):.9f}: whoever made this file lied or miscounted.",
        })  # fmt: skip
    return faults


def _against_base(path: Path, header: taskvectors.TauHeader, base: Path, progress: Progress) -> list[dict[str, Any]]:
    """Every tensor that the base lacks or has in another shape, and whether it is the base at all."""
    faults = []
    with open_weights(base) as opened:
        for row in header.tensors:
            if opened.shapes.get(row.name) == row.shape:
                continue
            theirs = opened.shapes.get(row.name)
            what = f"is {list(theirs)} in the base" if theirs else "is not in the base"
            faults.append(_fault(row.name, BaseMismatch(f"Tensor {row.name} {list(row.shape)} {what}.")))
        try:
            sparsify.check_base(path.name, header, opened.digest(progress).hex(), None)
        except BaseMismatch as error:
            faults.append(_fault(None, error))
    return faults


def _fault(tensor: str | None, error: Exception) -> dict[str, Any]:
    return {"tensor": tensor, "code": str(getattr(error, "code", "E_TAU")), "fault": str(error)}
