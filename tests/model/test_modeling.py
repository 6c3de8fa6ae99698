"""The encoder and its heads against independent implementations, and what they hand out in every mode.

Shapes: B batch, R rows, L length, H heads, E hidden size.
"""

import copy
import math

import pytest
import torch
from helpers.models import (
    CLASSES,
    HEADS,
    NO_DROPOUT,
    PER_ROW,
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
    row_answers,
    short_name,
)
from helpers.positions import formula
from torch import Tensor, nn

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from plainformer.modeling_plainformer import PlainformerMLP
from plainformer.positions_plainformer import POSITION_KINDS, NoRotation

# Kinds of position that torch.nn has room for: what they add, they add to the embeddings.
ADDED = [kind for kind, entry in POSITION_KINDS.items() if entry.rotation is NoRotation and entry.bias is None]
HEAD_CASES = {name: case for name, case in CLASSES.items() if case[0] in HEADS}

EMBEDDINGS = {
    "bert": {"embedding_norm": True, "scale_embedding": False},
    "no-norm": {"embedding_norm": False, "scale_embedding": False},
    "scaled": {"embedding_norm": True, "scale_embedding": True},
    "vaswani": {"embedding_norm": False, "scale_embedding": True},
}


# torch.nn.TransformerEncoder


class TorchEncoder(nn.Module):
    """The same encoder from the parts of torch.nn."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.segments = nn.Embedding(config.type_vocab_size, width)
        if config.position_embedding_type == "learned":
            self.positions = nn.Embedding(config.max_position_embeddings, width)
        if config.embedding_norm:
            self.norm = nn.LayerNorm(width, eps=eps)
        layer = nn.TransformerEncoderLayer(
            width,
            config.num_attention_heads,
            config.intermediate_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=eps,
            batch_first=True,
            norm_first=config.pre_norm,
        )
        last = nn.LayerNorm(width, eps=eps) if config.pre_norm else None
        self.encoder = nn.TransformerEncoder(layer, config.num_hidden_layers, norm=last, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.hidden_size)
        positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        if self.config.position_embedding_type == "learned":
            x = x + self.positions(positions)
        if self.config.position_embedding_type == "sinusoidal":
            x = x + torch.from_numpy(formula(positions.numpy(), self.config.hidden_size)).float()
        x = x + self.segments(token_type_ids)
        if self.config.embedding_norm:
            x = self.norm(x)
        return self.encoder(x, src_key_padding_mask=attention_mask == 0)

    @staticmethod
    def names_for(ours: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters of a Plainformer model, or their gradients, under the names and in the shapes of torch.nn."""
        renamed = {
            "embeddings.word_embeddings": "tokens",
            "embeddings.position_embeddings": "positions",
            "embeddings.token_type_embeddings": "segments",
            "embeddings.norm": "norm",
            "layers": "encoder.layers",
            "attention.o_proj": "self_attn.out_proj",
            "attn_norm": "norm1",
            "mlp.fc1": "linear1",
            "mlp.fc2": "linear2",
            "mlp_norm": "norm2",
            "final_norm": "encoder.norm",
        }
        theirs = {}
        for name, values in ours.items():
            if ".q_proj." in name:
                projections = [ours[name.replace("q_proj", f"{which}_proj")] for which in "qkv"]
                name, values = name.replace("attention.q_proj.", "self_attn.in_proj_"), torch.cat(projections)
            elif ".k_proj." in name or ".v_proj." in name:
                continue
            for old, new in renamed.items():
                name = name.replace(old, new)
            theirs[name] = values
        return theirs


def check_torch_encoder(**fields) -> None:
    """States and gradients are those of the same encoder from the parts of torch.nn."""
    model = make_model(PlainformerModel, **fields)
    oracle = TorchEncoder(model.config)
    oracle.load_state_dict(TorchEncoder.names_for(dict(model.named_parameters())))
    inputs = make_rows(padding_mask("right", "left", "both", "holes", "full"))
    tokens = inputs["attention_mask"].bool()
    ours, theirs = model(**inputs).last_hidden_state[tokens], oracle(**inputs)[tokens]
    assert_same(ours, theirs)
    weights = torch.randn(ours.shape) / ours.numel() ** 0.5
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert_same(TorchEncoder.names_for(gradients(model)), gradients(oracle))


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_torch_encoder(kind, pre_norm, embedding):
    """Here the axes meet: kind, norm placement, and what else happens to the embeddings."""
    check_torch_encoder(position_embedding_type=kind, pre_norm=pre_norm, **embedding)


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_torch_encoder_with_every_kernel(kernel, unpad):
    check_torch_encoder(attn_implementation=kernel, unpad_inputs=unpad)


def test_fields_have_an_effect():
    """The comparison above tells all of them apart: no two choices compute the same."""
    rows = make_rows(padding_mask())
    choices = [{"position_embedding_type": kind, "pre_norm": norm} for kind in ADDED for norm in (False, True)]
    choices += list(EMBEDDINGS.values())[1:]
    outputs = [row_answers(make_model(PlainformerModel, **choice), rows) for choice in choices]
    for index, one in enumerate(outputs):
        assert not any(torch.allclose(one, other, atol=1e-2) for other in outputs[index + 1 :]), choices[index]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activation_by_hand(activation):
    model = make_model(PlainformerModel, hidden_act=activation)
    mlp, states = model.layers[0].mlp, torch.randn(3, 32)
    inner = linear(model, "layers.0.mlp.fc1", states)
    functions = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        "silu": lambda x: x / (1 + torch.exp(-x)),
    }
    assert_same(mlp(states), linear(model, "layers.0.mlp.fc2", functions[activation](inner)))


# Heads, written out


def linear(model: nn.Module, name: str, x: Tensor) -> Tensor:
    return x @ model.get_parameter(f"{name}.weight").T + model.get_parameter(f"{name}.bias")


def head_by_hand(model: nn.Module, states: Tensor, token_mask: Tensor) -> Tensor:
    """Answers of a head from the encoder's states [B, L, E] and the places of tokens, bool [B, L]."""
    if isinstance(model, PlainformerForMaskedLM):
        x = linear(model, "lm_head.dense", states)
        x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
        x = x * model.lm_head.norm.weight + model.lm_head.norm.bias
        return x @ model.get_input_embeddings().weight.T + model.lm_head.decoder.bias
    if isinstance(model, PlainformerForTokenClassification):
        return linear(model, "classifier", states)
    if isinstance(model, PlainformerForQuestionAnswering):
        return linear(model, "qa_outputs", states)
    rows = [row[indices] for row, indices in zip(states, token_mask, strict=True)]  # [tokens, E] each
    pooled = torch.stack([row[0] if model.config.classifier_pooling == "cls" else row.mean(0) for row in rows])
    logits = linear(model, "classifier", torch.tanh(linear(model, "pooler.dense", pooled)))
    return logits.view(-1, 2) if isinstance(model, PlainformerForMultipleChoice) else logits


@pytest.mark.parametrize(("head_class", "fields"), HEAD_CASES.values(), ids=HEAD_CASES)
@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_head_by_hand(head_class, fields, unpad):
    """What comes after the encoder, forward and gradients."""
    model = make_model(head_class, unpad_inputs=unpad, **fields)
    mask = padding_mask("right", "left", "both", "holes", "full", "right")
    rows = {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask}
    tokens = slice(None) if head_class in PER_ROW else mask.bool()
    results = []
    for compute in (
        lambda: answers(model(**as_batch(head_class, rows))),
        lambda: head_by_hand(model, model.plainformer(**rows).last_hidden_state, mask.bool()),
    ):
        model.zero_grad()
        outputs = compute()[tokens]
        outputs.square().mean().backward()
        results.append((outputs, gradients(model)))
    assert_same(*results)


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_padding_is_never_the_answer(dtype, unpad):
    model = make_model(PlainformerForQuestionAnswering, unpad_inputs=unpad).to(dtype)
    rows = make_rows(padding_mask())
    output = model(**rows)
    for logits in (output.start_logits, output.end_logits):
        at_padding = logits[rows["attention_mask"] == 0]
        assert (at_padding <= max(torch.finfo(dtype).min, -1e15)).all() and at_padding.isfinite().all()
        assert (logits[rows["attention_mask"] == 1] > -1000).all()
        if dtype != torch.float16:  # no number of float16 is both low enough and has a finite square
            assert (at_padding[0] * torch.ones(4096, dtype=dtype)).square().sum().isfinite()


def test_choice_without_a_token():
    """It is never chosen, and the others are weighed as if it were not there."""
    model = make_model(PlainformerForMultipleChoice)
    inputs = make_inputs(PlainformerForMultipleChoice, 2, num_choices=3)
    mask = torch.ones(2, 3, 8, dtype=torch.long)
    mask[:, 1] = 0
    labels = torch.tensor([0, 2])
    output = model(**inputs, attention_mask=mask, labels=labels)
    assert (output.logits[:, 1] == -1e15).all()
    two = {name: values[:, [0, 2]] for name, values in inputs.items()}
    expected = model(**two, labels=torch.tensor([0, 1]))
    assert_same((output.logits[:, [0, 2]], output.loss), (expected.logits, expected.loss))


# Hidden states and attention weights


def test_return_dict_false_with_everything(model_class):
    """The tuple holds what the dictionary does, in its order."""
    model = make_model(model_class)
    inputs = make_inputs(model_class)
    asked = {"output_attentions": True, "output_hidden_states": True, **make_labels(model_class, inputs)}
    assert_equal(model(**inputs, **asked, return_dict=False), model(**inputs, **asked).to_tuple())


@pytest.mark.parametrize("how", ["argument", "config", "live-config"])
def test_hidden_states_and_attentions(subject, how):
    asked = {"output_attentions": True, "output_hidden_states": True}
    model = make_model(subject[0], **(asked if how == "config" else {}), **subject[1])
    if how == "live-config":
        model.config.output_attentions = model.config.output_hidden_states = True
    rows = make_rows(padding_mask())
    inputs = as_batch(subject[0], rows)
    output = model(**inputs, **(asked if how == "argument" else {}))
    tokens = rows["attention_mask"].bool()

    assert [states.shape for states in output.hidden_states] == [(6, 8, 32)] * 3
    last = model.base_model(**rows, output_attentions=False, output_hidden_states=False).last_hidden_state
    assert_same(output.hidden_states[-1], last)
    assert [weights.shape for weights in output.attentions] == [(6, 2, 8, 8)] * 2
    for weights in output.attentions:
        of_tokens = weights.transpose(1, 2)[tokens]  # [T, H, L]
        assert_same(of_tokens.sum(dim=-1), torch.ones(len(of_tokens), 2))
        assert not weights.masked_select(~tokens[:, None, None, :]).any()

    plain = model(**inputs, output_attentions=False, output_hidden_states=False)
    assert plain.get("hidden_states") is None and plain.get("attentions") is None
    assert_same(answers(output), answers(plain))


def test_each_hidden_state_is_what_its_layer_returned(setting):
    """The embeddings first, then each layer, the last one normalised where the layers are not."""
    model = make_model(PlainformerModel, **setting)
    rows = make_rows(padding_mask("full", "full"))
    states = model(**rows, output_hidden_states=True).hidden_states
    seen = []
    for module in (model.embeddings, *model.layers, model.final_norm):
        module.register_forward_hook(lambda _, __, output: seen.append(output))
    model(**rows)
    assert_same(list(states), [seen[0], seen[1], seen[3]])


def test_handed_out_states_lie_on_the_path_of_the_gradient(subject):
    """Whoever asks for the gradient of a hidden state gets it."""
    model = make_model(subject[0], **subject[1])
    output = model(**as_batch(subject[0], make_rows(padding_mask())), output_hidden_states=True)
    for states in output.hidden_states:
        states.retain_grad()
    outputs = answers(output)
    outputs[outputs > -1000].sum().backward()
    assert all(states.grad is not None and states.grad.any() for states in output.hidden_states)


@pytest.mark.parametrize("patterns", [("full", "full"), ("right", "left"), ("full", "empty")], ids="-".join)
def test_handed_out_attentions_lie_on_the_path_of_the_gradient(subject, patterns):
    """Whoever asks for the gradient of attention weights gets it."""
    model = make_model(subject[0], **subject[1])
    output = model(**as_batch(subject[0], make_rows(padding_mask(*patterns))), output_attentions=True)
    for weights in output.attentions:
        weights.retain_grad()
    outputs = answers(output)
    outputs[outputs > -1000].sum().backward()
    assert all(weights.grad is not None and weights.grad.any() for weights in output.attentions)


# Dropout

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def check_dropout(model_class: type, field: str, **overrides) -> None:
    """Off in eval, on in training, for one of the fields on its own."""
    off = dict.fromkeys((*DROPOUTS, "classifier_dropout"), 0.0)
    model = make_model(model_class, **{**off, field: 0.5}, **overrides)
    rows = make_rows(padding_mask("right", "full"))
    assert_equal(row_answers(model, rows), row_answers(model, rows))
    without = make_model(model_class, **off, **overrides).train()
    assert_equal(row_answers(model, rows), row_answers(without, rows))
    model.train()
    assert not torch.allclose(row_answers(model, rows), row_answers(model, rows), atol=1e-3)


@pytest.mark.parametrize("field", DROPOUTS)
def test_dropout(setting, field):
    check_dropout(PlainformerModel, field, **setting)


@pytest.mark.parametrize("field", DROPOUTS)
def test_dropout_below_a_head(head_class, field):
    check_dropout(head_class, field)


@pytest.mark.parametrize(
    "model_class",
    [PlainformerForSequenceClassification, PlainformerForTokenClassification, PlainformerForMultipleChoice],
    ids=short_name,
)
def test_classifier_dropout(model_class):
    """Its own field, or `hidden_dropout_prob` where that is None."""
    for given, expected in ((0.5, 0.5), (0.0, 0.0), (None, 0.3)):
        model = make_model(model_class, hidden_dropout_prob=0.3, classifier_dropout=given)
        assert model.dropout.p == expected
    check_dropout(model_class, "classifier_dropout")


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(subject, dtype):
    """Finite and close to float32, loss and gradients included."""
    model = make_model(subject[0], **subject[1])
    half = copy.deepcopy(model).to(dtype)
    rows = make_rows(padding_mask())
    expected, outputs = row_answers(model, rows), row_answers(half, rows)
    assert outputs.dtype == dtype
    close = expected > -1000
    scale = expected[close].square().mean().sqrt()
    assert (outputs[close].float() - expected[close]).square().mean().sqrt() <= 8 * torch.finfo(dtype).eps * scale
    inputs = as_batch(subject[0], rows)
    _, loss, grads = learn(half, inputs | make_labels(subject[0], inputs))
    assert_finite(outputs, loss, *grads.values())


def test_autocast(subject):
    model = make_model(subject[0], **subject[1])
    rows = make_rows(padding_mask())
    inputs = as_batch(subject[0], rows)
    expected = row_answers(model, rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = row_answers(model, rows).float()
        _, loss, grads = learn(model, inputs | make_labels(subject[0], inputs))
    close = expected > -1000
    scale = expected[close].square().mean().sqrt()
    assert (outputs[close] - expected[close]).square().mean().sqrt() <= 8 * torch.finfo(torch.bfloat16).eps * scale
    assert_finite(outputs, loss, *grads.values())


# Memory: recomputed layers, and a feed-forward in pieces


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_gradient_checkpointing(subject, use_reentrant):
    """The same answers, loss and gradients, and each layer runs a second time."""
    model = make_model(subject[0], **NO_DROPOUT, **subject[1]).train()
    inputs = as_batch(subject[0], make_rows(padding_mask()))
    inputs |= make_labels(subject[0], inputs)
    calls = []
    model.base_model.layers[0].mlp.fc1.register_forward_pre_hook(lambda *args: calls.append(1))
    expected = learn(model, inputs)
    assert len(calls) == 1
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert_same(learn(model, inputs), expected)
    assert len(calls) == 3


MANY = {"max_position_embeddings": 500}  # 1,200 tokens are more than a CPU's cache holds at once


def many_tokens(*lengths: int) -> dict[str, Tensor]:
    """Three rows of 500 tokens, cut off at these lengths."""
    mask = (torch.arange(500) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask}


@pytest.mark.parametrize("lengths", [(500, 400, 300), (500, 500, 500)], ids=["[T]", "[B, L]"])
def test_evaluation_in_pieces(monkeypatch, lengths):
    """Without gradients the feed-forward takes some tokens at a time, which changes nothing."""
    model = make_model(PlainformerModel, num_hidden_layers=1, **MANY)
    inputs, sizes, compute = many_tokens(*lengths), [], PlainformerMLP.compute

    def keep_size(mlp: torch.nn.Module, hidden_states: Tensor) -> Tensor:
        sizes.append(hidden_states.shape[:-1].numel())
        return compute(mlp, hidden_states)

    monkeypatch.setattr(PlainformerMLP, "compute", keep_size)
    expected = model(**inputs).last_hidden_state
    assert sizes == [sum(lengths)]
    with torch.no_grad():
        assert_same(model(**inputs).last_hidden_state, expected)
    assert len(sizes) > 2 and sum(sizes[1:]) == sum(lengths)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing_draws_the_same_dropout_again(use_reentrant):
    """Reentrant checkpointing runs a layer without gradients first: more tokens than are taken at once there."""
    model = make_model(PlainformerModel, hidden_dropout_prob=0.5, num_hidden_layers=1, **MANY).train()
    model.enable_input_require_grads()
    inputs = many_tokens(500, 400, 300)
    torch.manual_seed(1)
    expected = learn(model, inputs)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    torch.manual_seed(1)
    assert_same(learn(model, inputs), expected)
