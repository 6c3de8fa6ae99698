"""The numbers that are drawn: what the model's own functions give. No formula of a position kind is written twice.

Shapes: L length, E hidden size, W width of a position vector, H heads, D head size, N layers or samples.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_model
from ..configuration_plainformer import PlainformerConfig
from ..modeling_plainformer import PlainformerModel
from ..positions_plainformer import (
    POSITION_KINDS,
    NoEmbedding,
    NoRotation,
    PositionKind,
    SinusoidalPositionEmbedding,
    rotary_angles,
)

SEED = 0  # of the weights of a model that is given as a configuration


def read_encoder(model_or_config: Any) -> PlainformerModel:
    """The encoder of a model; of a configuration one with random weights, always the same.

    Raises:
        TypeError: something else.
    """
    if not isinstance(model_or_config, PlainformerConfig):
        if isinstance(model_or_config, str):
            raise TypeError(
                f"model_or_config is the text {model_or_config!r}: give a model, as "
                "plainformer.PlainformerModel.from_pretrained(...) opens one, or a PlainformerConfig."
            )
        check_model(model_or_config)
        return model_or_config.base_model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        encoder = PlainformerModel(getattr(model_or_config, "encoder_config", lambda: model_or_config)())
    encoder.is_untrained = True
    return encoder.eval()


def kind_of(encoder: PlainformerModel) -> PositionKind:
    """The entry of the registry that a model uses."""
    return POSITION_KINDS[encoder.config.position_embedding_type]


def name_of(encoder: PlainformerModel, words: Any, *modules: Any) -> str:
    """The kind's name for a title, and whether what is drawn are random weights of these modules."""
    untrained = getattr(encoder, "is_untrained", False) and any(list(module.parameters()) for module in modules)
    return encoder.config.position_embedding_type + (f", {words('not trained')}" if untrained else "")


def check_range(name: str, chosen: list[int], count: int, what: str) -> None:
    """Raise a ValueError for a number that is not in 0 .. count - 1."""
    if not chosen:
        raise ValueError(f"{name} is empty: give at least one number from 0 to {count - 1}.")
    for number in chosen:
        if type(number) is not int or not 0 <= number < count:
            raise ValueError(f"{name}={list(chosen)}: {number!r} is none of {count} {what}, 0 to {count - 1}.")


def check_length(config: PlainformerConfig, length: int) -> None:
    """Raise a ValueError for a length that the position kind cannot have."""
    if type(length) is not int or length < 2:
        raise ValueError(f"length={length!r}: give a whole number of at least 2.")
    if config.position_limit is not None and length > config.position_limit:
        raise ValueError(
            f"length={length} is more than the {config.position_limit} positions of position_embedding_type="
            f"{config.position_embedding_type!r} (max_position_embeddings): give at most as many."
        )


@torch.no_grad()
def position_vectors(encoder: PlainformerModel, length: int) -> Tensor:
    """What stands for the first positions, [L, W].

    Of a kind that is added to the embeddings, the vectors themselves (W = E). Of rotary positions sine and cosine of
    the angle by which each pair of columns turns, in the order of the sinusoidal formula (W = D, without the last of
    an odd number, which does not turn).

    Raises:
        ValueError: a kind that has neither, or a length beyond its limit.
    """
    config, kind = encoder.config, kind_of(encoder)
    check_length(config, length)
    position_ids = torch.arange(length, device=encoder.device)
    if kind.embeddings is not NoEmbedding:
        return encoder.embeddings.position_embeddings(position_ids).float().cpu()
    if kind.angles is rotary_angles:
        cos, sin = rotary_angles(config, position_ids, torch.float32).unbind(dim=1)  # [L, D] each; signs differ
        return torch.stack((sin[:, 1::2], cos[:, 1::2]), dim=-1).flatten(1).cpu()  # [L, W]
    raise ValueError(
        f"position_embedding_type={config.position_embedding_type!r} has no position vectors{_elsewhere(kind)}"
    )


def _elsewhere(kind: PositionKind) -> str:
    if kind.bias is not None:
        return ": it adds to attention scores, by distance. plot_scores_by_distance draws it."
    return ": no position enters the model." if not kind.reads_positions else "."


def frequencies(encoder: PlainformerModel) -> Tensor:
    """By how much the angle of each pair of dimensions grows from one position to the next, [W / 2], in radians.

    Read from the vector of position 1: the angle whose sine and cosine stand there. The sine that ends an odd width is
    left out.

    Raises:
        ValueError: a kind without such pairs.
    """
    kind = kind_of(encoder)
    if kind.embeddings is not SinusoidalPositionEmbedding and kind.angles is not rotary_angles:
        problem = f"position_embedding_type={encoder.config.position_embedding_type!r} has no frequencies"
        trained = kind.embeddings is not NoEmbedding
        raise ValueError(
            problem + (": its vectors are trained. plot_position_curves draws them." if trained else _elsewhere(kind))
        )
    first = position_vectors(encoder, 2)[1]
    sin, cos = first[: len(first) // 2 * 2].unflatten(0, (-1, 2)).unbind(dim=1)  # [W / 2] each
    return torch.atan2(sin, cos)


def similarities(vectors: Tensor) -> Tensor:
    """Cosine of the angle between each two vectors, [L, W] -> [L, L]."""
    directions = F.normalize(vectors, dim=-1)
    return directions @ directions.T


def by_distance(similarity: Tensor) -> Tensor:
    """Mean, lowest and highest of [L, L] over all pairs at the distance 0, 1, ..., L - 2: [3, L - 1]."""
    diagonals = [similarity.diagonal(distance) for distance in range(len(similarity) - 1)]
    return torch.stack([torch.stack((one.mean(), one.min(), one.max())) for one in diagonals], dim=1)


@torch.no_grad()
def score_effects(encoder: PlainformerModel, length: int, layer: int) -> Tensor:
    """What a position kind does to attention scores at key - query = -(L - 1) ... L - 1, [H, 2L - 1] or [1, 2L - 1].

    A bias: what is added, for each head. A rotation: the product of a query and a key whose columns are all equal
    before they turn, over that at distance 0; of rotary positions it is the mean of cos(distance x frequency).

    Raises:
        ValueError: a kind that has neither.
    """
    config, kind = encoder.config, kind_of(encoder)
    check_length(config, length)
    check_range("layer", [layer], config.num_hidden_layers, "layers")
    attention = encoder.layers[layer].attention
    key_ids = torch.arange(2 * length - 1, device=encoder.device)
    if kind.bias is not None:
        query_ids = key_ids[length - 1 : length]
        distances = kind.distances(config, query_ids[None], key_ids[None], torch.float32, False)  # [1, 1, 2L - 1]
        return attention.bias(distances)[0, :, 0].float().cpu()
    if kind.rotation is not NoRotation:
        states = torch.ones(len(key_ids), 1, config.hidden_size // config.num_attention_heads, device=encoder.device)
        turned = attention.rotation(states, kind.angles(config, key_ids, torch.float32))  # [2L - 1, 1, D]
        return (turned * turned[length - 1]).mean(dim=-1).T.cpu()
    problem = f"position_embedding_type={config.position_embedding_type!r} does nothing to attention scores itself"
    if kind.embeddings is NoEmbedding:
        raise ValueError(f"{problem}{_elsewhere(kind)}")
    raise ValueError(f"{problem}: it is added to the embeddings. plot_similarity_by_distance draws its vectors.")


@torch.no_grad()
def embedding_sizes(encoder: PlainformerModel, length: int, num_tokens: int) -> Tensor:
    """Euclidean lengths of token, position and their sum, without and with sqrt(E): [2, 3, N].

    Of up to `num_tokens` entries spread over the vocabulary, each at one of the first `length` positions. Positions
    are 0 for a kind that adds none.
    """
    config, embeddings = encoder.config, encoder.embeddings
    check_length(config, length)
    if type(num_tokens) is not int or num_tokens < 1:
        raise ValueError(f"num_tokens={num_tokens!r}: give a whole number of at least 1.")
    entries = torch.arange(config.vocab_size, device=encoder.device)
    entries = entries[entries != (-1 if config.pad_token_id is None else config.pad_token_id)]
    entries = entries[:: max(1, math.ceil(len(entries) / num_tokens))]
    tokens = embeddings.word_embeddings(entries).float()  # [N, E]
    position_ids = torch.arange(len(entries), device=encoder.device) % length
    positions = embeddings.position_embeddings(position_ids).float().expand_as(tokens)
    scaled = torch.stack((tokens, tokens * math.sqrt(config.hidden_size)))  # [2, N, E]
    parts = torch.stack((scaled, positions.expand_as(scaled), scaled + positions), dim=1)  # [2, 3, N, E]
    return parts.norm(dim=-1).cpu()
