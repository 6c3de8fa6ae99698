"""The encoder against independent implementations: forward and gradients, 1e-5 in float32.

Shapes: B batch, L length, H heads, D head size, E hidden size.
"""

import math

import numpy as np
import pytest
import torch
from helpers.models import (
    PER_ROW,
    VARIANTS,
    answers,
    as_batch,
    assert_same,
    gradients,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
    tiny_config,
)
from torch import Tensor, nn

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from plainformer.padding_plainformer import make_layout, read_mask
from plainformer.positions_plainformer import SinusoidalPositionEmbedding, sinusoidal_embedding

EMBEDDINGS = {
    "bert": {"embedding_norm": True, "scale_embedding": False},
    "no-norm": {"embedding_norm": False, "scale_embedding": False},
    "scaled": {"embedding_norm": True, "scale_embedding": True},
    "vaswani": {"embedding_norm": False, "scale_embedding": True},
}


def formula(positions: np.ndarray, width: int) -> np.ndarray:
    """Sinusoidal positions [...] -> [..., width] in float64, one number at a time from the paper's two lines."""
    table = np.empty((*positions.shape, width), dtype=np.float64)
    for place in range(width):
        angle = positions.astype(np.float64) / 10000 ** ((place - place % 2) / width)
        table[..., place] = np.cos(angle) if place % 2 else np.sin(angle)
    return table


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


@pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_torch_encoder(variant, kernel, embedding):
    model = make_model(PlainformerModel, attn_implementation=kernel, **variant, **embedding)
    oracle = TorchEncoder(model.config)
    oracle.load_state_dict(TorchEncoder.names_for(dict(model.named_parameters())))
    mask = padding_mask("right", "left", "both", "holes", "full")
    inputs = {
        "input_ids": torch.randint(1, 50, mask.shape),
        "token_type_ids": torch.randint(0, 2, mask.shape),
        "attention_mask": mask,
    }
    real = mask.bool()
    ours, theirs = model(**inputs).last_hidden_state[real], oracle(**inputs)[real]
    assert_same(ours, theirs)

    weights = torch.randn(ours.shape) / ours.numel() ** 0.5
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert_same(TorchEncoder.names_for(gradients(model)), gradients(oracle))


def test_fields_have_an_effect():
    """Each choice changes the numbers, so the comparison above tells the variants apart."""
    ids = torch.randint(1, 50, (2, 6))
    choices = [*VARIANTS.values(), *EMBEDDINGS.values()]
    outputs = [make_model(PlainformerModel, **choice)(ids).last_hidden_state for choice in choices]
    default = outputs[0]
    for choice, output in zip(choices, outputs, strict=True):
        is_default = choice in (VARIANTS["learned-post"], EMBEDDINGS["bert"])
        assert torch.allclose(output, default, atol=1e-2) == is_default, choice


# Heads, written out


def linear(model: nn.Module, name: str, x: Tensor) -> Tensor:
    return x @ model.get_parameter(f"{name}.weight").T + model.get_parameter(f"{name}.bias")


def head_by_hand(model: nn.Module, states: Tensor, real: Tensor) -> Tensor:
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
    rows = [row[places] for row, places in zip(states, real, strict=True)]  # [tokens, E] each
    pooled = torch.stack([row[0] if model.config.classifier_pooling == "cls" else row.mean(0) for row in rows])
    logits = linear(model, "classifier", torch.tanh(linear(model, "pooler.dense", pooled)))
    return logits.view(-1, 2) if isinstance(model, PlainformerForMultipleChoice) else logits


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_head_by_hand(variant, head_class, pooling):
    """What comes after the encoder, forward and gradients."""
    model = make_model(head_class, classifier_pooling=pooling, **variant)
    mask = padding_mask("right", "left", "both", "holes", "full", "right")
    rows = {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask}
    real = slice(None) if head_class in PER_ROW else mask.bool()
    results = []
    for compute in (
        lambda: answers(model(**as_batch(head_class, rows))),
        lambda: head_by_hand(model, model.plainformer(**rows).last_hidden_state, mask.bool()),
    ):
        model.zero_grad()
        said = compute()[real]
        said.square().mean().backward()
        results.append((said, gradients(model)))
    assert_same(*results)


# Attention, written out


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Query, key, value [B, H, L, D] and scores to add [B, H, L, L] -> context and weights, one query at a time.

    Where every score is minus infinity, both are 0.
    """
    B, H, L, D = query.shape
    context, weights = torch.zeros_like(query), torch.zeros(B, H, L, L)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                scores = [(query[b, h, i] * key[b, h, j]).sum() / math.sqrt(D) for j in range(L)]
                if bias is not None:
                    scores = [score + bias[b, h, i, j] for j, score in enumerate(scores)]
                powers = [score.exp() for score in scores]
                total = sum(powers)
                if total == 0:
                    continue
                row = torch.stack(powers) / total
                weights[b, h, i] = row
                context[b, h, i] = sum(row[j] * value[b, h, j] for j in range(L))
    return context, weights


def make_mask(kind: str) -> tuple[Tensor | None, Tensor | None]:
    """A mask for 2 rows of 5 tokens and 2 heads as a model takes it, and the scores [2, 2, 5, 5] that it adds."""
    shape = (2, 2, 5, 5)
    forbidden = torch.zeros(shape, dtype=torch.bool)
    if kind == "none":
        return None, None
    if kind == "padding":
        mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
        return mask, torch.zeros(shape).masked_fill(mask[:, None, None, :] == 0, -torch.inf)
    if kind == "distance":  # finite biases, as in ALiBi
        place = torch.arange(5)
        bias = -0.5 * (place[:, None] - place).abs().float()
        return bias.expand(2, 1, 5, 5), bias.expand(shape)
    if kind == "rows":
        forbidden = torch.ones(2, 5, 5).triu(1).bool()
        forbidden[1, 2] = True  # the third query of the second row may attend to nobody
        return ~forbidden, torch.zeros(shape).masked_fill(forbidden[:, None], -torch.inf)
    forbidden = torch.rand(shape) < 0.4
    forbidden[0, 1, 3] = True  # nobody, in one of the heads
    bias = torch.randn(shape).masked_fill(forbidden, -torch.inf)
    return (~forbidden, torch.zeros(shape).masked_fill(forbidden, -torch.inf)) if kind == "heads" else (bias, bias)


@pytest.mark.parametrize("kind", ["none", "padding", "rows", "heads", "distance", "additive"])
def test_attention_by_hand(kernel, kind):
    """The module as the encoder calls it, gradients of its input and of every weight included."""
    attention = make_model(PlainformerModel, attn_implementation=kernel).layers[0].attention
    mask, bias = make_mask(kind)
    hidden_states = torch.randn(2, 5, 32, requires_grad=True)
    counts = (mask if kind == "padding" else torch.ones(2, 5)).bool()

    def run(compute) -> tuple[Tensor, dict[str, Tensor]]:
        attention.zero_grad()
        hidden_states.grad = None
        branch = compute()[counts]
        branch.square().mean().backward()
        return branch, {**gradients(attention), "hidden_states": hidden_states.grad.clone()}

    def by_hand() -> Tensor:
        heads = [
            projection(hidden_states).view(2, 5, 2, 16).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        context = attention_by_hand(*heads, bias)[0]
        return attention.o_proj(torch.cat((context[:, 0], context[:, 1]), dim=-1))

    real, allowed = read_mask(mask, 2, 5, 2)
    layout = make_layout((2, 5), real, None, allowed, packed=False, unpad=False)
    assert_same(run(lambda: attention(hidden_states, layout)[0]), run(by_hand))


def test_attention_weights_by_hand(variant, kernel):
    """`output_attentions` hands out the weights that were used, whichever kernel computes the rest."""
    model = make_model(PlainformerModel, attn_implementation=kernel, **variant)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
    seen = {}
    hook = model.layers[1].attention.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    with torch.no_grad():
        weights = model(torch.randint(1, 50, (2, 5)), mask, output_attentions=True).attentions[1]
        attention = model.layers[1].attention
        heads = [
            projection(seen["x"]).view(2, 5, 2, 16).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        bias = torch.zeros(2, 2, 5, 5).masked_fill(mask[:, None, None, :] == 0, -torch.inf)
        expected = attention_by_hand(*heads, bias)[1]
    hook.remove()
    real = mask.bool()
    assert_same(weights.transpose(1, 2)[real], expected.transpose(1, 2)[real])


# Sinusoidal positions

PRINTED = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 0.9999], [0.9093, -0.4161, 0.0200, 0.9998]]
TOKENS = [[1.769, 2.22, 3.4, 5.8], [7.3, 9.9, 8.5, 7.1], [9.1, 7.1, 0.85, 10.1]]


def embed_only(positions: Tensor, tokens: Tensor, **overrides) -> Tensor:
    """What a sinusoidal model's embeddings make of `tokens` [B, L, E] at `positions`, norm and segments left out."""
    config = tiny_config(
        hidden_size=tokens.shape[-1],
        num_attention_heads=1,
        num_hidden_layers=1,
        position_embedding_type="sinusoidal",
        embedding_norm=False,
        type_vocab_size=0,
        **overrides,
    )
    model = PlainformerModel(config).eval().to(tokens.dtype)
    output = model(inputs_embeds=tokens, position_ids=positions, output_hidden_states=True)
    return output.hidden_states[0].detach()


def test_printed_table():
    """The table of the paper's formula for d = 4, and its sum with three token embeddings."""
    assert_same(embed_only(None, torch.zeros(1, 3, 4))[0], torch.tensor(PRINTED), 5e-5)
    summed = np.array(TOKENS) + formula(np.arange(3), 4)
    assert_same(embed_only(None, torch.tensor([TOKENS]))[0], torch.from_numpy(summed).float())
    assert_same(torch.from_numpy(summed), torch.tensor(TOKENS).double() + torch.tensor(PRINTED).double(), 5e-5)


def test_every_row_of_a_fresh_model(variant):
    """The position enters the embeddings as its formula, from the first row to the last."""
    model = PlainformerModel(tiny_config(embedding_norm=False, type_vocab_size=0, **variant)).eval()
    entered = model(inputs_embeds=torch.zeros(1, 16, 32), output_hidden_states=True).hidden_states[0][0].detach()
    expected = {
        "learned": lambda: model.embeddings.position_embeddings.weight.detach(),
        "sinusoidal": lambda: torch.from_numpy(formula(np.arange(16), 32)).float(),
        "none": lambda: torch.zeros(16, 32),
    }[variant["position_embedding_type"]]()
    assert_same(entered, expected, 1e-6)


@pytest.mark.parametrize("width", [1, 2, 7, 33, 64, 768])
def test_sinusoid_in_float32(width):
    """Within 1e-6 of float64 up to position 100,000, before 0 too, odd widths ending with a sine."""
    positions = np.r_[-300:300, 1000:100_000:997, 99_990:100_001]
    actual = sinusoidal_embedding(torch.from_numpy(positions), width)
    assert actual.dtype == torch.float32 and actual.shape == (len(positions), width)
    assert np.abs(actual.double().numpy() - formula(positions, width)).max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_sinusoid_in_the_dtype_of_the_model(dtype):
    """The embeddings of a model in half precision are the formula rounded once."""
    positions = torch.cat((torch.arange(600), torch.arange(1000, 100_001, 900), torch.tensor([100_000])))
    actual = embed_only(positions[None], torch.zeros(1, len(positions), 32, dtype=dtype))[0]
    assert actual.dtype == dtype
    expected = formula(positions.numpy(), 32)
    one_rounding = torch.finfo(dtype).eps / 2 * np.abs(expected) + 1e-6
    assert (np.abs(actual.double().numpy() - expected) <= one_rounding).all()


def test_sinusoid_takes_any_shape_and_integer_type():
    positions = torch.tensor([[[3, 0], [7, 100_000]]])
    expected = torch.from_numpy(formula(positions.numpy(), 6)).float()
    for dtype in (torch.int64, torch.int32):
        assert_same(sinusoidal_embedding(positions.to(dtype), 6), expected, 1e-6)
    assert_same(sinusoidal_embedding(torch.tensor(5), 6), torch.from_numpy(formula(np.array(5), 6)).float(), 1e-6)


def test_sinusoid_needs_no_float64():
    """Some devices have none."""
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            seen.extend(value.dtype for value in (result,) if isinstance(value, Tensor))
            return result

    with Watch():
        SinusoidalPositionEmbedding(tiny_config(hidden_size=8))(torch.arange(5))
    assert torch.float32 in seen and torch.float64 not in seen


# Captured graphs take the padded route and give the same numbers


def batch(model_class: type, batch_size: int, length: int) -> dict[str, Tensor]:
    """Ids, segments, labels and a mask, the first row full and the others padded on the right."""
    inputs = make_inputs(model_class, batch_size, length)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1:, ..., length // 2 + 1 :] = 0
    return {**inputs, "attention_mask": mask, **make_labels(model_class, inputs)}


def count_graphs(model: nn.Module) -> tuple[nn.Module, list]:
    """The model compiled as one graph, and a list that grows by one with every compilation."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    return torch.compile(model, dynamic=True, fullgraph=True, backend=backend), graphs


def outcome(run, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, answers and gradients of one call of `run`, which is `model` or made from it."""
    model.zero_grad()
    output = run(**inputs)
    output.loss.backward()
    return output.loss.detach(), answers(output).detach(), gradients(model)


def test_export(variant):
    model = make_model(PlainformerModel, num_hidden_layers=1, **variant)
    dynamic = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=16)}
    example = batch(PlainformerModel, 3, 7)
    exported = torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, dynamic)).module()
    for shape in ((3, 7), (2, 16), (5, 4)):
        inputs = batch(PlainformerModel, *shape)
        assert_same(exported(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


def test_compile_few_times(variant):
    """Ten shapes of batches, at most three graphs, the same numbers and gradients."""
    model = make_model(PlainformerForMaskedLM, num_hidden_layers=1, **variant)
    compiled, graphs = count_graphs(model)
    for shape in ((2, 5), (3, 5), (2, 9), (4, 16), (5, 7), (6, 2), (2, 3), (7, 11), (8, 8), (3, 13)):
        inputs = batch(PlainformerForMaskedLM, *shape)
        assert_same(outcome(compiled, model, inputs), outcome(model, model, inputs))
    assert 1 <= len(graphs) <= 3


def test_compile_every_head(head_class):
    model = make_model(head_class, num_hidden_layers=1, problem_type="single_label_classification")
    compiled, graphs = count_graphs(model)
    for shape in ((3, 5), (4, 7), (5, 16)):
        inputs = batch(head_class, *shape)
        assert_same(outcome(compiled, model, inputs), outcome(model, model, inputs))
    assert len(graphs) == 1


def test_compile_refuses_text_that_is_too_long():
    """Where values are not known, the shape decides."""
    torch._dynamo.reset()
    compiled = torch.compile(make_model(PlainformerModel, num_hidden_layers=1), backend="eager", dynamic=True)
    for length in (5, 7, 16):
        compiled(torch.randint(1, 50, (2, length)))
    with pytest.raises(ValueError, match="17 tokens long, but max_position_embeddings=16"):
        compiled(torch.randint(1, 50, (2, 17)))
