"""`learning = "numpy"`: a small model that really learns, as the Compute port of simulated devices.

Multinomial logistic regression from a question's words (hashed) to the answers that the notes hold. `train.full` fits
it and keeps the largest entries as a real `.tau`; `train.distill` teaches a model of a quarter of the size to agree;
`merge` averages task vectors; `evaluate` answers, with loss and accuracy where the right answers are given. The
files and all other verbs are those of the fake engine, so the agent's whole chain runs on it.

To the bit: float64, sums in one fixed order, no BLAS and no threads; the seed is the data's own digest. Exact on one
machine and numpy version; another processor may differ in the last bits of `exp`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import trio
from blake3 import blake3

from hinet_node.ports import Compute
from hinet_simnet.compute import FakeCompute
from hinet_simnet.machines import SimMachine
from hinet_tiers import fake
from hinet_tiers.backend import Progress, Verb
from hinet_tiers.errors import AdapterRefused, BadRequest, NotLoaded
from hinet_tiers.sparsify import SparseTensor, read_tau, read_tau_header, select_top, write_tau

Array = npt.NDArray[np.float64]
FEATURES = 512
STUDENT_FEATURES = FEATURES // 4
STEPS, RATE, DECAY = 300, 2.0, 1e-4
"""A rate of 4 is where descent on rows of unit length stops to converge."""
KEPT_SHARE = 0.25
ANSWERS_MAX, PAIRS_MAX = 512, 20_000
CURVE_EVERY = 10
TENSOR = "model.answers.weight"

Facts = dict[str, list[list[float]]]
"""What was measured over virtual time, as `Outcome.facts` holds it: {name: [[at_s, value], ...]}."""


def computes(learning: str, facts: Facts | None = None) -> Callable[[SimMachine], Compute]:
    """The Compute ports of a world by `Scenario.learning`; with "numpy", loss and accuracy of each device's training
    go into `facts` at the virtual time at which they were measured."""
    if learning == "names":
        return lambda machine: FakeCompute(machine.disk)
    assert learning == "numpy", f"no such learning: {learning}"

    def make(machine: SimMachine) -> Compute:
        def measured(name: str, value: float) -> None:
            if facts is not None:
                facts.setdefault(f"{name} {machine.name}", []).append([trio.current_time(), value])

        return FakeCompute(machine.disk, verbs=verbs(measured))

    return make


def verbs(measured: Callable[[str, float], None] = lambda name, value: None) -> dict[str, Verb]:
    """The engine's verbs. `measured` is told `loss`, `accuracy` and `agreement` as they come."""
    def train(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        made = train_full(args, progress)
        measured("loss", made["metrics"]["loss"])
        measured("accuracy", made["metrics"]["accuracy"])
        return made

    def distil(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        made = train_distill(args, progress)
        measured("agreement", made["metrics"]["agreement"])
        return made

    return {**fake.VERBS, "train.full": train, "train.distill": distil, "merge": merge, "evaluate": evaluate,
            "adapter.to_gguf": to_gguf, "serve.load": serve_load, "serve.adapter": serve_adapter,
            "serve.answer": serve_answer, "serve.score": serve_score}


# ---- the model -----------------------------------------------------------------------------------------------------


class Model:
    """Weights from hashed words to answers. No words known, or no answers: it says that it does not know."""

    def __init__(self, weights: Array, answers: Sequence[str]) -> None:
        self.weights = weights
        self.answers = tuple(answers)

    def logits(self, questions: Sequence[str]) -> Array:
        rows = features(questions, len(self.weights))
        return np.asarray(np.einsum("qf,fa->qa", rows, self.weights, optimize=False))

    def answer(self, question: str) -> str:
        if not self.answers:
            return fake.UNKNOWN
        logits = self.logits([question])[0]
        return fake.UNKNOWN if not logits.any() else self.answers[int(np.argmax(logits))]

    def measure(self, pairs: Sequence[Sequence[str]]) -> tuple[float, float]:
        """Mean cross-entropy in nats (an answer that it does not know costs as an even guess), and accuracy."""
        if not pairs or not self.answers:
            return float(np.log(max(2, len(self.answers)))), 0.0
        chances = softmax(self.logits([question for question, _ in pairs]))
        place = {answer: at for at, answer in enumerate(self.answers)}
        even = 1.0 / len(self.answers)
        likely = [chances[row, place[answer]] if answer in place else even for row, (_, answer) in enumerate(pairs)]
        right = [self.answers[int(np.argmax(chances[row]))] == answer for row, (_, answer) in enumerate(pairs)]
        return float(-np.mean(np.log(np.maximum(likely, 1e-300)))), sum(right) / len(right)


def features(questions: Sequence[str], size: int) -> Array:
    """One row of unit length for each question: each word has two places, by its digest, so that two words that share
    one are told apart by the other."""
    rows = np.zeros((len(questions), size), np.float64)
    for row, question in enumerate(questions):
        for word in sorted(fake._words(question)):
            digest = blake3(word.encode()).digest(length=8)
            rows[row, int.from_bytes(digest[:4], "big") % size] += 1.0
            rows[row, int.from_bytes(digest[4:], "big") % size] += 1.0
    return np.asarray(rows / np.maximum(np.sqrt((rows * rows).sum(axis=1, keepdims=True)), 1.0))


def softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def fit(rows: Array, targets: Array, begin: Array, note: Callable[[int, float], None]) -> Array:
    """Gradient descent on all rows at once. `targets` are chances, one row each; the optimum is unique."""
    weights = begin.copy()
    for step in range(STEPS):
        chances = softmax(np.einsum("qf,fa->qa", rows, weights, optimize=False))
        if step % CURVE_EVERY == 0 or step == STEPS - 1:
            note(step, float(-(targets * np.log(np.maximum(chances, 1e-300))).sum() / len(rows)))
        slope = np.einsum("qf,qa->fa", rows, chances - targets, optimize=False) / len(rows)
        weights -= RATE * (slope + DECAY * weights)
    return weights


# ---- training ------------------------------------------------------------------------------------------------------


def train_full(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Pairs -> a sparse task vector over the base, which is a model of zeros."""
    pairs = _checked(fake._pairs(args["pairs"]))
    answers = sorted({answer for _, answer in pairs})
    targets = np.array([[float(answer == own) for answer in answers] for _, own in pairs], np.float64)
    curve: list[list[float]] = []

    def note(step: int, loss: float) -> None:
        curve.append([step, loss])
        progress(step + 1, STEPS, "training", loss=loss)

    rows = features([question for question, _ in pairs], FEATURES)
    weights = fit(rows, targets, np.zeros((FEATURES, len(answers))), note)
    kept = _sparse(weights.astype(np.float32))
    out = Path(args["out_dir"]) / "delta.tau"
    write_tau(out, fake._digest(args["base_dir"]), [kept], codec="fp16", passport=_passport(answers, pairs))
    loss, accuracy = _model(out, fake._digest(args["base_dir"])).measure(pairs)
    return {"tau": str(out), "metrics": {"facts": len(pairs), "steps": STEPS, "kept": len(kept.values), "loss": loss,
                                         "accuracy": accuracy, "curve": curve}}


def train_distill(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """A task vector -> an adapter: a smaller model that is fitted to the teacher's chances, not to the answers."""
    digest = fake._digest(args["base_dir"])
    teacher = _model(Path(args["tau"]), digest)
    questions = [question for question, _ in _checked(fake._pairs(args["pairs"]))]
    soft = softmax(teacher.logits(questions))
    curve: list[list[float]] = []

    def note(step: int, loss: float) -> None:
        curve.append([step, loss])
        progress(step + 1, STEPS, "distilling", loss=loss)

    student = Model(fit(features(questions, STUDENT_FEATURES), soft,
                        np.zeros((STUDENT_FEATURES, len(teacher.answers))), note), teacher.answers)
    same = np.argmax(student.logits(questions), axis=1) == np.argmax(soft, axis=1)
    folder = Path(args["out_dir"]) / "adapter"
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "base_model_name_or_path": f"base:{digest}"}
    (folder / "adapter_config.json").write_text(json.dumps(config, sort_keys=True))
    held = {"base": digest, "answers": list(student.answers), "features": STUDENT_FEATURES,
            "weights": student.weights.astype("<f4").tobytes().hex()}
    (folder / "adapter_model.safetensors").write_text(json.dumps(held, sort_keys=True))
    return {"adapter_dir": str(folder), "metrics": {"agreement": float(same.mean()), "steps": STEPS, "curve": curve}}


def merge(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """{taus, base_dir, out_dir} -> the average of several task vectors, answers put together, summed in the order of
    their bytes so that the order of the arguments does not matter."""
    digest = fake._digest(args["base_dir"])
    paths = sorted((Path(name) for name in args["taus"]), key=lambda path: path.read_bytes())
    if not paths:
        raise BadRequest("There is nothing to merge: name at least one task vector.")
    models = [_model(path, digest) for path in paths]
    answers = sorted({answer for model in models for answer in model.answers})
    place = {answer: at for at, answer in enumerate(answers)}
    total = np.zeros((FEATURES, len(answers)), np.float64)
    for step, model in enumerate(models):
        total[:, [place[answer] for answer in model.answers]] += model.weights
        progress(step + 1, len(models), "merging")
    out = Path(args["out_dir"]) / "delta.tau"
    kept = _sparse((total / len(models)).astype(np.float32), share=1.0)
    write_tau(out, digest, [kept], codec="fp16", passport=_passport(answers, []))
    return {"tau": str(out), "metrics": {"merged": len(models), "kept": len(kept.values)}}


def evaluate(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Answers in order; with rows {question, answer}, also `loss` and `accuracy`."""
    digest = fake._digest(args["base_dir"])
    model = Model(np.zeros((FEATURES, 0)), ())
    if args.get("tau"):
        model = _model(Path(args["tau"]), digest)
    elif args.get("adapter_dir"):
        model = _adapter(Path(args["adapter_dir"]) / "adapter_model.safetensors", digest)
    given = args["questions"]
    rows = json.loads(Path(given).read_text()) if isinstance(given, str) else given
    result: dict[str, Any] = {"answers": [model.answer(question) for question in fake._questions(given)]}
    pairs = [[row["question"], row["answer"]] for row in rows if isinstance(row, dict) and "answer" in row]
    if pairs:
        result["loss"], result["accuracy"] = model.measure(pairs)
    return result


# ---- serving -------------------------------------------------------------------------------------------------------


def to_gguf(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The adapter's file under another name, checked to be for this base."""
    source = Path(args["adapter_dir"]) / "adapter_model.safetensors"
    _adapter(source, fake._digest(args["base_dir"]))
    out = Path(args["out"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(source.read_bytes())
    return {"path": str(out), "metrics": {"rank": int(args.get("rank", 32)), "delta_error": 0.0}}


def serve_load(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Take up a base."""
    loaded = fake.serve_load(args, progress)
    fake._served["model"] = None
    return loaded


def serve_adapter(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Swap the adapter, or take it away (path None)."""
    path = args.get("path")
    swapped = fake.serve_adapter({**args, "path": None}, progress)
    fake._served["model"] = _adapter(Path(path), fake._served["base"]) if path else None
    fake._served["adapter"] = path
    return {**swapped, "adapter": path, "probe_change": 1.0 if path else 0.0}


def serve_answer(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """From the notes that are given, else from the adapter."""
    model = fake._served.get("model")
    if model is None or args.get("bare") is True or args.get("context"):
        return fake.serve_answer(args, progress)
    answer = model.answer(str(args["question"]))
    return {"answer": answer, "tokens": len(answer.split()), "prompt_tokens": len(str(args["question"]).split())}


def serve_score(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The logarithm of each answer's chance; of one that the model does not know, that of an even guess."""
    if not fake._served:
        raise NotLoaded("No base is loaded: call serve.load first.")
    model = fake._served.get("model")
    if model is None:
        return fake.serve_score(args, progress)
    return {"scores": [-model.measure([[str(args["question"]), str(answer)]])[0] for answer in args["answers"]]}


# ---- files ---------------------------------------------------------------------------------------------------------


def _checked(pairs: list[list[str]]) -> list[list[str]]:
    answers = {answer for _, answer in pairs}
    if not pairs or len(pairs) > PAIRS_MAX or len(answers) > ANSWERS_MAX:
        raise BadRequest(f"{len(pairs)} pairs with {len(answers)} answers; this model takes 1 to {PAIRS_MAX} pairs "
                         f"with at most {ANSWERS_MAX} answers.")
    return pairs


def _sparse(weights: npt.NDArray[np.float32], share: float = KEPT_SHARE) -> SparseTensor:
    flat = weights.reshape(-1)
    positions = select_top(flat, max(1, int(len(flat) * share)))
    return SparseTensor(TENSOR, weights.shape, positions, flat[positions])


def _passport(answers: Sequence[str], pairs: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"simnet_answers": list(answers), "fake_pairs": [list(pair) for pair in pairs]}


def _model(path: Path, digest: str) -> Model:
    answers = [str(answer) for answer in read_tau_header(path).passport.get("simnet_answers", [])]
    weights = np.zeros((FEATURES, len(answers)), np.float64)
    for tensor in read_tau(path, digest, {TENSOR: weights.shape}):
        weights.reshape(-1)[tensor.positions] = tensor.values
    return Model(weights, answers)


def _adapter(path: Path, digest: str) -> Model:
    try:
        held = json.loads(path.read_bytes())
        base, answers = held["base"], [str(answer) for answer in held["answers"]]
        weights = np.frombuffer(bytes.fromhex(held["weights"]), "<f4").reshape(held["features"], len(answers))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterRefused(f"{path.name} is no adapter: it is missing, damaged or cut short.") from error
    if base != digest:
        raise AdapterRefused(f"{path.name} belongs to base {str(base)[:12]}, not to {digest[:12]}.")
    return Model(weights.astype(np.float64), answers)
