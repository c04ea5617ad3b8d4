"""Bases: what is installed, that it is always the same, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from hinet_tiers import base, base_sources, safetensors_file
from hinet_tiers.errors import (
    BaseDamaged,
    BaseForeign,
    BaseIncomplete,
    BaseNotFound,
    BaseRefused,
    BaseTruncated,
)  # fmt: skip
from hinet_tiers.gguf_file import GgufFile

from . import tiny_models


def install(source: Path, into: Path) -> base.Base:
    return base.install_base(source, into)


def test_a_folder_becomes_a_base_that_transformers_loads_with_its_rounded_weights(tmp_path: Path) -> None:
    weights = tiny_models.write_folder(tmp_path / "model")
    events: list[tuple[int, int]] = []
    made = base.install_base(
        tmp_path / "model", tmp_path / "bases", lambda step, total, note: events.append((step, total))
    )
    assert made.dir.name == made.digest
    assert events[-1][0] == events[-1][1] > 1
    assert made.parameters == sum(values.size for values in weights.values())
    model, tokenizer = base.load_base(made.dir)
    for name, parameter in model.named_parameters():
        wanted = safetensors_file.widen_bf16(safetensors_file.round_bf16(weights[name]))
        assert np.array_equal(parameter.detach().numpy(), wanted), name
    text = "<|im_start|>user\nHi 42<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_digest_does_not_depend_on_shards_or_on_the_form_of_the_source(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "one")
    tiny_models.write_folder(tmp_path / "three", shards=3)
    tiny_models.write_folder(tmp_path / "other", seed=1)
    one = install(tmp_path / "one", tmp_path / "a")
    assert install(tmp_path / "three", tmp_path / "b").digest == one.digest
    assert install(tmp_path / "other", tmp_path / "c").digest != one.digest


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    first, second = install(tmp_path / "m.gguf", tmp_path / "a"), install(tmp_path / "m.gguf", tmp_path / "b")
    assert first.manifest == second.manifest
    for row in first.manifest["files"]:
        assert (first.dir / row["path"]).read_bytes() == (second.dir / row["path"]).read_bytes()


def test_a_gguf_keeps_its_own_file_for_the_pocket_and_its_rows_in_order(tmp_path: Path) -> None:
    weights = tiny_models.write_gguf_model(tmp_path / "m.gguf")
    made = install(tmp_path / "m.gguf", tmp_path / "bases")
    assert made.pocket is not None
    assert made.pocket.read_bytes() == (tmp_path / "m.gguf").read_bytes()
    entries = safetensors_file.read_header(made.weights)
    for name, values in weights.items():
        held = safetensors_file.read_float32(made.weights, name, entries[name])
        # The GGUF's matrices come from bf16-unrounded weights rounded to 16 bits, then to bf16.
        assert np.allclose(held, values, rtol=2**-7, atol=1e-6), name


def test_installing_again_keeps_what_is_there(tmp_path: Path) -> None:
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    first = install(tmp_path / "m.gguf", tmp_path / "bases")
    inode = first.weights.stat().st_ino
    assert install(tmp_path / "m.gguf", tmp_path / "bases").weights.stat().st_ino == inode


def test_a_damaged_base_is_noticed_and_replaced_by_installing_again(tmp_path: Path) -> None:
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    made = install(tmp_path / "m.gguf", tmp_path / "bases")
    raw = bytearray(made.weights.read_bytes())
    raw[-5] ^= 1
    made.weights.write_bytes(raw)
    with pytest.raises(BaseDamaged, match="safetensors is not the file"):
        base.load_base(made.dir)
    base.verify_base(install(tmp_path / "m.gguf", tmp_path / "bases").dir)


def test_nothing_is_left_behind_by_a_refused_or_killed_build(tmp_path: Path) -> None:
    bases = tmp_path / "bases"
    stale = bases / ".building-999999999"
    stale.mkdir(parents=True)
    weights = tiny_models.write_folder(tmp_path / "model")
    weights["model.norm.weight"][3] = np.nan
    tiny_models.write_shard(tmp_path / "model" / "model.safetensors", weights)
    with pytest.raises(BaseRefused, match=r"model\.norm\.weight .*not finite"):
        install(tmp_path / "model", bases)
    assert list(bases.iterdir()) == []


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseNotFound, match="no model at"):
        install(tmp_path / "nowhere", tmp_path / "bases")


@pytest.mark.parametrize("cut", [0, 3, 23, 60, 400, 3000, 20_000, -1])
def test_a_truncated_gguf_is_refused_wherever_it_was_cut(tmp_path: Path, cut: int) -> None:
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    raw = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(raw[:cut])
    with pytest.raises(BaseTruncated, match=r"cut\.gguf.*copy it again"):
        install(tmp_path / "cut.gguf", tmp_path / "bases")


@pytest.mark.parametrize(
    ("at", "value", "kind", "match"),
    [
        (0, b"GGML", BaseForeign, "no GGUF file"),
        (4, struct.pack("<I", 99), BaseForeign, "version 99"),
        (8, struct.pack("<Q", 1 << 60), BaseRefused, "claims 1152921504606846976 tensors"),
        (16, struct.pack("<Q", 1 << 60), BaseRefused, "settings"),
        (24, struct.pack("<Q", 1 << 62), BaseTruncated, "ends inside setting 0"),
    ],
)
def test_a_gguf_with_a_lying_head_is_refused(
    tmp_path: Path, at: int, value: bytes, kind: type[BaseRefused], match: str
) -> None:
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    raw[at : at + len(value)] = value
    (tmp_path / "bad.gguf").write_bytes(raw)
    with pytest.raises(kind, match=match):
        install(tmp_path / "bad.gguf", tmp_path / "bases")


def test_every_flipped_byte_in_a_gguf_head_is_survived(tmp_path: Path) -> None:
    """Whatever is damaged, the parser answers with its own error or reads on; it never crashes or allocates wildly."""
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    raw = (tmp_path / "m.gguf").read_bytes()
    with GgufFile(tmp_path / "m.gguf") as file:
        head = min(tensor.start for tensor in file.tensors.values())
    bad = tmp_path / "bad.gguf"
    for at in range(0, head, 37):
        bad.write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
        try:
            GgufFile(bad).close()
        except BaseRefused:
            continue


def test_a_model_whose_settings_are_damaged_is_refused_by_our_own_error_or_read(tmp_path: Path) -> None:
    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    raw = (tmp_path / "m.gguf").read_bytes()
    settings_end = raw.index(b"tokenizer.ggml.tokens")
    bad = tmp_path / "bad.gguf"
    refused = 0
    for at in range(24, settings_end, 5):
        for flip in (0x01, 0x80):
            bad.write_bytes(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
            try:
                base_sources.open_source(bad).close()
            except BaseRefused:
                refused += 1
    assert refused > settings_end / 5


@pytest.mark.parametrize("value", [None, -1, 0, 1 << 40, 0.5, "text", [], {}, True, [3], {"rope_type": 7}])
def test_any_setting_of_a_folder_may_be_nonsense(tmp_path: Path, value: object) -> None:
    tiny_models.write_folder(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    for key in ("vocab_size", "hidden_size", "num_attention_heads", "head_dim", "rope_parameters", "eos_token_id",
                "rms_norm_eps", "num_key_value_heads", "max_position_embeddings", "model_type"):  # fmt: skip
        path.write_text(json.dumps(config | {key: value}))
        with contextlib.suppress(BaseRefused):
            base_sources.open_source(tmp_path / "model").close()


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"model": {"vocab": {"a": "b"}}}', b'{"model": {"vocab": {"a": 99999}}}',
                                 b'{"model": {"vocab": {"a": 0}, "type": "Magic"}}'])  # fmt: skip
def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path: Path, raw: bytes) -> None:
    tiny_models.write_folder(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_bytes(raw)
    with pytest.raises(BaseRefused, match="tokenizer"):
        install(tmp_path / "model", tmp_path / "bases")


def test_another_architecture_is_named(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "model", model_type="gpt_neox")
    with pytest.raises(BaseForeign, match="'gpt_neox'"):
        install(tmp_path / "model", tmp_path / "bases")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = tiny_models.write_folder(tmp_path / "model")
    del weights["model.layers.1.mlp.up_proj.weight"]
    tiny_models.write_shard(tmp_path / "model" / "model.safetensors", weights)
    with pytest.raises(BaseIncomplete, match=r"lacks tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        install(tmp_path / "model", tmp_path / "bases")


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    weights = tiny_models.write_folder(tmp_path / "model")
    weights["model.layers.0.mlp.experts.weight"] = np.zeros((2, 2), np.float32)
    tiny_models.write_shard(tmp_path / "model" / "model.safetensors", weights)
    with pytest.raises(BaseForeign, match=r"experts\.weight"):
        install(tmp_path / "model", tmp_path / "bases")


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    weights = tiny_models.write_folder(tmp_path / "model")
    weights["model.norm.weight"] = np.ones(65, np.float32)
    tiny_models.write_shard(tmp_path / "model" / "model.safetensors", weights)
    with pytest.raises(BaseRefused, match=r"model\.norm\.weight has the shape \[65\].*\[64\]"):
        install(tmp_path / "model", tmp_path / "bases")


def test_a_missing_tokenizer_shard_or_config_is_named(tmp_path: Path) -> None:
    for name, match in (
        ("tokenizer.json", "lacks tokenizer.json"),
        ("model-1.safetensors", "lacks the shard model-1.safetensors"),
        ("config.json", "lacks config.json"),
    ):
        folder = tmp_path / name
        tiny_models.write_folder(folder, shards=2)
        (folder / name).unlink()
        with pytest.raises(BaseIncomplete, match=match):
            install(folder, tmp_path / "bases")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(BaseForeign, match="pickle"):
        install(tmp_path / "model", tmp_path / "bases")


def test_a_tied_head_that_differs_is_refused_and_one_that_agrees_is_dropped(tmp_path: Path) -> None:
    weights = tiny_models.write_folder(tmp_path / "model")
    plain = install(tmp_path / "model", tmp_path / "a").digest
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    tiny_models.write_shard(tmp_path / "model" / "model.safetensors", weights)
    assert install(tmp_path / "model", tmp_path / "b").digest == plain
    weights["lm_head.weight"][0, 0] += 1
    tiny_models.write_shard(tmp_path / "model" / "model.safetensors", weights)
    with pytest.raises(BaseRefused, match=r"ties lm_head\.weight"):
        install(tmp_path / "model", tmp_path / "c")


def test_an_untied_model_keeps_its_head(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "model", tiny_models.shape(tied=False))
    made = install(tmp_path / "model", tmp_path / "bases")
    assert "lm_head.weight" in made.shapes
    base.load_base(made.dir)


@pytest.mark.parametrize(
    ("raw", "kind", "match"),
    [
        (b"abc", BaseTruncated, "has 3 bytes"),
        (b"\xff" * 64, BaseRefused, "claims a header of"),
        ((5000).to_bytes(8, "little") + b"{}", BaseTruncated, "ends inside its header"),
        ((3).to_bytes(8, "little") + b"{[}", BaseRefused, "not JSON"),
    ],
)
def test_a_foreign_or_cut_safetensors_file_is_refused(
    tmp_path: Path, raw: bytes, kind: type[BaseRefused], match: str
) -> None:
    tiny_models.write_folder(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(raw)
    with pytest.raises(kind, match=match):
        install(tmp_path / "model", tmp_path / "bases")


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
          "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "overlap"),
        ({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, "cut short"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]}}, "needs 8"),
        ({"a": {"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}}, "dtype 'Q4'"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "not a list of counts"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "not a list of counts"),
        ({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}}, "needs"),
    ],
)  # fmt: skip
def test_a_lying_safetensors_table_is_refused(tmp_path: Path, rows: dict[str, object], match: str) -> None:
    raw = json.dumps(rows).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(BaseRefused, match=match):
        safetensors_file.read_header(path)


def test_a_manifest_that_was_edited_is_refused(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "model")
    made = install(tmp_path / "model", tmp_path / "bases")
    manifest = made.manifest | {"digest": "00" * 32}
    (made.dir / "base.json").write_text(json.dumps(manifest))
    with pytest.raises(BaseDamaged, match="damaged"):
        base.read_base(made.dir)


def test_rounding_to_bf16_is_to_nearest_with_ties_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, 3.0e-40, 65504.0], np.float32)
    import torch

    wanted = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    assert np.array_equal(safetensors_file.widen_bf16(safetensors_file.round_bf16(values)), wanted)


@pytest.mark.slow
def test_the_embedded_default_becomes_its_known_base(tmp_path: Path) -> None:
    made = base.install_base(None, tmp_path)
    assert made.digest == "b2fe02d90e053193c7b186d442d2a4d2b0da070acc0315dac8c3b8142eb0a7eb"
    assert made.parameters == 134_515_008
    assert made.pocket is not None
    model, tokenizer = base.load_base(made.dir)
    from hinet_tiers.prompt import chat_prompt

    prompt = tokenizer(chat_prompt("What is the capital of France?"), return_tensors="pt")
    said = model.generate(**prompt, max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=2)
    assert "Paris" in tokenizer.decode(said[0][prompt.input_ids.shape[1] :])
