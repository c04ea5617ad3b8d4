"""The verb `tau.diff`: two task vectors, or two models, side by side.

Of two task vectors of one base: how many entries both keep, how often their signs conflict there, their cosine, how far
each moves the base and how far apart they end, in all and by layer. A tensor that one of them does not list counts as
zeros and is named. Of two models: what they consist of, named exactly, and how far their common tensors lie apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hinet_protocol import taskvectors
from hinet_tiers import sparsify
from hinet_tiers.backend import Progress
from hinet_tiers.errors import BadRequest, BaseMismatch
from hinet_tiers.model_difference import difference
from hinet_tiers.vectors.layers import by_layer, distance_square, dot, square
from hinet_tiers.weights import Weights, open_weights

if TYPE_CHECKING:
    import numpy as np

NAMES_MAX = 250
"""Names listed of one kind; the count stands beside them."""


def diff_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`{first, second}`: two `.tau` files, or two models of any form."""
    first, second = Path(args["first"]), Path(args["second"])
    kinds = [_is_tau(first), _is_tau(second)]
    if all(kinds):
        return diff_taus(first, second, progress)
    if any(kinds):
        tau, model = (first, second) if kinds[0] else (second, first)
        raise BadRequest(f"{tau.name} is a task vector and {model.name} is not: give two task vectors, or two models.")
    with open_weights(first) as one, open_weights(second) as two:
        return diff_models(one, two, progress)


def diff_taus(first: Path, second: Path, progress: Progress) -> dict[str, Any]:
    """Compare two task vectors of one base. Raises BaseMismatch for two bases or another shape of one tensor."""
    headers = sparsify.read_tau_header(first), sparsify.read_tau_header(second)
    if headers[0].base != headers[1].base:
        raise BaseMismatch(
            f"{first.name} belongs to base {headers[0].base.hex()[:12]} and {second.name} to "
            f"{headers[1].base.hex()[:12]}: two task vectors can be compared on one base only."
        )
    rows = [{row.name: row for row in header.tensors} for header in headers]
    names = sorted(rows[0].keys() | rows[1].keys(), key=str.encode)
    figures = []
    with first.open("rb") as one, second.open("rb") as two:
        for step, name in enumerate(names):
            progress(step, len(names), "comparing")
            shapes = {side[name].shape for side in rows if name in side}
            if len(shapes) > 1:
                said = " and ".join(str(list(shape)) for shape in sorted(shapes))
                raise BaseMismatch(f"Tensor {name} is {said} in two task vectors of one base: one of them is damaged.")
            figures.append((name, _compare(one, two, headers, name, rows)))
    progress(len(names), len(names), "comparing")
    layers = [layer | _shares(layer) for layer in by_layer(figures)]
    whole = by_layer(("all.weight", row) for _, row in figures)[0] if figures else {}
    return {
        "kind": "task-vectors", "base": headers[0].base.hex(), "first": str(first), "second": str(second),
        **_tidy({**whole, **_shares(whole)}), "layers": [_tidy(layer, keep=("layer",)) for layer in layers],
        "only_first": _names(name for name in rows[0] if name not in rows[1]),
        "only_second": _names(name for name in rows[1] if name not in rows[0]),
        "only_first_count": len(rows[0].keys() - rows[1].keys()),
        "only_second_count": len(rows[1].keys() - rows[0].keys()),
    }  # fmt: skip


def _compare(
    one: BinaryIO, two: BinaryIO, headers: tuple[taskvectors.TauHeader, taskvectors.TauHeader], name: str,
    rows: list[dict[str, taskvectors.TauTensor]],
) -> dict[str, float]:  # fmt: skip
    """The sums of one tensor that add up over tensors."""
    import numpy as np

    size = next(side[name].size for side in rows if name in side)
    dense, kept = [], []
    for file, header, side in ((one, headers[0], rows[0]), (two, headers[1], rows[1])):
        values, mask = np.zeros(size, np.float32), np.zeros(size, np.bool_)
        if name in side:
            positions, found = taskvectors.read_tensor(file, header, name)
            values[positions], mask[positions] = found, True
        dense.append(values)
        kept.append(mask)
    both = kept[0] & kept[1]
    conflict = both & (np.signbit(dense[0]) != np.signbit(dense[1])) & (dense[0] != 0) & (dense[1] != 0)
    return {
        "entries": size, "kept_first": int(kept[0].sum()), "kept_second": int(kept[1].sum()), "both": int(both.sum()),
        "conflicts": int(conflict.sum()), "product": dot(*dense), "square_first": square(dense[0]),
        "square_second": square(dense[1]), "square_difference": distance_square(*dense),
    }  # fmt: skip


def _shares(sums: Mapping[str, Any]) -> dict[str, Any]:
    """What is read from sums: shares are of what they are shares of, None where there is nothing to share."""
    if not sums:
        return {}
    either = sums["kept_first"] + sums["kept_second"] - sums["both"]
    norms = (sums["square_first"] * sums["square_second"]) ** 0.5
    return {
        "overlap": sums["both"] / either if either else None,
        "sign_conflict": sums["conflicts"] / sums["both"] if sums["both"] else None,
        "cosine": sums["product"] / norms if norms else None,
        "displacement_first": sums["square_first"] ** 0.5, "displacement_second": sums["square_second"] ** 0.5,
        "displacement_difference": sums["square_difference"] ** 0.5,
    }  # fmt: skip


def _tidy(figures: Mapping[str, Any], keep: tuple[str, ...] = ()) -> dict[str, Any]:
    sums = ("product", "square_first", "square_second", "square_difference", "layer")
    return {key: value for key, value in figures.items() if key in keep or key not in sums}


def diff_models(one: Weights, two: Weights, progress: Progress) -> dict[str, Any]:
    """Compare two models: what they consist of, and the distance of the tensors that both have in one shape."""
    found = difference(one, two, ("the first", "the second"))
    common = [name for name, shape in one.shapes.items() if two.shapes.get(name) == shape]
    rows, broken = [], []
    changed_tensors = 0
    for step, name in enumerate(common):
        progress(step, len(common), "comparing")
        ours, theirs = one.read_any(name).reshape(-1), two.read_any(name).reshape(-1)
        unfit = [_unfit(values) for values in (ours, theirs)]
        if any(unfit):
            broken.append({"tensor": name, "first": unfit[0], "second": unfit[1]})
            continue
        changed = _count(ours != theirs)
        changed_tensors += changed > 0
        rows.append((name, {
            "tensors": 1, "entries": ours.size, "square_first": square(ours), "changed": changed,
            "square": distance_square(ours, theirs),
        }))  # fmt: skip
    progress(len(common), len(common), "comparing")
    layers = [_distances(layer) for layer in by_layer(rows)]
    whole = _distances(by_layer(("all.weight", row) for _, row in rows)[0]) if rows else {}
    names = found.as_json()
    return {
        "kind": "models", "first": str(one.path), "second": str(two.path), "same_tensors": found.same,
        "equal": found.same and not broken and not changed_tensors, "lines": found.lines(),
        **{key: names[key][:NAMES_MAX] for key in ("missing", "extra", "shapes", "vocabulary")},
        **{f"{key}_count": len(names[key]) for key in ("missing", "extra", "shapes")},
        "tied": names["tied"], "left_out": [one.left_out[:100], two.left_out[:100]],
        "head_dropped": [one.head_dropped, two.head_dropped], "not_finite": broken[:NAMES_MAX],
        "changed_tensors": changed_tensors, "common_tensors": len(common), "layers": layers,
        "entries": whole.get("entries", 0), "changed": whole.get("changed", 0),
        "displacement": whole.get("displacement", 0.0), "relative": whole.get("relative"),
    }  # fmt: skip


def _distances(layer: dict[str, Any]) -> dict[str, Any]:
    norm, distance = layer.pop("square_first") ** 0.5, layer.pop("square") ** 0.5
    return {**layer, "displacement": distance, "relative": distance / norm if norm else None}


def _unfit(values: np.ndarray) -> int:
    import numpy as np

    return int(values.size - np.count_nonzero(np.isfinite(values)))


def _count(values: np.ndarray) -> int:
    import numpy as np

    return int(np.count_nonzero(values))


def _names(names: Any) -> list[str]:
    return sorted(names, key=str.encode)[:NAMES_MAX]


def _is_tau(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == taskvectors.MAGIC
