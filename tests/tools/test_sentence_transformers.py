"""sentence-transformers: a folder becomes `Transformer` + `Pooling`, is trained, saved, and opened by a stranger."""

import json
import os
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from helpers.axes import paired
from helpers.hub import STRANGER
from helpers.models import assert_same, make_model, tiny_config
from helpers.processes import fast_python, run_process
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import DataCollatorWithFlattening

from plainformer import PlainformerModel, encode, train_tokenizer
from plainformer.positions_plainformer import POSITION_KINDS

TEXTS = ["time flies", "fruit flies like a banana", "an arrow", "time flies like an arrow and fruit like a banana"]
TRAIN_AS_STRANGER = (
    STRANGER
    + """
import json, torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

folder, texts, output = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
vectors = model.encode(texts, convert_to_tensor=True)
options = {"max_steps": 1, "learning_rate": 1e-2, "use_cpu": True, "report_to": [], "save_strategy": "no"}
arguments = SentenceTransformerTrainingArguments(output_dir=output + "/run", **options)
pairs = Dataset.from_dict({"anchor": texts, "positive": texts[::-1]})
SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)).train()
model.save_pretrained(output + "/trained")
again = SentenceTransformer(output + "/trained", trust_remote_code=True, device="cpu")
trained = again.encode(texts, convert_to_tensor=True)
assert torch.equal(trained, model.encode(texts, convert_to_tensor=True))
torch.save((vectors, trained), output + "/vectors.pt")
"""
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, vocab_size=50, show_progress=False, model_max_length=16)


def save(folder: Path, tokenizer, **overrides) -> str:
    config = tiny_config(vocab_size=len(tokenizer), **overrides)
    make_model(PlainformerModel, config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return os.fspath(folder)


def vectors(model: SentenceTransformer, **options) -> Tensor:
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False, **options)


@pytest.mark.parametrize(
    ("trust_remote_code", "unpad_inputs"),
    paired({"trusting": True, "not-trusting": False}, {"unpadded": True, "padded": False}),
)
def test_a_folder_becomes_transformer_and_mean(trust_remote_code, unpad_inputs, tokenizer, tmp_path):
    folder = save(tmp_path / "model", tokenizer, unpad_inputs=unpad_inputs)
    model = SentenceTransformer(folder, trust_remote_code=trust_remote_code, device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    assert model.max_seq_length == 16
    plain = PlainformerModel.from_pretrained(folder)
    assert plain.config.unpad_inputs == model[0].auto_model.config.unpad_inputs == unpad_inputs
    expected = encode(plain, tokenizer, TEXTS, show_progress=False)
    assert_same(vectors(model), expected)
    assert_same(vectors(model, normalize_embeddings=True), torch.nn.functional.normalize(expected, dim=-1))


def test_trained_saved_and_reloaded(tokenizer, tmp_path):
    """A step of its trainer changes the vectors; what it saves has the code, and gives them to anyone."""
    folder = save(tmp_path / "model", tokenizer, position_embedding_type="sinusoidal")
    model = SentenceTransformer(folder, trust_remote_code=False, device="cpu")
    before = vectors(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=os.fspath(tmp_path / "run"), max_steps=1, learning_rate=1e-2, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    pairs = Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]})
    loss = losses.MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss).train()
    after = vectors(model)
    assert (after - before).abs().max() > 1e-3

    model.save_pretrained(os.fspath(tmp_path / "saved"))
    assert {"modeling_plainformer.py", "modules.json", "model.safetensors"} <= set(os.listdir(tmp_path / "saved"))
    again = SentenceTransformer(os.fspath(tmp_path / "saved"), trust_remote_code=False, device="cpu")
    assert torch.equal(vectors(again), after)


def test_a_stranger_opens_and_trains_what_was_saved(tokenizer, tmp_path):
    """With the code out of the folder, in a process that has no plainformer; what it saves opens with plainformer."""
    model = SentenceTransformer(save(tmp_path / "model", tokenizer), trust_remote_code=False, device="cpu")
    model.save_pretrained(os.fspath(tmp_path / "saved"))
    environment = {**os.environ, "HF_MODULES_CACHE": os.fspath(tmp_path / "modules")}
    command = [fast_python(), "-c", TRAIN_AS_STRANGER, tmp_path / "saved", json.dumps(TEXTS), tmp_path]
    done = run_process(command, env=environment)
    assert done.returncode == 0, done.stderr
    opened, trained = torch.load(tmp_path / "vectors.pt", weights_only=True)
    assert torch.equal(opened, vectors(model))
    assert (trained - opened).abs().max() > 1e-3
    back = SentenceTransformer(os.fspath(tmp_path / "trained"), trust_remote_code=False, device="cpu")
    assert torch.equal(trained, vectors(back))


@pytest.mark.parametrize(("theirs", "ours"), paired([None, True, False], [True, False]))
def test_its_own_unpadding_does_no_harm(theirs, ours, tokenizer, tmp_path):
    """Theirs needs a flash-attention kernel and else pads; the two switches have one name and do not touch."""
    folder = save(tmp_path / "model", tokenizer)
    model = SentenceTransformer(folder, trust_remote_code=False, device="cpu", config_kwargs={"unpad_inputs": ours})
    model[0].unpad_inputs = theirs
    assert model[0].auto_model.config.unpad_inputs == ours
    expected = encode(PlainformerModel.from_pretrained(folder), tokenizer, TEXTS, show_progress=False)
    assert_same(vectors(model), expected)
    model.save_pretrained(os.fspath(tmp_path / "saved"))
    again = SentenceTransformer(os.fspath(tmp_path / "saved"), trust_remote_code=False, device="cpu")
    assert (again[0].unpad_inputs, again[0].auto_model.config.unpad_inputs) == (theirs, ours)


@pytest.mark.parametrize(("kind", "pooling"), paired(list(POSITION_KINDS), ["mean", "cls"]))
def test_flattened_features_are_computed_apart(kind, pooling, tokenizer, tmp_path):
    """One row that holds all texts, as its unpadding makes it: no text sees another."""
    folder = save(tmp_path / "model", tokenizer, position_embedding_type=kind)
    plain = PlainformerModel.from_pretrained(folder)
    model = SentenceTransformer(folder, trust_remote_code=False, device="cpu")
    pool = Pooling(plain.config.hidden_size, pooling_mode=pooling)
    flatten = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    flat = flatten([{"input_ids": tokenizer(text, truncation=True)["input_ids"]} for text in TEXTS])
    flat.pop("labels")
    with torch.no_grad():
        embeddings = pool(model[0](dict(flat)))["sentence_embedding"]
    assert_same(embeddings, encode(plain, tokenizer, TEXTS, pooling=pooling, show_progress=False))
