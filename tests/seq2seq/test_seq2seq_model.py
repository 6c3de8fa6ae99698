"""The encoder-decoder in training: what it computes, that padding does not exist, and what it refuses.

Oracles: `torch.nn.Transformer`, and `MarianMTModel` of transformers.

Shapes: B batch, S source, L targets, N labels, V vocabulary.
"""

import torch
import transformers
from helpers.models import assert_equal, assert_same, gradients
from helpers.positions import formula
from helpers.seq2seq import (
    END,
    GREEDY,
    START,
    answers_of,
    make_seq2seq,
)
from torch import nn

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
    config_scale = embeddings.scale
    states = words(ids) * config_scale
    if hasattr(embeddings, "token_type_embeddings"):
        states = states + embeddings.token_type_embeddings.weight[0]
    positions = embeddings.position_embeddings
    if isinstance(positions, nn.Embedding):
        states = states + positions.weight[: ids.shape[1]]
    elif type(positions).__name__.startswith("Sinusoidal"):
        states = states + torch.from_numpy(formula(torch.arange(ids.shape[1]).numpy(), 32)).float()
    return embeddings.norm(states)


def test_it_computes_what_torch_nn_transformer_computes(variant):
    model = make_seq2seq(**variant)
    oracle, names = make_torch(model)
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
    outside = {name: parameter.grad for name, parameter in model.named_parameters() if "embeddings" in name}
    assert outside.pop("plainformer.embeddings.token_type_embeddings.weight")[0].any()
    for name, gradient in outside.items():
        assert_same(expected[name], gradient)


def make_marian(model) -> transformers.MarianMTModel:
    """Marian with the weights of a model; its sinusoids become the model's learned positions, frozen."""
    config = transformers.MarianConfig(
        vocab_size=50,
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        activation_function="gelu",
        dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=24,
        pad_token_id=0,
        decoder_start_token_id=START,
        eos_token_id=END,
        forced_eos_token_id=None,
    )
    marian = transformers.MarianMTModel(config).eval()
    parts = {"layers": "layers", "self_attn.": "attention.", "encoder_attn.": "cross_attention.", "out_proj": "o_proj"}
    parts |= {"self_attn_layer_norm": "attn_norm", "encoder_attn_layer_norm": "cross_attn_norm"}
    parts |= {
        "final_layer_norm": "mlp_norm",
        "fc": "mlp.fc",
        "model.encoder": "plainformer",
        "model.decoder": "decoder",
    }
    with torch.no_grad():
        for name, parameter in marian.named_parameters():
            if "embed_positions" in name:
                side = model.plainformer if "encoder" in name else model.decoder
                side.embeddings.position_embeddings.weight.copy_(parameter)
                side.embeddings.position_embeddings.weight.requires_grad_(False)
            elif name == "model.shared.weight":
                parameter.copy_(model.get_input_embeddings().weight)
            else:
                for theirs, ours in parts.items():
                    name = name.replace(theirs, ours)
                parameter.copy_(model.get_parameter(name))
        model.plainformer.embeddings.token_type_embeddings.weight.zero_()
    return marian


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
