"""The encoder-decoder in training: what it computes, that padding does not exist, and what it refuses.

Oracles: `torch.nn.Transformer`, and `MarianMTModel` of transformers.

Shapes: B batch, S source, L targets, N labels, V vocabulary.
"""

import numpy as np
import pytest
import torch
import transformers
from helpers.models import KIND_AND_NORM, assert_equal, assert_finite, assert_same, gradients
from helpers.positions import bias_by_hand, formula, turn_by_hand
from helpers.seq2seq import (
    END,
    GREEDY,
    START,
    answers_of,
    make_pairs,
    make_seq2seq,
    make_source,
    seq2seq_config,
    single,
    spans,
)
from marian import make_marian
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

from plainformer import (
    PlainformerForConditionalGeneration,
    PlainformerModel,
    PlainformerSeq2SeqConfig,
    kernels_plainformer,
)
from plainformer.positions_plainformer import POSITION_KINDS, NoRotation

# `torch.nn` has no attention whose queries and keys turn.
TORCH_VARIANTS = {
    name: variant
    for name, variant in KIND_AND_NORM.items()
    if POSITION_KINDS[variant["position_embedding_type"]].rotation is NoRotation
}
ATTENTIONS = {"self_attn": "attention", "multihead_attn": "cross_attention"}
NORMS = {"encoder": ["attn_norm", "mlp_norm"], "decoder": ["attn_norm", "cross_attn_norm", "mlp_norm"]}


def run(model, pairs) -> tuple:
    """Loss, logits at the targets, and the gradient of every parameter."""
    model.zero_grad()
    output = model(**pairs)
    output.loss.backward()
    return output.loss.detach(), answers_of(output.logits, pairs["labels"]).detach(), gradients(model)


# What it computes.


def torch_names(side: str, layer: int) -> dict[str, list[str]]:
    """A parameter of `torch.nn.Transformer`: those of ours that it holds, one below the other."""
    theirs, ours = f"{side}.layers.{layer}", f"{'plainformer' if side == 'encoder' else side}.layers.{layer}"
    attentions = {their: our for their, our in ATTENTIONS.items() if side == "decoder" or their == "self_attn"}
    names = {}
    for kind in ("weight", "bias"):
        for their, our in attentions.items():
            names[f"{theirs}.{their}.in_proj_{kind}"] = [f"{ours}.{our}.{one}_proj.{kind}" for one in "qkv"]
            names[f"{theirs}.{their}.out_proj.{kind}"] = [f"{ours}.{our}.o_proj.{kind}"]
        names |= {f"{theirs}.linear{one}.{kind}": [f"{ours}.mlp.fc{one}.{kind}"] for one in (1, 2)}
        names |= {f"{theirs}.norm{i}.{kind}": [f"{ours}.{norm}.{kind}"] for i, norm in enumerate(NORMS[side], start=1)}
    return names


def make_torch(model) -> tuple[nn.Module, dict[str, list[str]]]:
    """`torch.nn.Transformer` with the weights of a model, and which of ours each of its parameters holds."""
    config, names = model.config, {}
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": config.pre_norm}
    layers = (config.num_hidden_layers, config.num_decoder_layers)
    oracle = nn.Transformer(32, 2, *layers, 37, layer_norm_eps=config.layer_norm_eps, **options)
    for side, depth in zip(("encoder", "decoder"), layers, strict=True):
        for layer in range(depth):
            names |= torch_names(side, layer)
        part = getattr(oracle, side)
        if config.pre_norm:
            ours = "plainformer" if side == "encoder" else side
            names |= {f"{side}.norm.{kind}": [f"{ours}.final_norm.{kind}"] for kind in ("weight", "bias")}
        else:
            part.norm = None
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.copy_(torch.cat([model.get_parameter(one) for one in names[name]]))
    return oracle.train(), names  # in training mode, since eval has a faster route of its own


def embed_for_torch(embeddings, ids, words) -> torch.Tensor:
    """token + position (+ segment 0), then the norm, from the weights alone."""
    states = words(ids) * embeddings.scale
    if hasattr(embeddings, "token_type_embeddings"):
        states = states + embeddings.token_type_embeddings.weight[0]
    positions = embeddings.position_embeddings
    if isinstance(positions, nn.Embedding):
        states = states + positions.weight[: ids.shape[1]]
    elif type(positions).__name__.startswith("Sinusoidal"):
        states = states + torch.from_numpy(formula(torch.arange(ids.shape[1]).numpy(), 32)).float()
    return embeddings.norm(states)


def add_biases(oracle: nn.Transformer, model) -> None:
    """Let the self-attentions of `torch.nn` add the biases of ours, from the formulas and our tables."""
    for side, ours in (("encoder", model.plainformer), ("decoder", model.decoder)):
        for their_layer, our_layer in zip(getattr(oracle, side).layers, ours.layers, strict=True):

            def add(module, args, kwargs, attention=our_layer.attention, is_causal=side == "decoder") -> tuple:
                B, L, _ = args[0].shape
                bias = bias_by_hand(attention, np.arange(L), is_causal)  # [H, L, L]
                mask = torch.zeros(L, L) if kwargs["attn_mask"] is None else kwargs["attn_mask"]
                return args, {**kwargs, "attn_mask": (mask + bias).repeat(B, 1, 1), "is_causal": False}  # [B * H, L, L]

            if our_layer.attention.bias is not None:
                their_layer.self_attn.register_forward_pre_hook(add, with_kwargs=True)


@pytest.mark.parametrize("variant", TORCH_VARIANTS.values(), ids=TORCH_VARIANTS)
def test_it_computes_what_torch_nn_transformer_computes(variant):
    model = make_seq2seq(**variant)
    oracle, names = make_torch(model)
    add_biases(oracle, model)
    ids, labels = torch.randint(3, 50, (3, 7)), torch.randint(3, 50, (3, 5))
    output = model(input_ids=ids, labels=labels)
    output.loss.backward()
    expected = gradients(model)
    model.zero_grad()

    words = model.get_input_embeddings()
    shifted = torch.cat((torch.full((3, 1), START), labels[:, :-1]), dim=1)
    source = embed_for_torch(model.plainformer.embeddings, ids, words)
    target = embed_for_torch(model.decoder.embeddings, shifted, words)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    logits = oracle(source, target, tgt_mask=causal) @ words.weight.T
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    assert_same(output.logits, logits)
    assert_same(output.loss, loss)
    for name, parameter in oracle.named_parameters():
        assert_same(torch.cat([expected[one] for one in names[name]]), parameter.grad)
    outside = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert outside.pop("plainformer.embeddings.token_type_embeddings.weight")[0].any()
    for name, gradient in outside.items():
        assert_same(expected[name], gradient)


def test_rotary_positions_of_a_decoder_by_hand():
    """The weights of the first self-attention, from queries and keys that turn; those of the other do not."""
    model, source = make_seq2seq(position_embedding_type="rotary"), make_source()
    layer, seen = model.decoder.layers[0], {}
    for name in ("attention", "cross_attention"):
        hook = lambda module, args, name=name: seen.update({name: args})  # noqa: E731
        getattr(layer, name).register_forward_pre_hook(hook)
    output = model(**source, decoder_input_ids=torch.randint(3, 50, (5, 6)), output_attentions=True)
    states, positions = seen["attention"][0], np.arange(6)
    parts = (layer.attention.q_proj, layer.attention.k_proj)
    query, key = (turn_by_hand(part(states).unflatten(-1, (2, 16)), positions) for part in parts)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4
    expected = scores.masked_fill(~torch.ones(6, 6).tril().bool(), -torch.inf).softmax(dim=-1)
    assert_same(output.decoder_attentions[0], expected.float())
    states, source_states = seen["cross_attention"][:2]
    query = layer.cross_attention.q_proj(states).unflatten(-1, (2, 16))
    key = layer.cross_attention.k_proj(source_states).unflatten(-1, (2, 16))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4
    is_padding = source["attention_mask"][:, None, None] == 0
    assert_same(output.cross_attentions[0], scores.masked_fill(is_padding, -torch.inf).softmax(dim=-1))


def test_it_computes_and_generates_what_marian_does():
    model = make_seq2seq(embedding_norm=False, scale_embedding=True, layer_norm_eps=1e-5)
    marian = make_marian(model)
    ids, labels = torch.randint(3, 50, (3, 7)), torch.randint(3, 50, (3, 5))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]])
    labels[1, 3:] = -100
    ours, theirs = (one(input_ids=ids, attention_mask=mask, labels=labels) for one in (model, marian))
    for one in (ours, theirs):
        one.loss.backward()
    assert_same(ours.loss, theirs.loss)
    assert_same(answers_of(ours.logits, labels), answers_of(theirs.logits, labels))
    assert_same(
        model.decoder.layers[2].cross_attention.k_proj.weight.grad,
        marian.model.decoder.layers[2].encoder_attn.k_proj.weight.grad,
    )
    assert_same(model.get_input_embeddings().weight.grad[1:], marian.model.shared.weight.grad[1:])
    for options in (GREEDY, {**GREEDY, "num_beams": 4}, {**GREEDY, "num_beams": 3, "num_return_sequences": 2}):
        expected = marian.generate(ids, attention_mask=mask, **options)
        assert_equal(model.generate(ids, attention_mask=mask, **options), expected)


# Padding does not exist.

OTHERS = {"padded": {"unpad_inputs": False}, "eager": {"attn_implementation": "eager"}}
OTHERS["padded-eager"] = OTHERS["padded"] | OTHERS["eager"]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_routes_and_kernels_agree(variant, other):
    pairs = make_pairs()
    expected = run(make_seq2seq(**variant), pairs)
    assert_same(run(make_seq2seq(**variant, **other), pairs), expected)


def test_a_pair_alone_and_in_a_batch(variant):
    """Each row's gradients add up to the batch's, where the loss is a sum over the labels."""
    model, pairs = make_seq2seq(**variant), make_pairs()
    num_labels = int((pairs["labels"] != -100).sum())
    loss, logits, expected = run(model, pairs)
    model.zero_grad()
    alone, losses = [], []
    for row in range(5):
        output = model(**single(pairs, row), num_items_in_batch=num_labels)
        output.loss.backward()
        alone.append(output.logits[0].detach())
        losses.append(output.loss.detach())
    assert_same(torch.cat(alone), logits)
    assert_same(sum(losses), loss)
    assert_same(gradients(model), expected)


def test_what_stands_at_padding_changes_nothing():
    model, pairs = make_seq2seq(), make_pairs()
    expected = run(model, pairs)
    ids = pairs["input_ids"].masked_fill(pairs["attention_mask"] == 0, 49)
    longer = {
        "input_ids": nn.functional.pad(ids, (3, 2), value=5),
        "attention_mask": nn.functional.pad(pairs["attention_mask"], (3, 2)),
        "labels": nn.functional.pad(pairs["labels"], (2, 4), value=-100),
    }
    assert_same(run(model, longer), expected)


@pytest.mark.parametrize("unpad", [True, False])
def test_a_row_without_a_source_or_a_target_disturbs_nobody(unpad):
    model, pairs = make_seq2seq(unpad_inputs=unpad), make_pairs()
    kept = {name: values.clone()[[0, 2, 3]] for name, values in pairs.items()}
    pairs["labels"][1] = -100
    pairs["attention_mask"][4] = 0
    num_labels = int((pairs["labels"] != -100).sum())
    output = model(**pairs)
    output.loss.backward()
    assert_finite(output.loss, output.logits, *gradients(model).values())
    assert_same(answers_of(output.logits[[0, 2, 3]], kept["labels"]), answers_of(model(**kept).logits, kept["labels"]))
    assert not output.logits[1].any()
    without_source = model(**{name: values[4:] for name, values in pairs.items()}, num_items_in_batch=num_labels)
    assert_same(
        answers_of(without_source.logits, pairs["labels"][4:]), answers_of(output.logits[4:], pairs["labels"][4:])
    )
    ids, mask = pairs["input_ids"], pairs["attention_mask"]
    together = model.generate(ids, attention_mask=mask, **GREEDY)
    assert_equal(model.generate(ids[:4], attention_mask=mask[:4], **GREEDY), together[:4])


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_without_labels_loss_and_gradients_are_zero(unpad, training):
    model, pairs = make_seq2seq(unpad_inputs=unpad).train(training), make_pairs()
    pairs["labels"].fill_(-100)
    loss = model(**pairs).loss
    loss.backward()
    assert loss == 0
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_logits_of_training_are_those_of_labels():
    model, pairs = make_seq2seq(), make_pairs()
    expected = model(**pairs)
    labelled = pairs["labels"] != -100
    sparse = model.train()(**pairs)
    assert expected.logits.shape == (5, 6, 50) and sparse.logits.shape == (int(labelled.sum()), 50)
    assert_same(sparse.logits, expected.logits[labelled])
    assert_same(sparse.loss, expected.loss)
    full = make_seq2seq(sparse_prediction=False).train()(**pairs)
    assert_same((full.logits, full.loss), (expected.logits, expected.loss))
    loss = nn.functional.cross_entropy(expected.logits.flatten(0, 1), pairs["labels"].flatten())
    assert_same(expected.loss, loss)
    parts = [torch.autograd.grad(one, expected.logits, retain_graph=True)[0] for one in (expected.loss, loss)]
    assert_same(*parts)  # it is a function of the logits that are handed out


# The decoder's own input.


def test_input_ids_made_of_labels_are_those_of_transformers():
    model = make_seq2seq()
    labels = torch.tensor([[5, 6, 7, 2], [8, -100, 2, -100], [9, 2, -100, -100]])
    shift = transformers.models.marian.modeling_marian.shift_tokens_right
    made = model.prepare_decoder_input_ids_from_labels(labels=labels)
    assert_equal(made, shift(labels, pad_token_id=0, decoder_start_token_id=START))
    left = model.prepare_decoder_input_ids_from_labels(torch.tensor([[-100, -100, 5, 6]]))
    assert left.tolist() == [[0, 0, START, 5]]


def test_the_same_decoder_input_given_in_every_way():
    model, pairs = make_seq2seq(), make_pairs()
    labels = pairs.pop("labels")
    expected = answers_of(model(**pairs, labels=labels).logits, labels)
    ids = model.prepare_decoder_input_ids_from_labels(labels)
    mask = torch.zeros_like(labels)
    for row, span in enumerate(spans(labels)):
        mask[row, span] = 1
    embeds = model.get_input_embeddings()(ids)
    for given in (
        {"decoder_input_ids": ids, "labels": labels},
        {"decoder_input_ids": ids, "decoder_attention_mask": mask},
        {"decoder_input_ids": ids.int(), "decoder_attention_mask": mask.bool(), "labels": labels},
        {"decoder_inputs_embeds": embeds, "decoder_attention_mask": mask},
        {"decoder_inputs_embeds": embeds, "labels": labels},
        {"decoder_attention_mask": mask.float(), "labels": labels, "use_cache": True},
    ):
        assert_same(answers_of(model(**pairs, **given).logits, labels), expected)


def test_a_prompt_without_a_loss_is_read_where_the_mask_says_so():
    model, pairs = make_seq2seq(), make_pairs()
    prompt = torch.tensor([[START, 5, 6, 7, 8, 9]]).expand(5, 6)
    labels = torch.tensor([[-100, -100, -100, 8, 9, END]]).expand(5, 6)
    pairs["labels"] = labels
    output = model(**pairs, decoder_input_ids=prompt, decoder_attention_mask=torch.ones(5, 6))
    pairs.pop("labels")
    assert_same(output.logits, model(**pairs, decoder_input_ids=prompt).logits)


def test_label_smoothing_is_its_formula():
    """`Trainer` keeps the labels, and computes the loss of the logits for the input ids that were made of them."""
    model, pairs = make_seq2seq().train(), make_pairs()
    rows = [0, 1]
    labels = pairs.pop("labels")[rows]
    pairs = {name: values[rows] for name, values in pairs.items()}
    ids = model.prepare_decoder_input_ids_from_labels(labels)
    output = model(**pairs, decoder_input_ids=ids)
    loss = LabelSmoother(epsilon=0.2)(output, labels)
    logits = model.eval()(**pairs, labels=labels).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    assert_same(loss, expected)


@pytest.mark.parametrize("training", [True, False])
def test_padding_before_the_start_without_a_mask_is_refused(training):
    """Else label smoothing would learn from other positions than those of generation."""
    model, pairs = make_seq2seq().train(training), make_pairs()
    ids = model.prepare_decoder_input_ids_from_labels(pairs.pop("labels"))
    with pytest.raises(ValueError, match="begin with pad_token_id=0 before decoder_start_token_id=1.*padding_side"):
        model(**pairs, decoder_input_ids=ids)


def test_padding_that_is_the_start_token_is_refused_in_training():
    model = make_seq2seq(decoder_start_token_id=0)
    source, ids = make_source(), torch.tensor([[0, 0, 5, 6]]).expand(5, 4)
    with pytest.raises(ValueError, match="begin with pad_token_id=0 before decoder_start_token_id=0"):
        model.train()(**source, decoder_input_ids=ids)
    assert_finite(model.eval()(**source, decoder_input_ids=ids).logits)  # generation may write padding first


def test_the_other_configuration_is_refused():
    config = seq2seq_config()
    with pytest.raises(ValueError, match=r"is that of an encoder-decoder.*config.encoder_config\(\)"):
        PlainformerModel(config)
    with pytest.raises(ValueError, match="PlainformerConfig for .* says nothing of a decoder"):
        PlainformerForConditionalGeneration(config.encoder_config())


def test_a_batch_of_no_texts():
    model, none = make_seq2seq(), torch.zeros(0, 3, dtype=torch.long)
    for use_cache in (True, False):
        assert model(none, decoder_input_ids=none, use_cache=use_cache).logits.shape == (0, 3, 50)


# Outputs.


def test_attentions_and_states_of_both_halves(variant):
    model, pairs = make_seq2seq(**variant), make_pairs()
    expected = model(**pairs)
    output = model(**pairs, output_attentions=True, output_hidden_states=True)
    assert_same(answers_of(output.logits, pairs["labels"]), answers_of(expected.logits, pairs["labels"]))
    shapes = {"encoder_attentions": (2, (5, 2, 7, 7)), "decoder_attentions": (3, (5, 2, 6, 6))}
    shapes |= {"cross_attentions": (3, (5, 2, 6, 7))}
    shapes |= {"encoder_hidden_states": (3, (5, 7, 32)), "decoder_hidden_states": (4, (5, 6, 32))}
    for name, (count, shape) in shapes.items():
        assert [tuple(one.shape) for one in output[name]] == [shape] * count, name
    targets = [(row, column) for row, span in enumerate(spans(pairs["labels"])) for column in range(6)[span]]
    rows, columns = map(list, zip(*targets, strict=True))
    for weights in (*output.decoder_attentions, *output.cross_attentions):
        assert_same(weights.transpose(1, 2)[rows, columns].sum(-1), torch.ones(len(rows), 2))
    assert not output.decoder_attentions[0].triu(1).any()
    hidden = pairs["attention_mask"][:, None, None] == 0
    assert not output.cross_attentions[0].masked_select(hidden).any()
    assert_same(output.encoder_last_hidden_state, output.encoder_hidden_states[-1])
    logits = model.lm_head(output.decoder_hidden_states[-1])
    assert_same(answers_of(logits, pairs["labels"]), answers_of(output.logits, pairs["labels"]))
    with_fields = make_seq2seq(**variant, output_attentions=True, output_hidden_states=True)(**pairs)
    assert_same(with_fields.cross_attentions, output.cross_attentions)
    assert isinstance(model(**pairs, return_dict=False), tuple)


def test_what_was_encoded_before(variant):
    model, pairs = make_seq2seq(**variant), make_pairs()
    expected = run(model, pairs)
    mask, labels = pairs["attention_mask"], pairs["labels"]
    embeds = model.get_input_embeddings()(pairs["input_ids"])
    assert_same(run(model, {"inputs_embeds": embeds, "attention_mask": mask, "labels": labels}), expected)
    for wrap in (lambda output: output, lambda output: (output.last_hidden_state,)):
        encoded = wrap(model.get_encoder()(pairs["input_ids"], mask))
        assert_same(run(model, {"encoder_outputs": encoded, "attention_mask": mask, "labels": labels}), expected)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("unpad", [True, False])
def test_gradient_checkpointing(reentrant, unpad):
    pairs = make_pairs()
    model = make_seq2seq(sparse_prediction=False, unpad_inputs=unpad).train()
    expected = run(model, pairs)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert all(layer.gradient_checkpointing for part in (model.plainformer, model.decoder) for layer in part.layers)
    assert_same(run(model, pairs), expected)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-5), (torch.bfloat16, 0.2)], ids=str)
def test_other_precisions(variant, dtype, tolerance):
    pairs = make_pairs()
    expected = make_seq2seq(**variant)(**pairs)
    model = make_seq2seq(**variant).to(dtype)
    output = model(**pairs)
    assert output.logits.dtype == dtype and (output.loss - expected.loss).abs() < tolerance * expected.loss
    output.loss.backward()
    assert_finite(*gradients(model).values())
    padded = make_seq2seq(**variant, unpad_inputs=False).to(torch.float64)(**pairs)
    if dtype == torch.float64:
        torch.testing.assert_close(padded.loss, output.loss, rtol=1e-12, atol=1e-12)
    generated = model.generate(pairs["input_ids"], attention_mask=pairs["attention_mask"], **GREEDY)
    assert generated.shape[0] == 5


def test_switches_of_the_whole_reach_both_halves(monkeypatch):
    model, pairs = make_seq2seq(), make_pairs()
    expected = run(model, pairs)
    calls, eager = [], kernels_plainformer.KERNELS["eager"]
    monkeypatch.setitem(kernels_plainformer.KERNELS, "eager", lambda *args: calls.append(args[0].shape) or eager(*args))
    model.set_attn_implementation("eager")
    model.config.unpad_inputs = False
    assert_same(run(model, pairs), expected)
    assert len(calls) == 2 + 3 + 3 and {shape[0] for shape in calls} == {5}


def test_dropout_acts_in_training_alone():
    model, pairs = make_seq2seq(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5), make_pairs()
    assert_equal(model(**pairs).logits, model(**pairs).logits)
    model.train()
    assert not torch.equal(model(**pairs).logits, model(**pairs).logits)


# Errors.

WRONG = {
    "no start token": ({"decoder_start_token_id": None}, {}, "decoder_start_token_id=None"),
    "too long": ({"max_position_embeddings": 7}, {"labels": torch.full((5, 8), 4)}, "8 tokens long.*=7 is the limit"),
    "rows": ({}, {"labels": torch.full((4, 6), 4)}, "targets have 4 rows and the sources 5"),
    "label beyond": ({}, {"labels": torch.full((5, 6), 50)}, "labels hold 50.*0 to 49"),
    "label below": ({}, {"labels": torch.full((5, 6), -1)}, "labels hold -1"),
    "float labels": ({}, {"labels": torch.full((5, 6), 1.0)}, r"labels are torch.float32.*labels.long\(\)"),
    "flat labels": ({}, {"labels": torch.full((6,), 4)}, r"labels have shape \(6,\)"),
    "no place": ({}, {"labels": torch.zeros(5, 0, dtype=torch.long)}, r"labels have shape \(5, 0\)"),
    "id beyond": ({}, {"decoder_input_ids": torch.full((5, 6), 50)}, "decoder_input_ids holds 50"),
    "id below": ({}, {"decoder_input_ids": torch.full((5, 6), -1)}, "decoder_input_ids holds -1"),
    "flat ids": ({}, {"decoder_input_ids": torch.full((6,), 1)}, r"decoder_input_ids has shape \(6,\)"),
    "lengths": ({}, {"decoder_input_ids": torch.full((5, 4), 4)}, r"labels has shape \(5, 6\).*\(5, 4\)"),
    "mask": ({}, {"decoder_attention_mask": torch.ones(5, 4)}, r"decoder_attention_mask has shape \(5, 4\)"),
    "mask values": ({}, {"decoder_attention_mask": torch.full((5, 6), 0.5)}, "decoder_attention_mask.*holds 0.5"),
    "both": (
        {},
        {"decoder_input_ids": torch.full((5, 6), 1), "decoder_inputs_embeds": torch.zeros(5, 6, 32)},
        "Give either decoder_input_ids or decoder_inputs_embeds: both",
    ),
    "neither": ({}, {"labels": None}, "Give either decoder_input_ids or decoder_inputs_embeds: neither"),
    "wide embeddings": ({}, {"decoder_inputs_embeds": torch.zeros(5, 6, 32).double()}, "decoder_inputs_embeds is"),
    "states": ({}, {"encoder_outputs": (torch.zeros(5, 7, 31),)}, "encoder_outputs.*31"),
    "packed": (
        {},
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), "attention_mask": None},
        "several sequences",
    ),
}


@pytest.mark.parametrize("fields, given, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_an_error(fields, given, message):
    model = make_seq2seq(**fields)
    for training in (True, False):
        with pytest.raises(ValueError, match=f"(?s){message}"):
            model.train(training)(**{**make_pairs(), **given})


@pytest.mark.parametrize("name", ["labels", "decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds"])
def test_a_list_is_an_error(name):
    with pytest.raises(TypeError, match=rf"{name} is a list, not a tensor.*torch.as_tensor\({name}\)"):
        make_seq2seq()(**{**make_pairs(), name: [[4] * 6] * 5})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_decoder_layers": 0}, "num_decoder_layers=0 is not valid.*at least 1"),
        ({"num_decoder_layers": True}, "num_decoder_layers=True is not valid"),
        ({"num_decoder_layers": 2.0}, "num_decoder_layers=2.0 is not valid"),
        ({"eos_token_id": 50}, "eos_token_id=50 is not valid.*0 to 49"),
        ({"eos_token_id": [2, 50]}, r"eos_token_id=\[2, 50\] is not valid"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id=-1 is not valid"),
        ({"decoder_start_token_id": "[CLS]"}, "decoder_start_token_id='.CLS.' is not valid"),
        ({"bos_token_id": 99}, "bos_token_id=99 is not valid"),
        ({"position_embedding_type": "rope"}, "position_embedding_type='rope'"),
        ({"use_cache": "no"}, "use_cache='no' is not valid"),
    ],
)
def test_a_wrong_field_is_an_error(fields, message):
    with pytest.raises(ValueError, match=message):
        seq2seq_config(**fields)


def test_the_configuration_tells_how_deep_the_decoder_is():
    assert len(make_seq2seq(num_decoder_layers=None).decoder.layers) == 2
    config = seq2seq_config()
    assert config.get_text_config(decoder=True).num_hidden_layers == 3
    assert config.get_text_config().num_hidden_layers == 2 and config.is_encoder_decoder
    assert PlainformerSeq2SeqConfig().num_decoder_layers is None


def test_module_names():
    names = {name for name, _ in make_seq2seq(pre_norm=True).named_parameters()}
    layers = {name.split(".", 3)[3].rpartition(".")[0] for name in names if name.startswith("decoder.layers.")}
    attention = {f"{one}attention.{x}_proj" for one in ("", "cross_") for x in "qkvo"}
    assert layers == attention | {"attn_norm", "cross_attn_norm", "mlp_norm", "mlp.fc1", "mlp.fc2"}
    others = {name for name in names if name.startswith("decoder.") and ".layers." not in name}
    assert others == {
        "decoder.embeddings.position_embeddings.weight",
        *(f"decoder.{part}.{kind}" for part in ("embeddings.norm", "final_norm") for kind in ("weight", "bias")),
    }
    model = make_seq2seq()
    assert isinstance(model.plainformer, PlainformerModel) and isinstance(model, PlainformerForConditionalGeneration)
    assert model.lm_head.weight is model.get_input_embeddings().weight and model.lm_head.bias is None
