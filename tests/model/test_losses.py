"""Every head's loss against a formula written out, what counts as labelled, and the same under `Trainer`.

Shapes: B batch, L length, N items, C classes, V vocabulary.
"""

import json

import numpy as np
import pytest
import torch
from helpers.axes import paired
from helpers.models import (
    CLASSES,
    HEADS,
    NO_DROPOUT,
    TRAINER_DIVIDES_TWICE,
    answers,
    as_batch,
    assert_equal,
    assert_finite,
    assert_same,
    gradients,
    learn,
    make_inputs,
    make_labels,
    make_model,
    make_rows,
    padding_mask,
    short_name,
)
from torch import Tensor
from transformers import Trainer, TrainingArguments

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
)

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
# Every loss: the class, and what its configuration says.
TASKS = {short_name(head): (head, {}) for head in HEADS}

TASKS |= {
    "MultiLabel": (PlainformerForSequenceClassification, {"problem_type": MULTI}),
    "Regression": (PlainformerForSequenceClassification, {"problem_type": REGRESSION, "num_labels": 1}),
    "Regression-3": (PlainformerForSequenceClassification, {"problem_type": REGRESSION}),
}

HEAD_CASES = {name: case for name, case in CLASSES.items() if case[0] in HEADS}
# With `Trainer`: the forms of labels are ids of tokens, of rows, of places, and numbers for rows.
EACH_FORM = ["MaskedLM", "SequenceClassification", "QuestionAnswering", "MultiLabel", "Regression"]
both_routes = pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])


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
        cu_seqlens = ((output.start_logits, labels["start_positions"]), (output.end_logits, labels["end_positions"]))
        return float(np.mean([np.mean(cross_entropy(*end)) for end in cu_seqlens]))
    logits, wanted = output.logits.detach().double().numpy(), labels["labels"].double().numpy()
    if problem_type == REGRESSION:
        return float(((logits - wanted.reshape(logits.shape)) ** 2).mean())
    if problem_type == MULTI:
        chance = 1 / (1 + np.exp(-logits))
        return float(-(wanted * np.log(chance) + (1 - wanted) * np.log(1 - chance)).mean())
    return float(np.mean(cross_entropy(output.logits, labels["labels"])))


# The formulas


def test_loss_by_hand(task):
    model = make_model(task[0], **task[1])
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
    reference = make_model(PlainformerForSequenceClassification, num_labels=num_labels, problem_type=expected)
    assert_same(reference(**inputs, labels=labels).loss, inferred, 0)


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


@both_routes
def test_nothing_labelled(head_class, unpad):
    """The loss is 0 and so is every gradient, whatever `Trainer` counted."""
    model = make_model(head_class, unpad_inputs=unpad)
    inputs = make_inputs(head_class)
    labels = unlabel(make_labels(head_class, inputs), slice(None))
    for count in (None, 0, torch.tensor(0), torch.tensor(5)):
        model.zero_grad()
        loss = model(**inputs, **labels, num_items_in_batch=count).loss
        loss.backward()
        assert loss.item() == 0
        assert not any(gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize(("head_class", "fields"), HEAD_CASES.values(), ids=HEAD_CASES)
@both_routes
def test_empty_row_changes_no_loss(head_class, fields, unpad):
    """The loss and its gradients are those of the batch without the row."""
    model = make_model(head_class, unpad_inputs=unpad, **fields)
    rows = make_rows(padding_mask("right", "full", "left", "holes", "empty", "empty"))
    with_empty = as_batch(head_class, rows)
    labels = make_labels(head_class, with_empty)
    if head_class is PlainformerForQuestionAnswering:
        labels = {
            "start_positions": torch.tensor([1, 2, 3, 0, 4, 5]),
            "end_positions": torch.tensor([4, 7, 2, 6, 5, 1]),
        }
    kept = 2 if head_class is PlainformerForMultipleChoice else 4
    without = {name: values[:kept] for name, values in with_empty.items()}
    kept_labels = {name: values[:kept] for name, values in labels.items()}
    _, loss, grads = learn(model, with_empty | labels)
    _, expected_loss, expected_grads = learn(model, without | kept_labels)
    assert_finite(loss, *grads.values())
    assert_same((loss, grads), (expected_loss, expected_grads))


def test_label_of_a_row_without_choices():
    """A label at a place that does not exist counts as unlabelled, whatever its value."""
    model = make_model(PlainformerForMultipleChoice)
    inputs = make_inputs(PlainformerForMultipleChoice, 2)
    mask = torch.ones(2, 2, 8, dtype=torch.long)
    mask[1] = 0
    losses = [model(**inputs, attention_mask=mask, labels=torch.tensor([1, label])).loss for label in (-100, 0, 777)]
    assert_equal(losses[1:], losses[:1] * 2)


@pytest.mark.parametrize("value", [5.0, torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("name", ["MultiLabel", "Regression", "Regression-3"])
def test_values_of_an_empty_row_are_unlabelled(name, value):
    """The loss and its gradients are those of the batch without the row, whatever its values are."""
    head, fields = TASKS[name]
    model = make_model(head, **fields)
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


@both_routes
@pytest.mark.parametrize("padded", ["right", "left"])
def test_answers_outside_the_tokens_are_unlabelled(padded, unpad):
    """An answer before the row, behind it or in the padding is none; start and end each count their own."""
    model = make_model(PlainformerForQuestionAnswering, unpad_inputs=unpad)
    inputs = make_inputs(PlainformerForQuestionAnswering)
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[:, 5:] = 0
    token_mask = [0, 4, 2]
    if padded == "left":
        mask, token_mask = mask.flip(1), [3, 7, 5]
    inside = {
        "start_positions": torch.tensor([token_mask[0], token_mask[1], token_mask[2], -100]),
        "end_positions": torch.tensor([token_mask[1], -100, -100, token_mask[2]]),
    }
    outside = {name: values.clone() for name, values in inside.items()}
    at_padding = 7 - token_mask[1] if padded == "left" else 7
    outside["start_positions"][3] = 8
    outside["end_positions"][1], outside["end_positions"][2] = at_padding, 10**6
    expected = model(**inputs, attention_mask=mask, **inside)
    assert_same(expected.loss.item(), loss_by_hand(expected, inside, None))
    assert_same(model(**inputs, attention_mask=mask, **outside).loss, expected.loss, 0)
    outside["start_positions"][3] = -1
    assert_same(model(**inputs, attention_mask=mask, **outside).loss, expected.loss, 0)


# Labels of every form


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("label", [-1, 99])
def test_label_out_of_range(label, padded):
    """The message names the label, the range that the head has, and the remedy."""
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
        what, remedy = "class ids", "num_labels"
        if head is PlainformerForMultipleChoice:
            what, remedy = "the choices of a row", "all its choices"
        with pytest.raises(ValueError, match=f"labels hold {label}, but {what} go from 0 to {size - 1} .*{remedy}"):
            make_model(head, problem_type=SINGLE)(**inputs, attention_mask=mask, **labels)


def test_float_labels_for_class_ids(head_class):
    inputs = make_inputs(head_class)
    labels = {name: values.float() for name, values in make_labels(head_class, inputs).items()}
    what = {
        PlainformerForQuestionAnswering: "start_positions are torch.float32, but places of tokens",
        PlainformerForMultipleChoice: "labels are torch.float32, but numbers of choices",
    }
    message = what.get(head_class, "labels are torch.float32, but class ids")
    with pytest.raises(ValueError, match=message + r" are integers: pass \w+.long\(\)"):
        make_model(head_class, problem_type=SINGLE)(**inputs, **labels)


def check_integer_type(head_class: type, dtype: torch.dtype, unpad: bool, training: bool) -> None:
    """The loss of a padded batch is the same bits with labels of another integer type."""
    model = make_model(head_class, problem_type=SINGLE, unpad_inputs=unpad, **NO_DROPOUT).train(training)
    inputs = make_inputs(head_class)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, ..., 5:] = 0
    mask[2] = 0
    labels = {name: values.clamp(max=1) for name, values in make_labels(head_class, inputs).items()}
    expected = model(**inputs, attention_mask=mask, **labels).loss
    converted = {name: values.to(dtype) for name, values in labels.items()}
    assert torch.equal(model(**inputs, attention_mask=mask, **converted).loss, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_class_ids_of_any_integer_type(head_class, dtype):
    """The -100 that stands for no label has no place in a byte or a boolean."""
    check_integer_type(head_class, dtype, unpad=True, training=False)


@both_routes
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_bytes_as_class_ids_in_every_mode(head_class, unpad, training):
    check_integer_type(head_class, torch.uint8, unpad, training)


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


ONE_VALUE, SEQUENCE, TOKEN = {"num_labels": 1}, PlainformerForSequenceClassification, PlainformerForTokenClassification
COMPLEX = torch.ones(4, dtype=torch.complex64)
MISTAKES = {  # for a batch of 4 rows and 3 classes: the class, its fields, the labels, and what is said of them
    "nan": (SEQUENCE, ONE_VALUE, torch.tensor([1, 2, torch.nan, 4]), ValueError, r"labels hold \[nan\] in row 2"),
    "infinite": (SEQUENCE, {}, torch.full((4, 3), torch.inf), ValueError, r"labels hold \[inf, inf, inf\] in row 0"),
    "several-as-integers": (
        SEQUENCE,
        {},
        torch.ones(4, 3, dtype=torch.long),
        ValueError,
        r"one for each of the 4 rows\. For several labels per row.*problem_type='multi_label_classification'",
    ),
    "one-hot-for-one-label": (SEQUENCE, ONE_VALUE, torch.ones(4, 3), ValueError, "build the model with num_labels"),
    "classes-as-floats": (
        SEQUENCE,
        {},
        torch.ones(4),
        ValueError,
        r"labels.long\(\) and set problem_type='single_label_classification'",
    ),
    "no-dimension": (SEQUENCE, ONE_VALUE, torch.tensor(1.5), ValueError, r"labels of shape \(\) do not go"),
    "complex-values": (SEQUENCE, ONE_VALUE, COMPLEX, ValueError, r"labels are torch.complex64.*labels\.real"),
    "complex-classes": (SEQUENCE, {}, COMPLEX, ValueError, r"labels are torch.complex64.*labels\.real\.long\(\)"),
    "complex-tokens": (TOKEN, {}, COMPLEX[:, None].expand(4, 8), ValueError, "labels are torch.complex64"),
    "sparse-tokens": (TOKEN, {}, torch.ones(4, 8).to_sparse(), TypeError, r"labels.*labels.to_dense\(\)"),
    "sparse-values": (SEQUENCE, ONE_VALUE, torch.ones(4).to_sparse(), TypeError, r"labels.*labels.to_dense\(\)"),
}


@pytest.mark.parametrize(("head", "fields", "labels", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_in_labels_are_named_before_the_encoder_runs(head, fields, labels, error, message, monkeypatch):
    model = make_model(head, **fields)
    monkeypatch.setattr(model.plainformer.layers[0], "forward", lambda *args: pytest.fail("a layer ran"))
    with pytest.raises(error, match=message):
        model(**make_inputs(head), labels=labels)


def test_a_label_without_dimensions_for_one_row():
    inputs = make_inputs(SEQUENCE, batch_size=1)
    for fields, label in ((ONE_VALUE, torch.tensor(1.5)), ({}, torch.tensor(1))):
        model = make_model(SEQUENCE, **fields)
        assert_equal(model(**inputs, labels=label).loss, model(**inputs, labels=label[None]).loss)


@pytest.mark.parametrize("count", [4, 4.0, np.int64(4), torch.tensor([4]), torch.tensor([[4]])], ids=repr)
def test_counts_of_items_in_any_form(count, task):
    """DataParallel gives each replica a tensor of one number with dimensions: the loss still has none."""
    model, inputs = make_model(task[0], **task[1]), make_inputs(task[0])
    batch = inputs | task_labels(task, inputs)
    assert_equal(model(**batch, num_items_in_batch=count).loss, model(**batch, num_items_in_batch=torch.tensor(4)).loss)


@pytest.mark.parametrize(
    ("count", "error"),
    [
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (torch.tensor([3, 4]), ValueError),
        (torch.tensor([]), ValueError),
        ("4", TypeError),
        (True, TypeError),
        ([4], TypeError),
        (torch.tensor(4j), TypeError),
    ],
    ids=repr,
)
def test_odd_counts_of_items_are_refused(count, error):
    inputs = make_inputs(TOKEN)
    with pytest.raises(error, match="num_items_in_batch=.* is no number of labelled items"):
        make_model(TOKEN)(**inputs, **make_labels(TOKEN, inputs), num_items_in_batch=count)


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


# Logits only where there is a label


def masked_lm_batch() -> dict[str, torch.Tensor]:
    mask = padding_mask()
    ids = torch.randint(1, 50, mask.shape)
    labels = ids.masked_fill(torch.rand(mask.shape) < 0.6, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}  # labels at padding as well


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_sparse_equals_dense(unpad):
    model = make_model(PlainformerForMaskedLM, unpad_inputs=unpad, **NO_DROPOUT).train()
    batch = masked_lm_batch()
    labelled = (batch["labels"] != -100) & batch["attention_mask"].bool()
    results = []
    for sparse in (True, False):
        model.config.sparse_prediction = sparse
        for count in (None, 100):
            model.zero_grad()
            output = model(**batch, num_items_in_batch=count)
            output.loss.backward()
            logits = output.logits if sparse else output.logits[labelled]  # both in row-major order
            results.append((output.loss.detach(), logits.detach(), gradients(model)))
    assert results[0][1].shape == (int(labelled.sum()), 50)
    assert_same(results[:2], results[2:])


def test_logits_are_complete_outside_training():
    model = make_model(PlainformerForMaskedLM)
    batch = masked_lm_batch()
    assert model(**batch).logits.shape == (6, 8, 50)  # evaluation
    model.train()
    without = {name: values for name, values in batch.items() if name != "labels"}
    assert model(**without).logits.shape == (6, 8, 50)
    assert model(**batch).logits.dim() == 2


@both_routes
def test_no_logits_where_nothing_is_labelled(unpad):
    model = make_model(PlainformerForMaskedLM, unpad_inputs=unpad).train()
    batch = masked_lm_batch()
    batch["labels"].fill_(-100)
    output = model(**batch)
    output.loss.backward()
    assert output.loss == 0 and output.logits.shape == (0, 50)
    assert all((gradient == 0).all() for gradient in gradients(model).values())


# Every parameter learns


def test_every_parameter_gets_a_gradient(task):
    """A parameter without one breaks distributed training. What is added to every score cancels in a softmax."""
    model = make_model(task[0], **task[1]).train()
    inputs = make_inputs(task[0], length=16)
    model(**inputs, **task_labels(task, inputs)).loss.backward()
    cancels = ("k_proj.bias", "classifier.bias" if task[0] is PlainformerForMultipleChoice else "k_proj.bias")
    for name, gradient in gradients(model).items():
        assert gradient.isfinite().all() and (gradient.any() or name.endswith(cancels)), name


def test_every_parameter_of_every_setting_gets_a_gradient(setting):
    model = make_model(PlainformerForTokenClassification, **setting).train()
    inputs = make_inputs(PlainformerForTokenClassification, length=16)
    model(**inputs, **make_labels(PlainformerForTokenClassification, inputs)).loss.backward()
    for name, gradient in gradients(model).items():
        assert gradient.isfinite().all() and (gradient.any() or name.endswith("k_proj.bias")), name


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
def test_micro_batches_add_up(task, as_tensor):
    """With the number of labels in all of them, losses and gradients sum to those of the big batch."""
    model = make_model(task[0], **task[1])
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
@pytest.mark.parametrize(
    ("task", "optimizer"),
    [*((TASKS[name], "sgd") for name in EACH_FORM), (TASKS["MaskedLM"], "adamw_torch")],
    ids=[*EACH_FORM, "MaskedLM-adamw"],
    indirect=["task"],
)
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


@pytest.mark.parametrize(
    ("task", "states"), paired(TASKS, {"plain": False, "output_hidden_states": True}), indirect=["task"]
)
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


@pytest.mark.parametrize("task", [TASKS[name] for name in EACH_FORM[:3]], ids=EACH_FORM[:3], indirect=True)
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
    [PlainformerForMaskedLM, PlainformerForSequenceClassification],
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
