"""Starting points: configurations to paste, each of which a test builds."""

from dataclasses import dataclass
from typing import Any

import torch

import plainformer
from plainformer import PlainformerConfig, PlainformerModel


@dataclass(frozen=True)
class Point:
    """A configuration with a name, and where it is from."""

    name: str
    text: str
    fields: dict[str, Any]

    def weights(self) -> str:
        """How many, in millions; nothing is allocated."""
        with torch.device("meta"):
            count = PlainformerModel(PlainformerConfig(**self.fields)).num_parameters()
        return f"{count / 1e6:.1f} million"


POINTS = (
    Point("BERT-base", "Devlin et al. 2019; the defaults", {}),
    Point(
        "The encoder of the Transformer",
        "Vaswani et al. 2017, base model",
        {
            "vocab_size": 37000,
            "hidden_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
            "hidden_act": "relu",
            "position_embedding_type": "sinusoidal",
            "scale_embedding": True,
            "embedding_norm": False,
            "type_vocab_size": 0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.044,
        },
    ),
    Point(
        "MiniLM-L6's shape",
        "Wang et al. 2020: BERT, 6 layers, 384 wide",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    Point(
        "BERT-mini's shape",
        "Turc et al. 2019: BERT, 4 layers, 256 wide",
        {
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "initializer_range": 0.035,
        },
    ),
    Point(
        "A modern small one",
        "pre-norm, rotary positions, no segments, no dropout: what recent encoders share; none of them exactly",
        {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "intermediate_size": 1536,
            "position_embedding_type": "rotary",
            "pre_norm": True,
            "type_vocab_size": 0,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "classifier_pooling": "mean",
            "initializer_range": 0.028,
        },
    ),
    Point(
        "The studies' own",
        "what this page is measured with: seconds on a laptop",
        {
            "vocab_size": 1000,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "type_vocab_size": 0,
            "initializer_range": 0.07,
        },
    ),
)


def write_point(point: Point) -> str:
    """The lines of Python that make it."""
    fields = "".join(f"    {name}={value!r},\n" for name, value in point.fields.items())
    call = f"PlainformerConfig(\n{fields})" if fields else "PlainformerConfig()"
    return f"from {plainformer.__name__} import PlainformerConfig\n\nconfig = {call}\n"
