"""peft: low-rank adapters on every head, saved with what is new beside them, merged, and trained with `Trainer`."""

import os
from pathlib import Path

import pytest
import torch
from helpers.axes import paired
from helpers.models import (
    HEADS,
    NO_DROPOUT,
    answers,
    assert_same,
    is_unpadded,
    layout_of,
    make_inputs,
    make_model,
    short_name,
)
from helpers.training import make_batch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerModel,
)

TARGETS = {"q_proj-v_proj": ["q_proj", "v_proj"], "all-linear": "all-linear"}
# What peft calls the task, and what of the head is new. It adds `classifier` by itself where the task is given, for
# tokens too late to keep "all-linear" from it. Given QUESTION_ANS it would drop `token_type_ids`.
TASKS = {
    "Model": ("FEATURE_EXTRACTION", None),
    "MaskedLM": (None, None),
    "SequenceClassification": ("SEQ_CLS", ["pooler"]),
    "TokenClassification": ("TOKEN_CLS", ["classifier"]),
    "QuestionAnswering": (None, ["qa_outputs"]),
    "MultipleChoice": (None, ["pooler", "classifier"]),
}


@pytest.fixture(params=TARGETS.values(), ids=TARGETS)
def targets(request) -> list[str] | str:
    return request.param


@pytest.fixture
def base_folder(tmp_path: Path) -> str:
    """A pretrained encoder with its masked-LM head, as a folder: every other head is new when it is opened."""
    folder = os.fspath(tmp_path / "base")
    make_model(PlainformerForMaskedLM, **NO_DROPOUT).save_pretrained(folder)
    return folder


def lora(model_class: type, targets: list[str] | str) -> LoraConfig:
    task, new = TASKS[short_name(model_class)]
    return LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type=task, modules_to_save=new)


def step(model: torch.nn.Module, batch: dict[str, Tensor]) -> None:
    """One large step, so that adapter and head differ from where they started."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.train()
    model(**batch).loss.backward()
    torch.optim.SGD(trained, lr=1.0).step()
    model.zero_grad()
    model.eval()


@pytest.mark.parametrize(
    ("head_class", "targets", "unpad_inputs"), paired(HEADS, TARGETS, {"unpadded": True, "padded": False})
)
def test_adapter_of_every_head_is_saved_with_what_is_new(head_class, targets, unpad_inputs, base_folder, tmp_path):
    """Reloaded onto the pretrained folder, whose new head starts from other random numbers, it answers the same."""
    torch.manual_seed(1)
    base = head_class.from_pretrained(base_folder, unpad_inputs=unpad_inputs)
    frozen = {name: value.clone() for name, value in base.base_model.named_parameters()}
    batch = make_batch(head_class)
    before = answers(base.eval()(**batch))
    model = get_peft_model(base, lora(head_class, targets)).eval()
    assert_same(answers(model(**batch)), before)  # an adapter starts as nothing
    assert is_unpadded(layout_of(model.get_base_model(), **batch)) is unpad_inputs

    step(model, batch)
    after = answers(model(**batch))
    assert (after - before).abs().max() > 1e-3
    for name, value in model.base_model.model.base_model.named_parameters():
        if "lora_" not in name:
            assert torch.equal(value, frozen[name.replace(".base_layer", "")]), name

    model.save_pretrained(tmp_path / "adapter")
    torch.manual_seed(2)
    again = head_class.from_pretrained(base_folder, unpad_inputs=unpad_inputs)
    reloaded = PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
    assert torch.equal(answers(reloaded(**batch)), after)


def test_adapter_reaches_the_layers_it_names(targets):
    model = get_peft_model(make_model(PlainformerModel), lora(PlainformerModel, targets))
    adapted = {name.split(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name}
    linear = {
        f"base_model.model.{name}"
        for name, module in make_model(PlainformerModel).named_modules()
        if isinstance(module, torch.nn.Linear) and (targets == "all-linear" or name.split(".")[-1] in targets)
    }
    assert adapted == linear
    assert len(adapted) == (12 if targets == "all-linear" else 4)  # of two layers: six, or two, in each


def test_an_adapter_for_each_row():
    """peft looks for as many rows as names inside the model, with hooks: the batch stays padded then."""
    batch = make_batch(PlainformerModel)
    model = get_peft_model(make_model(PlainformerModel), lora(PlainformerModel, "all-linear"), adapter_name="a").eval()
    model.add_adapter("b", lora(PlainformerModel, "all-linear"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    names = ["a", "b", "a", "b"]
    with torch.no_grad():
        mixed = answers(model(**batch, adapter_names=names))
    for row, name in enumerate(names):
        model.set_adapter(name)
        assert_same(mixed[row], answers(model(**batch))[row])


@pytest.mark.parametrize(
    ("targets", "tie_word_embeddings"),
    [*paired(TARGETS, {"tied": True}), *paired({"all-linear": "all-linear"}, {"untied": False})],
)
def test_merged_masked_lm_equals_its_adapter(targets, tie_word_embeddings, tmp_path):
    """`merge_and_unload` leaves a plain model, still tied, that any reader opens."""
    base = make_model(PlainformerForMaskedLM, tie_word_embeddings=tie_word_embeddings, **NO_DROPOUT)
    batch = make_batch(PlainformerForMaskedLM)
    model = get_peft_model(base, lora(PlainformerForMaskedLM, targets))
    step(model, batch)
    expected = answers(model(**batch))
    merged = model.merge_and_unload()
    assert type(merged) is PlainformerForMaskedLM
    assert_same(answers(merged(**batch)), expected)
    words, decoder = merged.get_input_embeddings().weight, merged.get_output_embeddings().weight
    assert (words is decoder) == tie_word_embeddings

    merged.save_pretrained(tmp_path / "merged")
    opened = AutoModelForMaskedLM.from_pretrained(tmp_path / "merged", trust_remote_code=True)
    assert torch.equal(answers(opened(**batch)), answers(merged(**batch)))


@pytest.mark.parametrize(("head_class", "use_reentrant"), paired(HEADS, {"reentrant": True, "not-reentrant": False}))
def test_gradient_checkpointing_with_a_frozen_base(head_class, use_reentrant):
    """The embeddings' output is made to need gradients; then the adapter gets those it gets without checkpointing."""
    batch = make_batch(head_class)
    found = []
    for checkpointed in (True, False):
        torch.manual_seed(0)
        base = make_model(head_class, problem_type="single_label_classification", **NO_DROPOUT)
        if checkpointed:
            base.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            base.enable_input_require_grads()
        model = get_peft_model(base, lora(head_class, "all-linear")).train()
        with torch.no_grad():  # an untrained adapter has gradients in half of it only
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(0.1)
        model(**batch).loss.backward()
        found.append({name: value.grad for name, value in model.named_parameters() if value.requires_grad})
    assert all(gradient is not None and gradient.any() for name, gradient in found[0].items() if "lora_" in name)
    assert_same(*found)


@pytest.mark.parametrize(
    "head_class", [PlainformerForSequenceClassification, PlainformerForQuestionAnswering], ids=["labels", "positions"]
)
def test_trainer_evaluates_and_chooses_the_best(head_class, base_folder, tmp_path):
    """`eval_loss` is there for an adapter as for the plain model, the labels' names are found, and so is the best."""
    batch = make_batch(head_class)
    examples = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    base = head_class.from_pretrained(base_folder)
    base.config.problem_type = "single_label_classification"
    arguments = TrainingArguments(
        output_dir=os.fspath(tmp_path / "run"),
        per_device_train_batch_size=2,
        max_steps=4,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        gradient_checkpointing=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    model = get_peft_model(base, lora(head_class, "all-linear"))
    trainer = Trainer(model, arguments, train_dataset=examples, eval_dataset=examples)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses) == 2 and trainer.state.best_metric == min(losses)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(os.listdir(trainer.state.best_model_checkpoint))
    assert_same(trainer.evaluate()["eval_loss"], min(losses))
    with torch.no_grad():
        assert_same(float(trainer.model.eval()(**batch).loss), min(losses))


def test_every_position_kind_is_adapted_and_merged(kind):
    model = make_model(PlainformerModel, position_embedding_type=kind)
    inputs = make_inputs(PlainformerModel)
    config = LoraConfig(r=2, target_modules=["q_proj", "k_proj", "fc1"], init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    expected = adapted(**inputs).last_hidden_state
    adapted.merge_adapter()
    assert_same(adapted(**inputs).last_hidden_state, expected)
    assert_same(adapted.merge_and_unload()(**inputs).last_hidden_state, expected)
