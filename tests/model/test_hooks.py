"""Whoever looks into a model from outside: hooks of every sort, replaced modules, gradients of single samples.

Shapes: B batch, L length, T real tokens, E hidden size.
"""

import functools
from collections.abc import Callable

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, ModelHook, add_hook_to_module
from helpers.models import (
    HEADS,
    NO_DROPOUT,
    as_batch,
    assert_same,
    gradients,
    is_unpadded,
    layout_of,
    learn,
    make_labels,
    make_model,
    padding_mask,
    row_answers,
)
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForTokenClassification,
    PlainformerModel,
    PlainformerPreTrainedModel,
    for_inference,
)
from plainformer.modeling_plainformer import (
    PlainformerAttention,
    PlainformerEmbeddings,
    PlainformerLayer,
    PlainformerLMHead,
    PlainformerMLP,
    PlainformerPooler,
)

B, L = 4, 8
IDS = torch.arange(1, B * L + 1).view(B, L)
MASK = padding_mask("right", "left", "holes", "full")
ROWS = {"input_ids": IDS, "token_type_ids": IDS % 2, "attention_mask": MASK}
T = int(MASK.sum())
EMBEDDINGS = ["", "word_embeddings", "position_embeddings", "token_type_embeddings", "norm", "dropout"]
Watch = Callable[[nn.Module, list], torch.utils.hooks.RemovableHandle]


def model_of(head: type = PlainformerForTokenClassification, **fields) -> PlainformerPreTrainedModel:
    return make_model(head, **NO_DROPOUT, problem_type="single_label_classification", **fields)


def shape_of(*values) -> tuple[int, ...] | None:
    """Of the first tensor in what a module was given or has returned; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            return tuple(value.shape)
        if isinstance(value, (tuple, dict)) and (
            shape := shape_of(*(value.values() if hasattr(value, "values") else value))
        ):
            return shape
    return None


WATCHES: dict[str, Watch] = {
    "forward": lambda module, seen: module.register_forward_hook(
        lambda module, args, output: seen.append(shape_of(output))
    ),
    "forward, always": lambda module, seen: module.register_forward_hook(
        lambda module, args, output: seen.append(shape_of(output)), always_call=True
    ),
    "forward pre": lambda module, seen: module.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(shape_of(args, kwargs)), with_kwargs=True
    ),
    "backward": lambda module, seen: module.register_full_backward_hook(
        lambda module, grad_input, grad_output: seen.append(shape_of(grad_output))
    ),
    "backward pre": lambda module, seen: module.register_full_backward_pre_hook(
        lambda module, grad_output: seen.append(shape_of(grad_output))
    ),
}


@pytest.fixture(params=WATCHES)
def watch(request) -> Watch:
    return WATCHES[request.param]


def train(model: nn.Module, rows: dict[str, Tensor] = ROWS) -> tuple:
    """Answers, loss and gradients of a training step over the rows, each token and row labelled 1."""
    batch = as_batch(type(model), rows)
    torch.manual_seed(3)
    return learn(model.train(), batch | make_labels(type(model), batch))


# Embeddings: whoever looks there sees the rectangle, and the layers stay unpadded


@pytest.mark.parametrize("part", EMBEDDINGS)
def test_a_hook_in_the_embeddings_sees_the_rectangle(part, watch):
    model, seen = model_of(), []
    expected = train(model)
    handle = watch(model.plainformer.embeddings.get_submodule(part), seen)
    assert_same(train(model), expected)
    assert seen[0][:2] == (B, L)
    assert is_unpadded(layout_of(model, **ROWS))
    handle.remove()


def test_embeddings_of_every_setting_can_be_watched(setting):
    model, seen = make_model(PlainformerModel, **setting), []
    expected = row_answers(model, ROWS)
    model.embeddings.register_forward_hook(lambda module, args, output: seen.append(shape_of(output)))
    assert_same(row_answers(model, ROWS), expected)
    assert seen == [(B, L, 32)]


def test_what_a_hook_returns_is_used(setting):
    """On both routes the same: attributions put interpolated embeddings in the place of the embeddings."""
    instead = torch.randn(B, L, 32)
    outputs = []
    for fields in (setting, {**setting, "unpad_inputs": False}):
        model = make_model(PlainformerModel, **fields)
        model.embeddings.register_forward_hook(lambda module, args, output: instead)
        outputs.append(row_answers(model, ROWS))
    assert_same(*outputs)


@pytest.mark.parametrize("part", EMBEDDINGS)
def test_a_replacement_in_the_embeddings_gets_the_rectangle(part):
    """As BERT's embeddings would: a module that reads a batch and a length from what it is given."""

    class Replacement(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs) -> Tensor:
            seen.append(shape_of(args, kwargs))
            return self.module(*args, **kwargs)

    model, seen = model_of(), []
    expected = row_answers(model, ROWS)
    owner = model.plainformer.embeddings if part else model.plainformer
    name = part or "embeddings"
    setattr(owner, name, Replacement(getattr(owner, name)))
    assert_same(row_answers(model, ROWS), expected)
    assert seen[0][:2] == (B, L)
    assert is_unpadded(layout_of(model, **ROWS))


@pytest.mark.parametrize("path", ["embeddings", "embeddings.word_embeddings", "layers.0", "layers.1.attention"])
def test_a_forward_that_was_replaced_counts_as_a_hook(path):
    model, seen = model_of(), []
    expected = row_answers(model, ROWS)
    module = model.plainformer.get_submodule(path)
    original = module.forward

    def forward(*args, **kwargs) -> Tensor:
        seen.append(shape_of(args, kwargs))
        return original(*args, **kwargs)

    module.forward = forward
    assert_same(row_answers(model, ROWS), expected)
    assert seen[0][:2] == (B, L)


# Layers: a hook on a module that has parts takes the padded route for that pass


@pytest.mark.parametrize("path", ["layers.0", "layers.1.attention", "layers.0.mlp"])
def test_a_hook_on_a_layer_sees_the_rectangle(path, watch):
    model, seen = model_of(), []
    expected = train(model)
    handle = watch(model.plainformer.get_submodule(path), seen)
    assert_same(train(model), expected)
    assert seen[0][:2] == (B, L)
    assert not is_unpadded(layout_of(model, **ROWS))
    handle.remove()
    assert is_unpadded(layout_of(model, **ROWS))


def test_a_hook_on_the_encoder_of_a_head_sees_the_rectangle():
    model, seen = model_of(), []
    model.plainformer.register_forward_hook(lambda module, args, output: seen.append(shape_of(output)))
    model(**ROWS)
    assert seen == [(B, L, 32)]


def test_a_hook_on_a_head_sees_the_rectangle(watch):
    """The vocabulary's scores too, where sparse prediction computes them at the labels only."""
    model, seen = model_of(PlainformerForMaskedLM), []
    expected = train(model)
    watch(model.lm_head, seen)
    step = train(model)
    assert seen[0][:2] == (B, L)
    assert_same((step.loss, step.gradients), (expected.loss, expected.gradients))


def test_a_hook_on_the_model_itself_keeps_the_unpadded_layers():
    """What goes in there and comes out is the rectangle anyway."""
    for model in (model_of(PlainformerModel), model_of()):
        model.register_forward_hook(lambda module, args, output: None)
        assert is_unpadded(layout_of(model, **ROWS))


def test_a_hook_on_single_modules_sees_real_tokens():
    model, seen = model_of(), {}
    for name in ("layers.0.attention.q_proj", "layers.1.mlp.fc2", "layers.0.attn_norm", "final_norm"):
        module = model.plainformer.get_submodule(name)
        module.register_forward_hook(lambda module, args, output, name=name: seen.update({name: shape_of(output)}))
    model(**ROWS)
    assert len(seen) == 4 and all(shape[0] == T for shape in seen.values())


def test_single_modules_may_be_replaced_and_pruned():
    model = model_of()
    layer = model.plainformer.layers[0]
    prune.l1_unstructured(layer.mlp.fc1, "weight", 0.5)
    layer.attention.v_proj = nn.Sequential(nn.Linear(32, 7), nn.Linear(7, 32))
    layer.attn_norm = nn.RMSNorm(32)
    assert is_unpadded(layout_of(model, **ROWS))
    expected = row_answers(model, ROWS)
    model.config.unpad_inputs = False
    assert_same(row_answers(model, ROWS), expected)


class Mixer(nn.Module):
    """In the place of a layer, of its attention or feed-forward: it mixes the tokens that it is given."""

    def forward(self, hidden_states: Tensor, *args, **kwargs) -> Tensor:
        seen.append(shape_of(hidden_states))
        return hidden_states + hidden_states.mean(dim=1, keepdim=True)


class OtherLayer(PlainformerLayer):
    def forward(self, hidden_states: Tensor, *args, **kwargs) -> Tensor:
        seen.append(shape_of(hidden_states))
        return super().forward(hidden_states, *args, **kwargs)


seen: list[tuple[int, ...]] = []  # by the replacements


@pytest.mark.parametrize("path", ["layers.0", "layers.1.attention", "layers.1.mlp"])
def test_a_replacement_of_a_layer_gets_the_rectangle(path):
    model = make_model(PlainformerModel)
    model.set_submodule(path, Mixer())
    seen.clear()
    before = row_answers(model, ROWS)
    other = {**ROWS, "input_ids": ROWS["input_ids"].clone()}
    other["input_ids"][0] += 1
    assert_same(row_answers(model, other)[1:], before[1:])  # no text changes another
    assert {shape[:2] for shape in seen} == {(B, L)}


def test_a_layer_of_a_class_of_ones_own_gets_the_rectangle():
    class Model(PlainformerModel):
        def __init__(self, config: PlainformerConfig) -> None:
            super().__init__(config)
            self.layers[0] = OtherLayer(config)

    seen.clear()
    make_model(Model)(**ROWS)
    assert seen[0][:2] == (B, L)


def test_a_hook_of_the_user_through_accelerate_sees_the_rectangle():
    class Watch(ModelHook):
        def post_forward(self, module: nn.Module, output: Tensor) -> Tensor:
            seen.append(shape_of(output))
            return output

    model = model_of()
    add_hook_to_module(model.plainformer.layers[0], AlignDevicesHook(execution_device="cpu"))
    assert is_unpadded(layout_of(model, **ROWS))
    add_hook_to_module(model.plainformer.layers[0], Watch(), append=True)
    seen.clear()
    model(**ROWS)
    assert seen[0][:2] == (B, L)


@pytest.mark.parametrize("path", ["mlp", "mlp.fc1", "mlp.activation"])
def test_a_hook_in_the_feed_forward_is_called_once(path):
    """Without gradients it is computed in chunks, unless somebody looks on."""
    model = make_model(PlainformerModel, num_hidden_layers=1, max_position_embeddings=500)
    sizes = []
    model.layers[0].get_submodule(path).register_forward_hook(lambda _, args, __: sizes.append(args[0].shape[:-1]))
    with torch.no_grad():
        model(torch.randint(1, 50, (3, 500)))
    assert sizes == [(3, 500)]


def test_hooks_see_the_rectangle_of_packed_rows(watch):
    packed = {"input_ids": torch.randint(1, 50, (1, 7)), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 1]])}
    model, seen = model_of(), []
    expected = row_answers(model, packed)
    watch(model.plainformer.layers[0], seen)
    assert_same(model(**packed).logits, expected)


# Hooks on all modules of the process, and hooks of packages that look at no sample


GLOBAL = {
    "forward": nn.modules.module.register_module_forward_hook,
    "forward pre": nn.modules.module.register_module_forward_pre_hook,
    "backward": nn.modules.module.register_module_full_backward_hook,
    "backward pre": nn.modules.module.register_module_full_backward_pre_hook,
}


@pytest.mark.parametrize("register", GLOBAL.values(), ids=GLOBAL)
def test_a_global_hook_sees_the_rectangle(register):
    model, seen = model_of(), {}
    expected = train(model)
    handle = register(lambda module, *values: seen.update({type(module): shape_of(*values[::-1])}))
    try:
        assert_same(train(model), expected)
    finally:
        handle.remove()
    for kind in (PlainformerLayer, PlainformerAttention, PlainformerMLP, nn.Linear, nn.LayerNorm):
        assert seen[kind][:2] == (B, L), kind
    assert is_unpadded(layout_of(model, **ROWS))


def blind_hook(module: nn.Module, *args) -> None:
    """A hook as packages have them that place weights."""


def with_blind_hooks(model: nn.Module) -> None:
    blind = functools.partial(blind_hook)
    blind.func.__module__ = "accelerate.hooks"
    for module in model.modules():
        module.register_forward_pre_hook(blind)
        module.register_forward_hook(blind)


TOOLS: dict[str, Callable[[nn.Module], nn.Module | None]] = {
    "int8": lambda model: for_inference(model, "int8"),
    "input gradients": lambda model: model.enable_input_require_grads(),
    "placed weights": with_blind_hooks,
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_keep_the_unpadded_layers(tool):
    model = model_of()
    model = TOOLS[tool](model) or model
    assert is_unpadded(layout_of(model, **ROWS))


def test_counters_of_torch_keep_the_unpadded_layers():
    """They hook all modules of the process."""
    model = model_of()
    with FlopCounterMode(display=False) as counter:
        assert is_unpadded(layout_of(model, **ROWS))
    assert counter.get_total_flops() > 0


# The gradient of each sample (differential privacy)


def sample_gradients(model: nn.Module, watched: list[str]) -> dict[str, Tensor]:
    """The gradients [rows, ...] of the weights of linear layers, from hooks: a sum over the places of each row."""
    inputs, found = {}, {}

    def keep(module: nn.Module, args: tuple, output: Tensor, name: str) -> None:
        inputs[name] = args[0].detach()

    def multiply(module: nn.Module, grad_input: tuple, grad_output: tuple, name: str) -> None:
        found[name] = torch.einsum("b...i,b...j->bij", grad_output[0], inputs[name])

    for name in watched:
        module = model.get_submodule(name)
        module.register_forward_hook(functools.partial(keep, name=name))
        module.register_full_backward_hook(functools.partial(multiply, name=name))
    return found


@pytest.mark.parametrize("head", [PlainformerModel, *HEADS[:4]])
def test_gradients_of_single_samples(head):
    """As many samples as rows, each with the gradient of its row alone, in the layers and in the head."""
    names = ["layers.0.mlp.fc1", "layers.1.attention.q_proj"]
    names = names if head is PlainformerModel else [f"plainformer.{name}" for name in names]
    check_sample_gradients(head, names)


@pytest.mark.parametrize(
    ("head", "name"), [(PlainformerForTokenClassification, "classifier"), (PlainformerForMaskedLM, "lm_head.dense")]
)
def test_gradients_of_single_samples_in_the_head_alone(head, name):
    """As where the encoder is frozen."""
    check_sample_gradients(head, [name])


def check_sample_gradients(head: type, names: list[str]) -> None:
    batch = ROWS | make_labels(head, ROWS)
    summed = {} if head is PlainformerModel else {"num_items_in_batch": 1}

    def learn_sum(model: nn.Module, rows: slice) -> None:
        output = model.train()(**{name: values[rows] for name, values in batch.items()}, **summed)
        (output.loss if summed else output.last_hidden_state.square().sum()).backward()

    plain, model = model_of(head), model_of(head)
    alone = []
    for row in range(B):
        plain.zero_grad()
        learn_sum(plain, slice(row, row + 1))
        alone.append(gradients(plain))
    found = sample_gradients(model, names)
    learn_sum(model, slice(None))
    for name in names:
        assert_same(found[name], torch.stack([one[f"{name}.weight"] for one in alone]))


# Parts on their own


def test_parts_are_called_as_a_learner_types_them(setting):
    """Each part of the encoder, one after the other, on a plain rectangle: the same as the model."""
    model = make_model(PlainformerModel, **setting)
    ids = torch.randint(1, 50, (2, 6))
    hidden_states = model.embeddings(ids)
    for layer in model.layers:
        hidden_states = layer(hidden_states)
        assert isinstance(hidden_states, Tensor) and hidden_states.shape == (2, 6, 32)
    assert_same(model.final_norm(hidden_states), model(ids).last_hidden_state)
    assert isinstance(model.layers[0].attention(hidden_states), Tensor)
    assert_same(model.embeddings(inputs_embeds=model.embeddings.word_embeddings(ids)), model.embeddings(ids))


def test_parts_are_built_from_a_configuration():
    """No model has chosen the kernel yet."""
    config = PlainformerConfig(hidden_size=32, num_attention_heads=2, intermediate_size=37)
    hidden_states = PlainformerEmbeddings(config)(torch.randint(1, 50, (2, 6)))
    for part in (PlainformerLayer, PlainformerAttention, PlainformerMLP, PlainformerPooler, PlainformerLMHead):
        assert part(config)(hidden_states).shape[:2] == (2, 6)
    branch, weights = PlainformerAttention(config)(hidden_states, output_attentions=True)
    assert branch.shape == (2, 6, 32) and weights.shape == (2, 2, 6, 6)


def test_a_part_refuses_a_mask():
    config = PlainformerConfig(hidden_size=32, num_attention_heads=2)
    with pytest.raises(TypeError, match=r"layout is a tensor of shape \(2, 5\)"):
        PlainformerLayer(config)(torch.randn(2, 5, 32), torch.ones(2, 5))


@pytest.mark.parametrize("part", [PlainformerLayer, PlainformerAttention])
def test_a_part_refuses_a_text_without_a_batch(part):
    config = PlainformerConfig(hidden_size=32, num_attention_heads=2)
    with pytest.raises(ValueError, match=r"hidden_states has shape \(6, 32\).*unsqueeze\(0\)"):
        part(config)(torch.randn(6, 32))
