"""Any model through one interface: what it consists of, its digest, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hinet_tiers import base, safetensors_file
from hinet_tiers.errors import BaseDamaged, BaseForeign, BaseIncomplete, BaseMismatch, BaseNotFound, BaseRefused
from hinet_tiers.model_difference import difference, require_same
from hinet_tiers.weights import open_weights

from . import tiny_models

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def folder(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32", **config: object) -> Path:
    """A model folder of any names."""
    tiny_models.write_file(path / "model.safetensors", tensors, dtype)
    (path / "config.json").write_text(json.dumps(config))
    return path


def small(seed: int = 0) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {
        EMBEDDING: source.standard_normal((12, 8)).astype(np.float32),
        "model.layers.0.mlp.experts.gate_up_proj": source.standard_normal((2, 4, 8)).astype(np.float32),
        "model.norm.weight": np.ones(8, np.float32),
    }


def digest(path: Path) -> str:
    with open_weights(path) as opened:
        return opened.digest().hex()


def test_a_folder_its_shards_its_single_file_and_the_installed_base_have_one_digest(tmp_path: Path) -> None:
    weights = tiny_models.write_folder(tmp_path / "raw")
    rounded = {name: safetensors_file.widen_bf16(safetensors_file.round_bf16(value)) for name, value in weights.items()}
    for shards, dtype in ((1, "BF16"), (1, "F32"), (3, "F32")):
        tiny_models.write_folder(tmp_path / f"{dtype}-{shards}", shards=shards)
        for shard in (tmp_path / f"{dtype}-{shards}").glob("*.safetensors"):
            held = safetensors_file.read_header(shard)
            tiny_models.write_file(shard, {name: rounded[name] for name in held}, dtype)
    installed = base.install_base(tmp_path / "raw", tmp_path / "bases")
    wanted = installed.digest
    assert digest(installed.dir) == wanted
    assert digest(tmp_path / "BF16-1") == digest(tmp_path / "F32-1") == digest(tmp_path / "F32-3") == wanted
    assert digest(tmp_path / "BF16-1" / "model.safetensors") == wanted
    with open_weights(tmp_path / "raw") as raw:
        exact, as_base = raw.digests()
        assert as_base.hex() == wanted != exact.hex()
        assert raw.tied
        assert raw.parameters == installed.parameters
    with open_weights(installed.dir) as opened:
        assert opened.is_bf16
        assert (opened.read("model.norm.weight") == rounded["model.norm.weight"]).all()


def test_a_gguf_has_hugging_face_names_rows_and_the_same_digest(tmp_path: Path) -> None:
    weights = tiny_models.write_gguf_model(tmp_path / "m.gguf")
    with open_weights(tmp_path / "m.gguf") as opened:
        assert opened.shapes == {name: weights[name].shape for name in sorted(weights)}
        for name, values in weights.items():
            assert np.allclose(opened.read(name), values, atol=1e-3), name
        assert opened.tied
        assert opened.digests()[1].hex() == base.install_base(tmp_path / "m.gguf", tmp_path / "bases").digest


def test_a_changed_weights_file_of_an_installed_base_is_noticed(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "model")
    installed = base.install_base(tmp_path / "model", tmp_path / "bases")
    raw = bytearray(installed.weights.read_bytes())
    raw[-1] ^= 1
    installed.weights.write_bytes(raw)
    with open_weights(installed.dir) as opened, pytest.raises(BaseDamaged, match=r"model\.safetensors"):
        opened.digest()
    installed.weights.unlink()
    with pytest.raises(BaseDamaged, match="lacks"):
        open_weights(installed.dir)


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {}])
def test_a_tied_head_that_is_written_all_the_same_is_no_tensor(tmp_path: Path, config: dict[str, bool]) -> None:
    tensors = small()
    plain = folder(tmp_path / "plain", tensors, **config)
    written = folder(tmp_path / "written", tensors | {HEAD: tensors[EMBEDDING]}, **config)
    with open_weights(written) as opened:
        assert opened.tied
        assert opened.head_dropped == HEAD
        assert HEAD not in opened.shapes
    assert digest(written) == digest(plain)


def test_a_head_of_its_own_is_a_tensor_and_a_tie_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    tensors = small() | {HEAD: small(1)[EMBEDDING]}
    with open_weights(folder(tmp_path / "own", tensors)) as opened:
        assert not opened.tied
        assert HEAD in opened.shapes
    same = small() | {HEAD: small()[EMBEDDING]}
    with open_weights(folder(tmp_path / "same", same, tie_word_embeddings=False)) as opened:
        assert not opened.tied
    with pytest.raises(BaseRefused, match=r"ties lm_head\.weight to model\.embed"):
        open_weights(folder(tmp_path / "false", tensors, tie_word_embeddings=True))
    with pytest.raises(BaseIncomplete, match=r"lm_head\.weight"):
        open_weights(folder(tmp_path / "headless", small(), tie_word_embeddings=False))


def test_tables_that_follow_from_the_settings_are_left_out_and_named(tmp_path: Path) -> None:
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    mask = {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8), "embeddings.position_ids": np.arange(4)}
    with open_weights(folder(tmp_path / "with", small() | table | mask)) as opened:
        assert opened.left_out == sorted(table | mask)
        assert set(opened.shapes) == set(small())
    assert digest(tmp_path / "with") == digest(folder(tmp_path / "without", small()))
    bias = {"h.0.attn.bias": np.ones(4, np.float32)}
    with open_weights(folder(tmp_path / "bias", small() | bias)) as opened:
        assert "h.0.attn.bias" in opened.shapes, "a bias of one dimension is a parameter"


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_every_float_form_is_read_as_the_float32_it_means(tmp_path: Path, dtype: str) -> None:
    exact = {name: np.round(values * 4) / 4 for name, values in small().items()}
    path = folder(tmp_path / dtype, exact, dtype)
    with open_weights(path) as opened:
        for name, values in exact.items():
            assert np.array_equal(opened.read(name), values), name
            assert opened.read(name).dtype == np.float32
    assert digest(path) == digest(folder(tmp_path / "plain", exact))


def test_integers_and_quantised_tensors_are_refused_by_name(tmp_path: Path) -> None:
    packed = {"model.layers.0.mlp.up_proj.qweight": np.ones((4, 2), np.int32)}
    with pytest.raises(BaseForeign, match=r"up_proj\.qweight is I32"):
        open_weights(folder(tmp_path / "packed", small() | packed))
    with pytest.raises(BaseForeign, match="quantised"):
        open_weights(folder(tmp_path / "told", small(), quantization_config={"bits": 4}))
    with pytest.raises(BaseRefused, match=r"model\.empty of shape \[0, 4\]"):
        open_weights(folder(tmp_path / "empty", small() | {"model.empty": np.zeros((0, 4), np.float32)}))


def test_names_that_are_no_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for name in ("a" * 513, "model.\\ud800"):
        tiny_models.write_file(path, {"b" * len(name): np.ones(1, np.float32)})
        path.write_bytes(path.read_bytes().replace(b"b" * len(name), name.encode()))
        with pytest.raises(BaseRefused, match="is no name"):
            open_weights(path)


def test_values_that_are_not_finite_are_counted_by_tensor(tmp_path: Path) -> None:
    tensors = small()
    tensors["model.norm.weight"][[1, 2, 5]] = [np.nan, np.inf, -np.inf]
    path = folder(tmp_path / "bad", tensors)
    with open_weights(path) as opened:
        with pytest.raises(BaseRefused, match=r"model\.norm\.weight has 3 of 8 values .*\(1 NaN, 2 infinite\)"):
            opened.digest()
        assert np.isnan(opened.read_any("model.norm.weight")).sum() == 1
    huge = {"a": np.array([1e300, 1.0])}
    with open_weights(folder(tmp_path / "huge", huge, "F64")) as opened, pytest.raises(BaseRefused, match="1 infinite"):
        opened.read("a")


def test_an_index_must_name_every_tensor_where_it_is(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "m", shards=2)
    index = tmp_path / "m" / "model.safetensors.index.json"
    whole = json.loads(index.read_text())["weight_map"]
    name = sorted(whole)[0]
    other = next(shard for shard in whole.values() if shard != whole[name])
    for changed, said in (
        (whole | {name: other}, name),
        (whole | {"model.more": "model-0.safetensors"}, "model.more"),
        ({key: value for key, value in whole.items() if key != name}, f"holds tensor {name}"),
        (whole | {"model.more": "../model-0.safetensors"}, "outside"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(BaseRefused, match=said):
            open_weights(tmp_path / "m")


def test_what_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(BaseNotFound, match="no model at"):
        open_weights(tmp_path / "nothing")
    (tmp_path / "x.tau").write_bytes(b"HINETTAU" + bytes(200))
    with pytest.raises(BaseForeign, match="task vector"):
        open_weights(tmp_path / "x.tau")
    (tmp_path / "x.bin").write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(BaseForeign, match="pickle"):
        open_weights(tmp_path / "x.bin")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(BaseForeign, match="adapter"):
        open_weights(tmp_path / "adapter")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BaseIncomplete, match=r"model\.safetensors"):
        open_weights(tmp_path / "empty")


def test_differences_of_two_models_are_each_named(tmp_path: Path) -> None:
    first = small() | {"model.a": np.ones(2, np.float32), "model.c": np.ones(3, np.float32)}
    second = small() | {"model.b": np.ones(2, np.float32), "model.c": np.ones((3, 1), np.float32)}
    second |= {EMBEDDING: np.ones((15, 8), np.float32), HEAD: np.zeros((15, 8), np.float32)}
    one, two = open_weights(folder(tmp_path / "one", first)), open_weights(folder(tmp_path / "two", second))
    found = difference(one, two)
    assert found.missing == ("model.a",)
    assert found.extra == (HEAD, "model.b")
    assert found.shapes == (("model.c", (3,), (3, 1)),)
    assert found.vocabulary == ((EMBEDDING, 12, 15),)
    assert found.tied == (True, False)
    with pytest.raises(BaseMismatch) as refused:
        require_same(one, two)
    for said in ("model.a", "model.b", "[3, 1]", "12 rows", "15", "one ties its head", HEAD):
        assert said in str(refused.value), said
    assert not found.same
    assert difference(one, one).same


def test_a_vocabulary_of_another_size_is_refused_with_what_to_do(tmp_path: Path) -> None:
    longer = small() | {EMBEDDING: np.ones((15, 8), np.float32)}
    one, two = open_weights(folder(tmp_path / "one", small())), open_weights(folder(tmp_path / "two", longer))
    with pytest.raises(BaseMismatch, match=r"has 12 rows and that of two 15 .*resize_token_embeddings\(12\)"):
        require_same(one, two)
