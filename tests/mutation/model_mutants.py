"""Mutants of SPEC section 7: models, and what is done with task vectors as files."""

from __future__ import annotations

from mutation.mutant import FALSE, GONE, Mutant, within

_WEIGHTS = within("tiers/hinet_tiers/weights.py", "tiers/test_weights.py", "tiers/vectors/test_vectors.py")
_SOURCES = within("tiers/hinet_tiers/base_sources.py", "tiers/test_weights.py")
_DIFFERENCE = within("tiers/hinet_tiers/model_difference.py", "tiers/test_weights.py", "tiers/vectors/test_vectors.py")
_MAKE = within("tiers/hinet_tiers/vectors/make.py", "tiers/vectors/test_vectors.py")
_APPLY = within("tiers/hinet_tiers/vectors/apply.py", "tiers/vectors/test_vectors.py")
_VERIFY = within("tiers/hinet_tiers/vectors/verify.py", "tiers/vectors/test_vectors.py")
_DIFF = within("tiers/hinet_tiers/vectors/diff.py", "tiers/vectors/test_vectors.py")
_SPARSIFY = within("tiers/hinet_tiers/sparsify.py", "tiers/vectors/test_vectors.py", "tiers/test_sparsify.py")
_STAGING = within("node/hinet_node/cli/staging.py", "node/test_staging.py")

MUTANTS: list[Mutant] = [
    _WEIGHTS("that a tied head is the embedding", "        if told and not same:", "        if False:"),
    _WEIGHTS("that an untied model has a head", "            if told is False and embedding is not None:",
             "            if False:"),
    _WEIGHTS("that values are finite", "    if np.isfinite(values).all():\n        return\n", "    return\n"),
    _WEIGHTS("that tensors are floats", "if dtype in safetensors_file.ITEM_BYTES and dtype not in FLOATS:", FALSE),
    _WEIGHTS("that a model is not quantised", '    if config.get("quantization_config"):', "    if False:"),
    _WEIGHTS("that a base's file is the one of its manifest",
             'if row is None or base.digest_file(installed.weights) != row["digest"]:', FALSE),
    _SOURCES("that an index tells the truth", "if name not in held or held[name][0].name != shard:", FALSE),
    _SOURCES("that an index tells everything", "    if unlisted:", "    if False:"),
    _DIFFERENCE("that two models consist of the same", "    if found.same:\n", "    if True:\n"),
    _DIFFERENCE("that a tensor too many counts",
                "return not (self.missing or self.extra or", "return not (self.missing or"),
    _MAKE("that models are compared first", "        require_same(base, tuned)\n", "        pass\n"),
    _MAKE("that a difference is finite", "        if not np.isfinite(delta).all():", "        if False:"),
    _APPLY("that a task vector is for this base",
           "    sparsify.check_base(tau.name, header, digest, base.shapes)", GONE),
    _APPLY("that bf16 can hold a sum", "                refuse_non_finite(tau.name, name, raw)", GONE),
    _APPLY("that there is room", "    if free < need:", "    if False:"),
    _VERIFY("that the header's displacement is that of its values", "    if whole and abs(", "    if False and abs("),
    _VERIFY("names and shapes against the base", "if opened.shapes.get(row.name) == row.shape:", "if True:"),
    _DIFF("that two task vectors have one base", "    if headers[0].base != headers[1].base:", "    if False:"),
    _SPARSIFY("the base of a task vector",
              "    if base_digest is not None and header.base.hex() != base_digest:", "    if False:"),
    _STAGING("that nothing of the owner's is overwritten",
             "    if target.is_symlink() or (target.exists() and (folder or not replace)):", "    if False:"),
]
