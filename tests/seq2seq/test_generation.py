"""`generate` of the encoder-decoder: every way to search, with and without a cache, in a batch and alone.

Shapes: B batch, S source, L tokens of an answer.
"""

import warnings

import pytest
import torch
from helpers.models import assert_equal, assert_same
from helpers.seq2seq import END, SOURCE_MASK, START, answers_of, make_pairs, make_seq2seq, make_source
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache

from plainformer.modeling_seq2seq_plainformer import CACHE_FIELD
from plainformer.positions_plainformer import POSITION_KINDS, PositionKind

# No token twice, so that every step matters: random models repeat themselves.
GREEDY = {"do_sample": False, "max_new_tokens": 9, "no_repeat_ngram_size": 1, "suppress_tokens": [0]}
BEAMS = {**GREEDY, "num_beams": 3, "num_return_sequences": 2}
WAYS = {
    "greedy": GREEDY,
    "beams": BEAMS,
    "sampling": {**GREEDY, "do_sample": True, "num_return_sequences": 2, "top_k": 10},
    "forced": {**GREEDY, "forced_bos_token_id": 11},
    "forced-end": {**BEAMS, "forced_bos_token_id": 12, "forced_eos_token_id": END},
    "penalties": {**GREEDY, "repetition_penalty": 1.3, "min_new_tokens": 4},
}
ROWS = range(len(SOURCE_MASK))


def generate(model, source, **options) -> torch.Tensor:
    """Generated ids [B, L], from the same random numbers at each call."""
    torch.manual_seed(5)
    return model.generate(**source, **options)


def strip(row: torch.Tensor) -> list[int]:
    """An answer without the padding behind it."""
    ids = row.tolist()
    return ids[: ids.index(END) + 1] if END in ids else ids


def alone(source: dict, row: int) -> dict:
    """One source without padding, as a batch of one row."""
    return {"input_ids": source["input_ids"][row : row + 1, source["attention_mask"][row].bool()]}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_with_and_without_a_cache(options):
    model, source = make_seq2seq(), make_source()
    answers = generate(model, source, **options)
    assert len({tuple(row) for row in answers.tolist()}) > 3  # not the same for all
    assert_equal(generate(model, source, **options, use_cache=False), answers)
    model.config.unpad_inputs = False
    model.set_attn_implementation("eager")
    assert_equal(generate(model, source, **options), answers)
    if "forced_bos_token_id" in options:
        assert (answers[:, 1] == options["forced_bos_token_id"]).all()


def test_a_batch_is_its_rows(variant):
    model, source = make_seq2seq(**variant), make_source()
    for options in (GREEDY, {**GREEDY, "num_beams": 3}):
        together = generate(model, source, **options)
        for row in ROWS:
            assert strip(generate(model, alone(source, row), **options)[0]) == strip(together[row])


def test_logits_of_steps_are_those_of_teacher_forcing(variant):
    model, source = make_seq2seq(**variant), make_source()
    output = generate(model, source, **GREEDY, output_logits=True, return_dict_in_generate=True, eos_token_id=None)
    expected = model(**source, decoder_input_ids=output.sequences[:, :-1]).logits
    assert_same(torch.stack(output.logits, dim=1), expected)


def test_padding_of_sources_changes_nothing():
    model, source = make_seq2seq(), make_source()
    expected = generate(model, source, **GREEDY)
    for pad in ((0, 3), (3, 0), (2, 2)):
        padded = {
            "input_ids": nn.functional.pad(source["input_ids"], pad, value=7),
            "attention_mask": nn.functional.pad(source["attention_mask"], pad),
        }
        assert_equal(generate(model, padded, **GREEDY), expected)


@pytest.mark.parametrize("use_cache", [True, False])
def test_prompts_padded_on_the_left_are_single_ones(use_cache, variant):
    model, source = make_seq2seq(**variant), make_source()
    prompts = torch.tensor([[0, START, 8], [START, 9, 10], [0, 0, START], [0, START, 4], [START, 5, 6]])
    mask = (prompts != 0).long()
    given = {"decoder_input_ids": prompts, "decoder_attention_mask": mask}
    options = {**GREEDY, "use_cache": use_cache, "eos_token_id": None}
    together = generate(model, source, **given, **options)
    for row in ROWS:
        prompt = {"decoder_input_ids": prompts[row : row + 1, mask[row].bool()]}
        single = generate(model, alone(source, row), **prompt, **options)
        assert_equal(together[row, mask[row].argmax() :], single[0])
    if use_cache:
        for cache in ("static", "dynamic"):
            assert_equal(generate(model, source, **given, **options, cache_implementation=cache), together)
    beams = {**options, "num_beams": 2}
    prompt = {"decoder_input_ids": prompts[:1, 1:]}
    expected = generate(model, alone(source, 0), **prompt, **beams)[0]
    assert_equal(generate(model, source, **given, **beams)[0, 1:], expected)


def test_a_prompt_padded_on_the_right_is_refused():
    model, source = make_seq2seq(), make_source()
    prompts = torch.tensor([[START, 8, 0]] * 5)
    with pytest.raises(ValueError, match="padded on the right.*padding_side='left'"):
        generate(model, source, decoder_input_ids=prompts, decoder_attention_mask=(prompts != 0).long(), **GREEDY)
    with pytest.raises(ValueError, match="begin with pad_token_id=0.*Pass decoder_attention_mask"):
        generate(model, source, decoder_input_ids=torch.tensor([[0, START, 8]] * 5), **GREEDY)


@pytest.mark.parametrize("padding", [[], [0]], ids=["full", "padded"])
def test_prompts_of_which_some_have_the_start_token_are_refused(padding):
    model, source = make_seq2seq(), make_source()
    prompts = torch.tensor([[*padding, START, 8], [5, 9, *[4] * len(padding)], *[[*padding, START, 4]] * 3])
    mask = {"decoder_attention_mask": (prompts != 0).long()} if padding else {}
    with pytest.raises(ValueError, match="row 0 begins with decoder_start_token_id=1, and row 1 does not"):
        generate(model, source, decoder_input_ids=prompts, **mask, **GREEDY)


def test_what_was_encoded_or_embedded_before():
    model, source = make_seq2seq(), make_source()
    for options in (GREEDY, BEAMS):
        expected = generate(model, source, **options)
        mask = {"attention_mask": source["attention_mask"]}
        encoded = model.get_encoder()(**source)
        assert_equal(generate(model, mask, encoder_outputs=encoded, **options), expected)
        embeds = model.get_input_embeddings()(source["input_ids"])
        assert_equal(generate(model, mask, inputs_embeds=embeds, **options), expected)
    sources = {**source, "token_type_ids": torch.ones_like(source["input_ids"])}
    assert not torch.equal(generate(model, sources, **GREEDY), generate(model, source, **GREEDY))


def test_guesses_change_nothing():
    """Prompt lookup and an assistant guess several tokens at once, and the model keeps those that are its own."""
    model, source = make_seq2seq(), make_source()
    assistant = make_seq2seq(num_decoder_layers=1, num_hidden_layers=1)
    assistant.load_state_dict(model.state_dict(), strict=False)
    for row in ROWS:
        single = alone(source, row)
        expected = generate(model, single, **GREEDY)
        assert_equal(generate(model, single, **GREEDY, prompt_lookup_num_tokens=3), expected)
        for helper in (model, assistant):
            assert_equal(generate(model, single, **GREEDY, assistant_model=helper), expected)
    masked = {name: values[2:3] for name, values in source.items()}
    assert_equal(generate(model, masked, **GREEDY, assistant_model=assistant), generate(model, masked, **GREEDY))


class Slope(nn.Module):
    """A bias that falls with the distance, from further learned positions."""

    def __init__(self, config) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.num_attention_heads, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.table, 0.3)

    def forward(self, distances) -> torch.Tensor:  # [..., Q, K]
        return self.table * distances[..., None, :, :]


class Turn(nn.Module):
    """Queries and keys grow with their position."""

    def __init__(self, config) -> None:
        super().__init__()

    def forward(self, states, angles) -> torch.Tensor:
        return states * (1 + 0.2 * angles[..., None, None])


@pytest.mark.parametrize("place", [{"bias": Slope}, {"rotation": Turn}], ids=["bias", "rotation"])
def test_a_kind_that_works_in_attention(place, monkeypatch):
    """Self-attention of both halves knows its positions, cross-attention none."""
    monkeypatch.setitem(POSITION_KINDS, "other", PositionKind("in attention", **place))
    model, source, pairs = make_seq2seq(position_embedding_type="other"), make_source(), make_pairs()
    expected = model(**pairs)
    model.config.unpad_inputs = False
    padded = model(**pairs)
    assert_same(padded.loss, expected.loss)
    assert_same(answers_of(padded.logits, pairs["labels"]), answers_of(expected.logits, pairs["labels"]))
    without = make_seq2seq(position_embedding_type="none")(**pairs)
    assert not torch.allclose(without.loss, expected.loss, atol=1e-3)
    answers = generate(model, source, **GREEDY, use_cache=False)
    for cached in ({}, {"cache_implementation": "static"}):
        assert_equal(generate(model, source, **GREEDY, **cached), answers)
    prompts = torch.tensor([[0, START, 8], [START, 9, 10], [0, 0, START], [0, START, 4], [START, 5, 6]])
    given = {"decoder_input_ids": prompts, "decoder_attention_mask": (prompts != 0).long()}
    answers = generate(model, source, **given, **GREEDY)
    for row, first in enumerate((prompts != 0).long().argmax(dim=1)):
        single = generate(model, alone(source, row), decoder_input_ids=prompts[row : row + 1, first:], **GREEDY)
        assert strip(single[0]) == strip(answers[row, first:])
    assert not any("cross_attention.bias" in name for name in model.state_dict())


def make_caches(model, source) -> dict:
    """Every cache that a user may bring."""
    B, S = source["input_ids"].shape
    config, encoder = model.config.get_text_config(decoder=True), model.config
    caches = {"dynamic": EncoderDecoderCache(DynamicCache(), DynamicCache()), "bare": DynamicCache()}
    static = [StaticCache(config=config, max_cache_len=length) for length in (12, S)]
    assert encoder.num_hidden_layers != config.num_hidden_layers
    return {**caches, "static": EncoderDecoderCache(*static)}


@pytest.mark.parametrize("kind", ["dynamic", "bare", "static"])
def test_a_cache_of_the_users_own(kind, variant):
    model, source = make_seq2seq(**variant), make_source()
    expected = generate(model, source, **GREEDY)
    cache = make_caches(model, source)[kind]
    assert_equal(generate(model, source, **GREEDY, **{CACHE_FIELD: cache}), expected)


@pytest.mark.parametrize("implementation", ["static", "dynamic"])
def test_a_cache_by_name(implementation, variant):
    model, source = make_seq2seq(**variant), make_source()
    for options in (GREEDY, BEAMS):
        expected = generate(model, source, **options, use_cache=False)
        assert_equal(generate(model, source, **options, cache_implementation=implementation), expected)


def test_the_cache_that_forward_hands_out_and_takes_back():
    model, source = make_seq2seq(), make_source()
    ids = torch.randint(3, 50, (5, 6))
    expected = model(**source, decoder_input_ids=ids, use_cache=False)
    assert expected.get(CACHE_FIELD) is None
    first = model(**source, decoder_input_ids=ids[:, :2])
    encoded = (first.encoder_last_hidden_state,)
    rest = {"attention_mask": source["attention_mask"], "encoder_outputs": encoded, "decoder_input_ids": ids[:, 2:]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second = model(**rest, **{CACHE_FIELD: first[CACHE_FIELD]})
    assert not [one for one in caught if "past_key_values" in str(one.message)]
    assert_same(torch.cat((first.logits, second.logits), dim=1), expected.logits)
    assert second[CACHE_FIELD].get_seq_length() == 6
    assert model.train()(**source, decoder_input_ids=ids).get(CACHE_FIELD) is None


@pytest.mark.skipif(CACHE_FIELD == "past_key_values", reason="the name of this version")
def test_the_old_name_of_the_cache_warns():
    model, source = make_seq2seq(), make_source()
    first = model(**source, decoder_input_ids=torch.full((5, 2), 4))
    with pytest.warns(FutureWarning, match="`past_key_values` is deprecated"):
        model(**source, decoder_input_ids=torch.full((5, 1), 4), past_key_values=first.cache)


def test_attentions_and_states_of_each_step(variant):
    model, source = make_seq2seq(**variant), make_source()
    asked = {"output_attentions": True, "output_hidden_states": True, "return_dict_in_generate": True}
    output = generate(model, source, **GREEDY, **asked, eos_token_id=None)
    assert_equal(output.sequences, generate(model, source, **GREEDY, eos_token_id=None))
    assert [tuple(one.shape) for one in output.encoder_attentions] == [(5, 2, 7, 7)] * 2
    assert [tuple(one.shape) for one in output.encoder_hidden_states] == [(5, 7, 32)] * 3
    for names, shape, layers in (
        ("decoder_attentions", lambda step: (5, 2, 1, step), 3),
        ("cross_attentions", lambda step: (5, 2, 1, 7), 3),
        ("decoder_hidden_states", lambda step: (5, 1, 32), 4),
    ):
        assert len(output[names]) == 9
        for step, given in enumerate(output[names], start=1):
            assert [tuple(one.shape) for one in given] == [shape(step)] * layers, names
    whole = model(**source, decoder_input_ids=output.sequences[:, :-1], output_hidden_states=True)
    for layer, states in enumerate(whole.decoder_hidden_states):
        assert_same(torch.cat([step[layer] for step in output.decoder_hidden_states], dim=1), states)
    beams = generate(model, source, **BEAMS, **asked)
    assert beams.cross_attentions[0][0].shape[0] == 15


def test_generation_ends_with_learned_positions(caplog):
    """It says so before it begins, and loses nothing that it wrote."""
    model, source = make_seq2seq(max_position_embeddings=8), make_source()
    expected = generate(model, source, max_new_tokens=8, eos_token_id=None, do_sample=False)
    assert expected.shape == (5, 9) and "max_position_embeddings" not in caplog.text
    longer = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "decoder_start_token_id": START}
    shapes = [{}, {"max_new_tokens": None, "max_length": 12}, {"use_cache": False}, {"cache_implementation": "static"}]
    given = [longer | others for others in shapes]
    for options in (*given, {"generation_config": GenerationConfig(**longer, pad_token_id=0)}):
        assert_equal(generate(model, source, **options), expected)
        assert "max_position_embeddings=8 is the limit of this model's positions" in caplog.text
        caplog.clear()
    prompt = {"decoder_input_ids": expected[:, :5], "max_new_tokens": 30, "num_beams": 2, "eos_token_id": None}
    assert generate(model, source, **prompt).shape == (5, 9)
    longer = make_seq2seq(max_position_embeddings=8, position_embedding_type="sinusoidal")
    assert generate(longer, source, max_new_tokens=30, eos_token_id=None, do_sample=False).shape == (5, 31)


WRONG = {
    "no start": ({"decoder_start_token_id": None}, {}, "decoder_start_token_id"),
    "ids": ({}, {"decoder_input_ids": torch.full((5, 2), 50)}, "decoder_input_ids holds 50"),
    "source ids": ({}, {"input_ids": torch.full((5, 7), 50)}, "input_ids holds 50"),
    "packed": (
        {},
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), "attention_mask": None},
        "several sequences",
    ),
    "mask": ({}, {"attention_mask": torch.ones(5, 3)}, r"attention_mask has shape \(5, 3\)"),
    "rows": ({}, {"decoder_input_ids": torch.full((4, 2), 5)}, "4 rows, and there are 5 sources"),
    "decoder mask": (
        {},
        {"decoder_input_ids": torch.full((5, 2), 5), "decoder_attention_mask": torch.ones(5, 3)},
        r"decoder_attention_mask has shape \(5, 3\).*takes \(5, 2\)",
    ),
}


@pytest.mark.parametrize("fields, given, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_an_error(fields, given, message):
    with pytest.raises(ValueError, match=message):
        generate(make_seq2seq(**fields), {**make_source(), **given}, **GREEDY)


def test_a_stop_at_any_of_several_ids():
    model, source = make_seq2seq(), make_source()
    answers = generate(model, source, **GREEDY, eos_token_id=None)
    stops = [int(answers[0, 3]), int(answers[1, 4])]
    stopped = generate(model, source, **GREEDY, eos_token_id=stops)
    for row in (0, 1):
        first = next(index for index, id in enumerate(answers[row].tolist()) if id in stops)
        assert not stopped[row, first + 1 :].any() and int(stopped[row, first]) in stops
