"""Every head's loss against a formula written out, what counts as labelled, and the same under `Trainer`.

Shapes: B batch, L length, N items, C classes.
"""

import json

import numpy as np
import pytest
import torch
from helpers.models import (
    HEADS,
    TRAINER_DIVIDES_TWICE,
    answers,
    assert_same,
    gradients,
    make_inputs,
    make_labels,
    make_model,
    randomise,
    short_name,
    tiny_config,
)
from torch import Tensor
from transformers import Trainer, TrainingArguments

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
# Every loss: the class, and what its configuration says.
TASKS = {short_name(head): (head, {}) for head in HEADS}
TASKS |= {
    "MultiLabel": (PlainformerForSequenceClassification, {"problem_type": MULTI}),
    "Regression": (PlainformerForSequenceClassification, {"problem_type": REGRESSION, "num_labels": 1}),
    "Regression-3": (PlainformerForSequenceClassification, {"problem_type": REGRESSION}),
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request) -> tuple[type, dict]:
    """A class with a head and the fields that choose its loss."""
    return request.param


def task_labels(task: tuple[type, dict], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random labels of the kind that the task takes."""
    labels = make_labels(task[0], inputs)
    B = len(inputs["input_ids"])
    if task[1].get("problem_type") == MULTI:
        labels["labels"] = torch.randint(0, 2, (B, 3)).float()
    elif task[1].get("problem_type") == REGRESSION:
        labels["labels"] = torch.randn(B, task[1].get("num_labels", 3))
    return labels


def unlabel(labels: dict[str, Tensor], rows: slice | int) -> dict[str, Tensor]:
    """The same labels with none in these rows."""
    labels = {name: values.clone() for name, values in labels.items()}
    for values in labels.values():
        values[rows] = -100
    return labels


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> list[float]:
    """Cross-entropy in float64 of every labelled item; logits [..., C], labels [...]."""
    losses = []
    for scores, label in zip(
        logits.detach().double().numpy().reshape(-1, logits.shape[-1]), labels.flatten().tolist(), strict=True
    ):
        if label != -100:
            log_probabilities = scores - np.log(np.exp(scores).sum())
            losses.append(-(1 - smoothing) * log_probabilities[label] - smoothing * log_probabilities.mean())
    return losses


def loss_by_hand(output, labels: dict[str, Tensor], problem_type: str | None) -> float:
    """The loss that belongs to a head's answers, from its definition."""
    if "start_positions" in labels:
        ends = ((output.start_logits, labels["start_positions"]), (output.end_logits, labels["end_positions"]))
        return float(np.mean([np.mean(cross_entropy(*end)) for end in ends]))
    logits, wanted = output.logits.detach().double().numpy(), labels["labels"].double().numpy()
    if problem_type == REGRESSION:
        return float(((logits - wanted.reshape(logits.shape)) ** 2).mean())
    if problem_type == MULTI:
        chance = 1 / (1 + np.exp(-logits))
        return float(-(wanted * np.log(chance) + (1 - wanted) * np.log(1 - chance)).mean())
    return float(np.mean(cross_entropy(output.logits, labels["labels"])))


# The formulas


def test_loss_by_hand(variant, task):
    model = make_model(task[0], **task[1], **variant)
    inputs = make_inputs(task[0])
    labels = task_labels(task, inputs)
    output = model(**inputs, **labels)
    assert output.loss.shape == ()
    assert_same(output.loss.item(), loss_by_hand(output, labels, task[1].get("problem_type")))
    if task[1].get("problem_type") is None:
        labels = unlabel(labels, 1)
        if "labels" in labels and labels["labels"].dim() == 2:
            labels["labels"][0, 2:5] = -100
        output = model(**inputs, **labels)
        assert_same(output.loss.item(), loss_by_hand(output, labels, None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_loss_is_float32(task, dtype):
    """Also where the model is not: only the logits are rounded."""
    model = make_model(task[0], **task[1]).to(dtype)
    inputs = make_inputs(task[0])
    labels = task_labels(task, inputs)
    output = model(**inputs, **labels)
    assert answers(output).dtype == dtype and output.loss.dtype == torch.float32
    assert_same(output.loss.item(), loss_by_hand(output, labels, task[1].get("problem_type")), 1e-5)


@pytest.mark.parametrize(
    ("num_labels", "labels", "expected"),
    [
        (1, torch.tensor([0.5, 1.0, -2.0, 3.0]), REGRESSION),
        (1, torch.tensor([0, 1, 2, 3]), REGRESSION),
        (3, torch.tensor([0, 1, 2, 0]), SINGLE),
        (3, torch.tensor([0, 1, 2, 0], dtype=torch.int32), SINGLE),
        (3, torch.ones(4, 3), MULTI),
        (3, torch.ones(4, 3, dtype=torch.bool), MULTI),
    ],
    ids=["one-float", "one-integer", "integers", "int32", "floats", "bools"],
)
def test_problem_type_is_inferred_and_kept(num_labels, labels, expected, tmp_path):
    model = make_model(PlainformerForSequenceClassification, num_labels=num_labels)
    assert model.config.problem_type is None
    inputs = make_inputs(PlainformerForSequenceClassification)
    inferred = model(**inputs, labels=labels).loss
    assert model.config.problem_type == expected
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["problem_type"] == expected
    told = make_model(PlainformerForSequenceClassification, num_labels=num_labels, problem_type=expected)
    assert_same(told(**inputs, labels=labels).loss, inferred, 0)


def test_shapes_of_values():
    """One value per row may come without its dimension; several may not."""
    inputs = make_inputs(PlainformerForSequenceClassification)
    one = make_model(PlainformerForSequenceClassification, num_labels=1)
    values = torch.randn(4)
    assert_same(one(**inputs, labels=values).loss, one(**inputs, labels=values[:, None]).loss, 0)
    for problem_type in (REGRESSION, MULTI):
        three = make_model(PlainformerForSequenceClassification, problem_type=problem_type)
        for shape in ((4,), (4, 2), (3, 3), (12,), (3, 4)):
            with pytest.raises(ValueError, match=r"labels of shape \(.*problem_type=.*" + problem_type):
                three(**inputs, labels=torch.ones(shape))


# What is labelled


def test_nothing_labelled(variant, head_class):
    """The loss is 0 and so is every gradient, whatever `Trainer` counted."""
    model = make_model(head_class, **variant)
    inputs = make_inputs(head_class)
    labels = unlabel(make_labels(head_class, inputs), slice(None))
    for count in (None, 0, torch.tensor(0), torch.tensor(5)):
        model.zero_grad()
        loss = model(**inputs, **labels, num_items_in_batch=count).loss
        loss.backward()
        assert loss.item() == 0
        assert not any(gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("value", [5.0, torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("name", ["MultiLabel", "Regression", "Regression-3"])
def test_values_of_an_empty_row_are_unlabelled(variant, name, value):
    """The loss and its gradients are those of the batch without the row, whatever its values are."""
    head, fields = TASKS[name]
    model = make_model(head, **fields, **variant)
    inputs = {**make_inputs(head), "attention_mask": torch.ones(4, 8, dtype=torch.long)}
    inputs["attention_mask"][1, 5:] = inputs["attention_mask"][3] = 0
    inputs |= task_labels((head, fields), inputs)
    inputs["labels"][3] = value
    results = []
    for rows in (slice(0, 4), slice(0, 3)):
        model.zero_grad()
        loss = model(**{key: values[rows] for key, values in inputs.items()}).loss
        loss.backward()
        results.append((loss, gradients(model)))
    assert_same(*results)


@pytest.mark.parametrize("padded", ["right", "left"])
def test_answers_outside_the_tokens_are_unlabelled(variant, padded):
    """An answer before the row, behind it or in the padding is none; start and end each count their own."""
    model = make_model(PlainformerForQuestionAnswering, **variant)
    inputs = make_inputs(PlainformerForQuestionAnswering)
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[:, 5:] = 0
    real = [0, 4, 2]
    if padded == "left":
        mask, real = mask.flip(1), [3, 7, 5]
    inside = {
        "start_positions": torch.tensor([real[0], real[1], real[2], -100]),
        "end_positions": torch.tensor([real[1], -100, -100, real[2]]),
    }
    outside = {name: values.clone() for name, values in inside.items()}
    at_padding = 7 - real[1] if padded == "left" else 7
    outside["start_positions"][3] = 8
    outside["end_positions"][1], outside["end_positions"][2] = at_padding, 10**6
    expected = model(**inputs, attention_mask=mask, **inside)
    assert_same(expected.loss.item(), loss_by_hand(expected, inside, None))
    assert_same(model(**inputs, attention_mask=mask, **outside).loss, expected.loss, 0)
    outside["start_positions"][3] = -1
    assert_same(model(**inputs, attention_mask=mask, **outside).loss, expected.loss, 0)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("label", [-1, 99])
def test_label_out_of_range(label, padded):
    """The message names the label and the range that the head has."""
    sizes = {
        PlainformerForMaskedLM: 50,
        PlainformerForSequenceClassification: 3,
        PlainformerForTokenClassification: 3,
        PlainformerForMultipleChoice: 2,
    }
    for head, size in sizes.items():
        inputs = make_inputs(head)
        mask = torch.ones_like(inputs["input_ids"])
        mask[1, ..., 5:] = 0 if padded else 1
        labels = make_labels(head, inputs)
        labels["labels"].view(-1)[3] = label
        with pytest.raises(ValueError, match=f"labels hold {label}, but class ids go from 0 to {size - 1}"):
            make_model(head, problem_type=SINGLE)(**inputs, attention_mask=mask, **labels)


def test_float_labels_for_class_ids(head_class):
    inputs = make_inputs(head_class)
    labels = {name: values.float() for name, values in make_labels(head_class, inputs).items()}
    with pytest.raises(ValueError, match="(labels|start_positions) are torch.float32, but class ids are integers"):
        make_model(head_class, problem_type=SINGLE)(**inputs, **labels)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_class_ids_of_any_integer_type(head_class, dtype, unpad, training):
    """The -100 that stands for no label has no place in a byte or a boolean."""
    model = make_model(
        head_class, problem_type=SINGLE, unpad_inputs=unpad, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train(training)
    inputs = make_inputs(head_class)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, ..., 5:] = 0
    mask[2] = 0
    labels = {name: values.clamp(max=1) for name, values in make_labels(head_class, inputs).items()}
    expected = model(**inputs, attention_mask=mask, **labels).loss
    converted = {name: values.to(dtype) for name, values in labels.items()}
    assert torch.equal(model(**inputs, attention_mask=mask, **converted).loss, expected)


@pytest.mark.parametrize("token_class", [PlainformerForMaskedLM, PlainformerForTokenClassification], ids=short_name)
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
def test_transposed_labels_are_refused(token_class, training, padded):
    model = make_model(token_class).train(training)
    inputs = make_inputs(token_class)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, -1] = 0 if padded else 1
    with pytest.raises(ValueError, match=r"labels has shape \(8, 4\), but this batch takes \(4, 8\)"):
        model(**inputs, attention_mask=mask, labels=make_labels(token_class, inputs)["labels"].T)


def test_labels_that_are_no_tensor(head_class):
    inputs = make_inputs(head_class)
    labels = {name: values.tolist() for name, values in make_labels(head_class, inputs).items()}
    with pytest.raises(TypeError, match="(labels|start_positions) is a list, not a tensor"):
        make_model(head_class, problem_type=SINGLE)(**inputs, **labels)


def test_refused_labels_decide_no_problem_type():
    model = make_model(PlainformerForSequenceClassification)
    inputs = make_inputs(PlainformerForSequenceClassification, batch_size=2)
    several = torch.tensor([[0, 1, 1], [1, 0, 0]])
    with pytest.raises(ValueError, match="do not go with logits"):
        model(**inputs, labels=several)
    assert model.config.problem_type is None
    assert model(**inputs, labels=several.float()).loss.isfinite()
    assert model.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("cut", ["one-row", "a-row-less", "a-row-more", "a-place-less"])
def test_labels_of_a_wrong_shape(head_class, padded, cut):
    """Refused by name; padding does not let them be spread over the batch."""
    inputs = make_inputs(head_class)
    labels = make_labels(head_class, inputs)
    if cut == "a-place-less" and next(iter(labels.values())).dim() == 1:
        labels = {name: values[:, None].repeat(1, 3) for name, values in labels.items()}
    else:
        cuts = {
            "one-row": lambda values: values[:1],
            "a-row-less": lambda values: values[:-1],
            "a-row-more": lambda values: torch.cat((values, values[:1])),
            "a-place-less": lambda values: values[:, :-1],
        }
        labels = {name: cuts[cut](values) for name, values in labels.items()}
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, ..., 5:] = 0 if padded else 1
    with pytest.raises(ValueError, match=r"(labels|start_positions) .*shape \("):
        make_model(head_class, problem_type=SINGLE)(**inputs, attention_mask=mask, **labels)


def test_shapes_of_class_ids(head_class):
    """A trailing dimension of one does not matter, nor does the integer type."""
    model = make_model(head_class)
    inputs = make_inputs(head_class)
    labels = make_labels(head_class, inputs)
    expected = model(**inputs, **labels).loss
    for other in (
        {name: values.int() for name, values in labels.items()},
        {name: values[..., None] if values.dim() == 1 else values for name, values in labels.items()},
    ):
        assert_same(model(**inputs, **other).loss, expected, 0)


def test_one_end_of_an_answer():
    inputs = make_inputs(PlainformerForQuestionAnswering)
    model = make_model(PlainformerForQuestionAnswering)
    for name in ("start_positions", "end_positions"):
        with pytest.raises(ValueError, match="both start_positions and end_positions"):
            model(**inputs, **{name: torch.zeros(4, dtype=torch.long)})


# What learns


def test_every_parameter_gets_a_gradient(variant, task):
    """A parameter without one breaks distributed training. What is added to every score cancels in a softmax."""
    model = make_model(task[0], **task[1], **variant).train()
    inputs = make_inputs(task[0], length=16)
    model(**inputs, **task_labels(task, inputs)).loss.backward()
    cancels = ("k_proj.bias", "classifier.bias" if task[0] is PlainformerForMultipleChoice else "k_proj.bias")
    for name, gradient in gradients(model).items():
        assert gradient.isfinite().all() and (gradient.any() or name.endswith(cancels)), name


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_both_ends_of_a_tied_table_learn(tied):
    model = make_model(PlainformerForMaskedLM, tie_word_embeddings=tied)
    inputs = make_inputs(PlainformerForMaskedLM)
    model(**inputs, **make_labels(PlainformerForMaskedLM, inputs)).loss.backward()
    words, decoder = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (words is decoder) == tied
    absent = [token for token in range(1, 50) if token not in inputs["input_ids"]]
    assert words.grad[absent].any() == tied  # a word that is not in the batch learns from the decoder only
    assert decoder.grad.any(dim=1).all()


def test_padding_embedding_does_not_learn(variant):
    """Not even where its id stands at a token's place."""
    model = PlainformerModel(tiny_config(pad_token_id=3, **variant))
    assert not model.embeddings.word_embeddings.weight[3].any()
    ids = torch.tensor([[1, 3, 2, 3]])
    model(ids).last_hidden_state.square().sum().backward()
    words = model.embeddings.word_embeddings.weight.grad
    assert not words[3].any() and words[1].any()
    every = PlainformerModel(tiny_config(pad_token_id=None, **variant))
    assert every.embeddings.word_embeddings.weight.any(dim=1).all()


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
def test_sinusoid_does_not_learn(pre_norm):
    """It is no parameter and no buffer, so weight decay has nothing to act on."""
    models = {}
    for kind in ("sinusoidal", "none"):
        config = tiny_config(position_embedding_type=kind, pre_norm=pre_norm)
        models[kind] = randomise(PlainformerForMaskedLM(config)).train()
    assert models["sinusoidal"].num_parameters() == models["none"].num_parameters()
    assert list(models["sinusoidal"].state_dict()) == list(models["none"].state_dict())
    model = models["sinusoidal"]
    positions = model.plainformer.embeddings.position_embeddings
    assert not [*positions.parameters(), *positions.buffers()]
    before = positions(torch.arange(16))
    weights = {name: values.clone() for name, values in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    inputs = make_inputs(PlainformerForMaskedLM)
    model(**inputs, **make_labels(PlainformerForMaskedLM, inputs)).loss.backward()
    optimizer.step()
    assert all((values != weights[name]).any() for name, values in model.state_dict().items())
    assert_same(positions(torch.arange(16)), before, 0)


# Gradient accumulation


def micro_batches(task: tuple[type, dict], inputs: dict[str, Tensor]) -> tuple[list[dict[str, Tensor]], int]:
    """Micro-batches of 1 and 3 rows with unequal numbers of labels, and that number for all of them."""
    labels = task_labels(task, inputs)
    if task[1].get("problem_type") is None:
        labels = unlabel(labels, 1)
        if "labels" in labels and labels["labels"].dim() == 2:
            labels["labels"][0, 1:] = labels["labels"][3, ::2] = -100
    first = next(iter(labels.values()))
    everything = {**inputs, **labels}
    parts = [{name: values[rows] for name, values in everything.items()} for rows in (slice(0, 1), slice(1, 4))]
    return parts, int((first != -100).sum())


@pytest.mark.parametrize("as_tensor", [False, True], ids=["int", "tensor"])
def test_micro_batches_add_up(variant, task, as_tensor):
    """With the number of labels in all of them, losses and gradients sum to those of the big batch."""
    model = make_model(task[0], **task[1], **variant)
    parts, count = micro_batches(task, make_inputs(task[0]))
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    expected_loss = model(**whole).loss
    expected_loss.backward()
    expected = gradients(model)
    model.zero_grad()
    losses = [model(**part, num_items_in_batch=torch.tensor(count) if as_tensor else count).loss for part in parts]
    sum(losses).backward()
    assert_same(sum(losses), expected_loss)
    assert_same(gradients(model), expected)


def training_arguments(folder, **overrides) -> TrainingArguments:
    """Default arguments on this machine, silent, with nothing written."""
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    return TrainingArguments(output_dir=str(folder), use_cpu=True, **{**quiet, **overrides})


def make_dataset(task: tuple[type, dict], size: int = 4) -> list[dict[str, Tensor]]:
    """Rows with padding and unequal numbers of labels; every answer of question answering is labelled."""
    inputs = make_inputs(task[0], size)
    mask = torch.ones_like(inputs["input_ids"])
    for row in range(size):
        mask[row, ..., 8 - row :] = 0
    everything = {**inputs, "attention_mask": mask, **task_labels(task, inputs)}
    if task[0] is PlainformerForQuestionAnswering:
        everything |= {"start_positions": torch.arange(size), "end_positions": torch.arange(size)}
    elif everything["labels"].shape == mask.shape:
        everything["labels"] = everything["labels"].masked_fill(mask == 0, -100)
        everything["labels"][0, 2:] = -100
    elif task[1].get("problem_type") is None:
        everything["labels"][1] = -100
    return [{name: values[row] for name, values in everything.items()} for row in range(size)]


@TRAINER_DIVIDES_TWICE
@pytest.mark.parametrize("optimizer", ["sgd", "adamw_torch"])
def test_trainer_accumulates_to_the_big_batch(task, optimizer, tmp_path):
    """One step of two batches of two gives the weights that one batch of four gives."""
    dataset = make_dataset(task)
    weights = []
    for batch_size, accumulated in ((4, 1), (2, 2)):
        model = make_model(task[0], **NO_DROPOUT, **task[1])
        before = {name: values.clone() for name, values in model.state_dict().items()}
        arguments = training_arguments(
            tmp_path,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulated,
            max_steps=1,
            optim=optimizer,
            adam_epsilon=1e-3,  # without it, the first step would be the gradient's sign, whatever its size
            learning_rate=0.1,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,  # clipping would hide a gradient of the wrong size
        )
        Trainer(model=model, args=arguments, train_dataset=dataset).train()
        weights.append(model.state_dict())
        assert sum((values != before[name]).any() for name, values in weights[-1].items()) > 20
    assert_same(weights[1], weights[0])


# `Trainer` with its default arguments


@pytest.mark.parametrize("states", [False, True], ids=["plain", "output_hidden_states"])
def test_predictions_are_one_array(task, states, tmp_path):
    """Of question answering two. Hidden states that the configuration asks for are not gathered."""
    model = make_model(task[0], output_hidden_states=states, **task[1])
    dataset = make_dataset(task)
    trainer = Trainer(model=model, args=training_arguments(tmp_path), eval_dataset=dataset)
    batch = {name: torch.stack([row[name] for row in dataset]) for name in dataset[0]}
    output = model(**batch)
    assert ("hidden_states" in output) == states
    predicted = trainer.predict(dataset)
    if task[0] is PlainformerForQuestionAnswering:
        assert isinstance(predicted.predictions, tuple) and len(predicted.predictions) == 2
        assert_same(predicted.predictions[0], output.start_logits.detach().numpy())
        assert_same(predicted.predictions[1], output.end_logits.detach().numpy())
        assert isinstance(predicted.label_ids, tuple) and len(predicted.label_ids) == 2
    else:
        assert isinstance(predicted.predictions, np.ndarray)
        assert_same(predicted.predictions, output.logits.detach().numpy())
        assert np.array_equal(predicted.label_ids, batch["labels"].numpy())
    assert_same(predicted.metrics["test_loss"], output.loss.item())
    assert_same(trainer.evaluate()["eval_loss"], output.loss.item())


def test_best_model_by_eval_loss(task, tmp_path):
    """Training, evaluating, saving and choosing by `eval_loss`, all by the names that `Trainer` finds itself."""
    arguments = training_arguments(
        tmp_path,
        num_train_epochs=2,
        per_device_train_batch_size=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    dataset = make_dataset(task)
    trainer = Trainer(model=make_model(task[0], **task[1]), args=arguments, train_dataset=dataset, eval_dataset=dataset)
    trainer.train()
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluated) == 2 and np.isfinite(evaluated).all()
    assert_same(trainer.state.best_metric, min(evaluated))
    assert_same(trainer.evaluate()["eval_loss"], min(evaluated))


@pytest.mark.parametrize(
    "head",
    [PlainformerForMaskedLM, PlainformerForTokenClassification, PlainformerForSequenceClassification],
    ids=short_name,
)
def test_label_smoothing(head, tmp_path):
    """`Trainer` keeps the labels from the model and smooths its logits: training runs, the loss is the formula's."""
    dataset = make_dataset((head, {}))
    model = make_model(head, **NO_DROPOUT)
    arguments = training_arguments(tmp_path, label_smoothing_factor=0.1, max_steps=2, learning_rate=1e-2)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, eval_dataset=dataset)
    batch = {name: torch.stack([row[name] for row in dataset]) for name in dataset[0]}
    losses = []
    for _ in range(2):
        model.eval()
        expected = np.mean(cross_entropy(model(**batch).logits, batch["labels"], smoothing=0.1))
        losses.append(trainer.evaluate()["eval_loss"])
        assert_same(losses[-1], float(expected))
        trainer.train()
    assert losses[1] < losses[0]
