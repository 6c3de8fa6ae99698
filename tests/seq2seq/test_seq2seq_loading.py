"""The encoder-decoder in files: saved and loaded, by strangers too, started from an encoder or a BERT, and resized."""

import json

import pytest
import torch
import transformers
from helpers.hub import COMMON, STRANGER
from helpers.models import HEADS, assert_equal, assert_same, make_model, short_name
from helpers.processes import fast_python, run_process
from helpers.seq2seq import END, GREEDY, START, make_pairs, make_seq2seq, make_source, make_tokenizer
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from plainformer import (
    PlainformerConfig,
    PlainformerForConditionalGeneration,
    PlainformerForMaskedLM,
    PlainformerModel,
    PlainformerSeq2SeqConfig,
    from_bert,
    to_bert,
)

IDS = {"decoder_start_token_id": START, "eos_token_id": END}
DECODER_FILES = {"causal_attention", "configuration_seq2seq", "decoder", "modeling_seq2seq", "pairs", "targets"}


def code_in(folder) -> set[str]:
    """The Python files of a folder, without what all their names end in."""
    return {path.stem.removesuffix("_plainformer") for path in folder.glob("*.py")}


def states(model) -> dict:
    """Every parameter and its values."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
def test_saving_and_loading(tmp_path, variant, tied):
    model, pairs = make_seq2seq(**variant, tie_word_embeddings=tied), make_pairs()
    model.generation_config.num_beams = 3
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    for loader in (PlainformerForConditionalGeneration, AutoModelForSeq2SeqLM):
        loaded, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        assert type(loaded) is PlainformerForConditionalGeneration
        assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) is tied
        assert_equal(states(loaded), states(model))
        assert_equal(loaded(**pairs).logits, model(**pairs).logits)
    source = make_source()
    assert (loaded.generation_config.num_beams, loaded.generation_config.max_new_tokens) == (3, 5)
    assert_equal(loaded.generate(**source), model.generate(**source))
    assert loaded.config.num_decoder_layers == 3
    encoder = AutoModel.from_pretrained(tmp_path)
    assert_equal(states(encoder), states(model.plainformer))


def test_an_untied_file_tied_and_a_tied_file_untied(tmp_path):
    untied, tied = make_seq2seq(tie_word_embeddings=False), make_seq2seq()
    untied.save_pretrained(tmp_path / "untied")
    tied.save_pretrained(tmp_path / "tied")
    load = PlainformerForConditionalGeneration.from_pretrained
    model = load(tmp_path / "untied", tie_word_embeddings=True)
    assert_equal(model.lm_head.weight, untied.get_input_embeddings().weight)
    model = load(tmp_path / "tied", tie_word_embeddings=False)
    assert_equal(model.lm_head.weight, tied.get_input_embeddings().weight)
    assert model.lm_head.weight is not model.get_input_embeddings().weight


@pytest.mark.parametrize("source", [PlainformerModel, *HEADS], ids=short_name)
@pytest.mark.parametrize("tied", [True, False])
def test_it_starts_from_any_encoder_or_head(tmp_path, source, tied):
    encoder = make_model(source, tie_word_embeddings=tied)
    encoder.save_pretrained(tmp_path / "encoder")
    options = {**IDS, "num_decoder_layers": 1, "output_loading_info": True}
    model, info = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "encoder", **options)
    assert_equal(states(model.plainformer), states(encoder.base_model))
    assert all(name.startswith(("decoder.", "lm_head.")) for name in info["missing_keys"])
    for config in (model.config, model.generation_config):
        assert (config.decoder_start_token_id, config.eos_token_id, config.pad_token_id) == (START, END, 0)
    assert model.config.model_type == "plainformer-seq2seq" and len(model.decoder.layers) == 1
    if tied:
        assert model.lm_head.weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path / "seq2seq")
    again = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "seq2seq")
    assert_equal(states(again), states(model))
    assert again.generation_config.decoder_start_token_id == START
    config = PlainformerSeq2SeqConfig.from_pretrained(tmp_path / "encoder", **IDS)
    with_config = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "encoder", config=config)
    assert with_config.generation_config.eos_token_id == END
    config = json.loads((tmp_path / "seq2seq" / "config.json").read_text())
    assert list(config["auto_map"]) == ["AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"]


@pytest.mark.parametrize("bert_class", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_it_starts_from_any_bert(tmp_path, bert_class, caplog):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=37, max_position_embeddings=16)
    bert = getattr(transformers, bert_class)(config).eval()
    bert.save_pretrained(tmp_path / "bert")
    model = from_bert(tmp_path / "bert", PlainformerForConditionalGeneration, **IDS, num_decoder_layers=3)
    expected = from_bert(tmp_path / "bert")
    assert_equal(states(model.plainformer), states(expected))
    for one in (model.config, model.generation_config):
        assert (one.decoder_start_token_id, one.eos_token_id) == (START, END)
    assert len(model.decoder.layers) == 3
    assert model.lm_head.weight is model.get_input_embeddings().weight
    model.generate(**make_source(), **GREEDY)
    model.save_pretrained(tmp_path / "saved")
    again = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert_equal(states(again), states(model))
    assert (again.config.eos_token_id, again.generation_config.eos_token_id) == (END, END)


def test_what_cannot_be_opened_or_written_says_so(tmp_path):
    model = make_seq2seq()
    model.save_pretrained(tmp_path / "seq2seq")
    with pytest.raises(TypeError, match=r"PlainformerForConditionalGeneration.*to_bert\(model.plainformer, ...\)"):
        to_bert(model, tmp_path / "bert")
    assert not (tmp_path / "bert").exists()
    to_bert(model.plainformer, tmp_path / "bert")
    assert_equal(states(from_bert(tmp_path / "bert")), states(model.plainformer))
    for head in (PlainformerForMaskedLM, PlainformerModel):
        with pytest.raises(ValueError, match="model_type='plainformer-seq2seq', not 'plainformer'"):
            head.from_pretrained(tmp_path / "seq2seq")
    transformers.BertConfig().save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="model_type='bert', not 'plainformer-seq2seq'.*from_bert"):
        PlainformerForConditionalGeneration.from_pretrained(tmp_path / "other")


@pytest.mark.parametrize("how", ["plainformer", "AutoModel"])
def test_the_encoder_alone_is_an_ordinary_one(tmp_path, how):
    model, source = make_seq2seq(), make_source()
    model.save_pretrained(tmp_path / "seq2seq")
    encoder = model.plainformer if how == "plainformer" else AutoModel.from_pretrained(tmp_path / "seq2seq")
    encoder.save_pretrained(tmp_path / "encoder")
    assert not code_in(tmp_path / "encoder") & DECODER_FILES and "modeling" in code_in(tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    assert config["model_type"] == "plainformer" and config["architectures"] == ["PlainformerModel"]
    assert "AutoModelForSeq2SeqLM" not in config["auto_map"] and "decoder_start_token_id" not in config
    assert not config.get("is_encoder_decoder")
    loaded, info = PlainformerModel.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert not any(info.values())
    assert type(loaded.config) is PlainformerConfig
    assert_equal(loaded(**source).last_hidden_state, model.get_encoder()(**source).last_hidden_state)
    head = AutoModelForMaskedLM.from_pretrained(tmp_path / "encoder")
    assert_equal(states(head.plainformer), states(model.plainformer))
    assert model.plainformer.config.is_encoder_decoder  # the model itself stays what it was
    assert model.generate(**source, **GREEDY).shape[0] == 5


def test_the_code_beside_a_checkpoint(tmp_path):
    """A decoder's files go with a decoder, whoever saves."""
    make_model(PlainformerForMaskedLM).save_pretrained(tmp_path / "encoder")
    PlainformerConfig().save_pretrained(tmp_path / "config")
    for name in ("encoder", "config"):
        assert "modeling" in code_in(tmp_path / name) and not code_in(tmp_path / name) & DECODER_FILES
    model = make_seq2seq()
    model.save_pretrained(tmp_path / "first")
    PlainformerForConditionalGeneration.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "second")
    model.config.save_pretrained(tmp_path / "config")
    for name in ("first", "second", "config"):
        assert code_in(tmp_path / name) > DECODER_FILES | {"modeling"}, name
        assert "AutoModelForSeq2SeqLM" in json.loads((tmp_path / name / "config.json").read_text())["auto_map"]


OPENED_BY_A_STRANGER = """
folder, target, ids = sys.argv[1:]
ids = torch.tensor(json.loads(ids))
model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
encoder = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
results = {
    "module": type(model).__module__.partition(".")[0],
    "weights": digest(model.state_dict()),
    "encoder": digest(encoder.state_dict()),
    "greedy": model.generate(ids, max_new_tokens=9).tolist(),
    "beams": model.generate(ids, max_new_tokens=9, num_beams=3, do_sample=False).tolist(),
    "logits": model(input_ids=ids, labels=ids).logits.tolist(),
    "layers": config.num_decoder_layers,
}
model.save_pretrained(target)
encoder.save_pretrained(target + "-encoder")
results["again"] = digest(load(target, "AutoModelForSeq2SeqLM").state_dict())
results["encoder again"] = type(load(target + "-encoder", "AutoModelForMaskedLM")).__name__
print(json.dumps(results))
"""


def test_a_stranger(tmp_path):
    """Everything in one process: opening, generating, saving again, and taking the encoder out."""
    model = make_seq2seq(position_embedding_type="sinusoidal", pre_norm=True)
    model.generation_config.num_beams = 2
    model.save_pretrained(tmp_path / "model.v1")
    ids = torch.randint(3, 50, (2, 6))
    code = "\n".join([STRANGER, COMMON, OPENED_BY_A_STRANGER])
    command = [
        fast_python(),
        "-c",
        code,
        str(tmp_path / "model.v1"),
        str(tmp_path / "again"),
        json.dumps(ids.tolist()),
    ]
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = run_process(command, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["module"] == "transformers_modules"
    assert results["weights"] == results["again"] and results["layers"] == 3
    assert results["greedy"] == model.generate(ids, max_new_tokens=9).tolist()
    assert results["beams"] == model.generate(ids, max_new_tokens=9, num_beams=3, do_sample=False).tolist()
    assert_same(torch.tensor(results["logits"]), model(input_ids=ids, labels=ids).logits)
    assert results["encoder again"] == "PlainformerForMaskedLM"
    assert code_in(tmp_path / "again") == code_in(tmp_path / "model.v1")
    assert not code_in(tmp_path / "again-encoder") & DECODER_FILES
    loaded = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "again")
    assert_equal(states(loaded), states(model))
    assert loaded.generation_config.num_beams == 2


def test_the_configuration_is_saved_whole(tmp_path):
    fields = {"num_decoder_layers": 5, "decoder_start_token_id": 7, "bos_token_id": 8, "eos_token_id": [9, 10]}
    config = PlainformerSeq2SeqConfig(**fields, use_cache=False, pre_norm=True)
    config.save_pretrained(tmp_path)
    for loaded in (PlainformerSeq2SeqConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is PlainformerSeq2SeqConfig
        assert {name: getattr(loaded, name) for name in fields} == fields
        assert loaded.pre_norm and loaded.use_cache is False and loaded.is_encoder_decoder
    encoder = config.encoder_config()
    assert type(encoder) is PlainformerConfig and encoder.pre_norm


def test_resizing():
    model, pairs = make_seq2seq(), make_pairs()
    expected = model(**pairs).logits
    model.resize_token_embeddings(53)
    assert model.lm_head.weight is model.get_input_embeddings().weight and model.lm_head.out_features == 53
    assert model.config.vocab_size == 53
    output = model(**pairs)
    assert_same(output.logits[..., :50], expected)
    model(**{**pairs, "labels": torch.full((5, 4), 52)})
    model.generate(**make_source(), **GREEDY)
    untied = make_seq2seq(tie_word_embeddings=False)
    untied.resize_token_embeddings(52)
    assert untied.lm_head.weight.shape == (52, 32) and untied.get_input_embeddings().weight.shape == (52, 32)

    model.resize_position_embeddings(40)
    tables = [part.embeddings.position_embeddings for part in (model.plainformer, model.decoder)]
    assert list(model.get_position_embeddings()) == tables
    assert [table.num_embeddings for table in tables] == [40, 40] and model.config.max_position_embeddings == 40
    assert_same(model(**pairs).logits, output.logits)
    model(input_ids=torch.full((1, 40), 5), labels=torch.full((1, 40), 5))
    with pytest.raises(ValueError, match="no table of positions"):
        make_seq2seq(position_embedding_type="sinusoidal").resize_position_embeddings(40)


def test_a_fresh_model_is_initialised_and_learns_everywhere(tmp_path, variant):
    model = PlainformerForConditionalGeneration(make_seq2seq(**variant, initializer_range=0.03).config).train()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "token_type" not in name:
            assert 0.02 < parameter.std() < 0.04, name
    model(**make_pairs()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.plainformer.save_pretrained(tmp_path)
    torch.manual_seed(3)
    loaded = PlainformerForConditionalGeneration.from_pretrained(tmp_path, **IDS)
    for name, parameter in loaded.decoder.named_parameters():
        if parameter.dim() == 2:
            assert 0.02 < parameter.std() < 0.04, name


def test_the_trainer_for_sequences(tmp_path):
    """Label smoothing, accumulation, checkpointing and bfloat16, and an evaluation that generates."""
    model = make_seq2seq(sparse_prediction=True)
    rows = [
        {"input_ids": torch.randint(3, 50, (n,)).tolist(), "labels": [*range(5, 5 + n % 4), END]} for n in range(2, 14)
    ]
    tokenizer = make_tokenizer()
    args = Seq2SeqTrainingArguments(
        tmp_path,
        predict_with_generate=True,
        generation_max_length=8,
        label_smoothing_factor=0.1,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        bf16=True,
        use_cpu=True,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=5,
        max_steps=2,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    seen = []

    def compute_metrics(results) -> dict:
        seen.append(results.predictions)
        return {"count": len(results.predictions)}

    trainer = Seq2SeqTrainer(
        model, args, collator, train_dataset=rows, eval_dataset=rows, compute_metrics=compute_metrics
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer.train()
    changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert len(changed) > len(before) // 2
    metrics = trainer.evaluate()
    assert metrics["eval_count"] == 12 and metrics["eval_loss"] > 0
    assert seen[0].shape[0] == 12 and (seen[0][:, 0] == START).all()
    assert code_in(tmp_path / "checkpoint-2") > DECODER_FILES
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-2")
