"""The encoder-decoder: texts to texts, and its encoder alone.

    input_ids [B, S] ─ the encoder of modeling_plainformer.py ─ hidden states of the source
    labels [B, L]    ─ moved by one place                     ─ decoder ─ a score for every entry of the vocabulary

Reference: Vaswani et al. 2017, "Attention Is All You Need".

Shapes: B batch, S source, L targets, N real targets, E hidden size, V vocabulary; [*] stands for a layout's leading
dimensions, real tokens or a rectangle.
"""

import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from .attention_plainformer import PlainformerAttention  # noqa: F401  transformers 4.57 copies only what this file imports
from .causal_attention_plainformer import PlainformerCrossAttention  # noqa: F401
from .chunking_plainformer import apply_in_chunks  # noqa: F401
from .code_plainformer import keep_code  # noqa: F401
from .configuration_plainformer import PlainformerConfig
from .configuration_seq2seq_plainformer import PlainformerSeq2SeqConfig
from .decoder_plainformer import PlainformerDecoder
from .hooks_plainformer import is_observed
from .inputs_plainformer import read_labels, read_mask, read_shape
from .kernels_plainformer import KERNELS  # noqa: F401
from .labels_plainformer import HeadLabels  # noqa: F401
from .layouts_plainformer import PaddedLayout
from .losses_plainformer import NumItems, class_loss
from .modeling_plainformer import PlainformerModel
from .names_plainformer import OF_TRANSFORMERS  # noqa: F401
from .packing_plainformer import refuse_packed
from .pairs_plainformer import PairLayout, Source, make_pair_layout
from .positions_plainformer import POSITION_KINDS  # noqa: F401
from .pretrained_plainformer import PlainformerPreTrainedModel
from .targets_plainformer import Targets, find_targets, read_targets, shift_right
from .values_plainformer import Questions
