"""Plainformer: a Transformer encoder for the Hugging Face ecosystem.

Importing it defines names and registers the classes with transformers' Auto classes; it does nothing else.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .configuration_plainformer import PlainformerConfig
from .configuration_seq2seq_plainformer import PlainformerSeq2SeqConfig
from .conversion import from_bert, to_bert
from .encoding import encode
from .inference import for_inference
from .modeling_plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from .modeling_seq2seq_plainformer import PlainformerForConditionalGeneration, PlainformerSeq2SeqEncoder
from .positions_plainformer import sinusoidal_embedding
from .pretrained_plainformer import PlainformerPreTrainedModel
from .tokenization_plainformer import load_tokenizer, train_tokenizer

__version__ = "0.1.0"

__all__ = [
    "PlainformerConfig",
    "PlainformerForConditionalGeneration",
    "PlainformerForMaskedLM",
    "PlainformerForMultipleChoice",
    "PlainformerForQuestionAnswering",
    "PlainformerForSequenceClassification",
    "PlainformerForTokenClassification",
    "PlainformerModel",
    "PlainformerPreTrainedModel",
    "PlainformerSeq2SeqConfig",
    "encode",
    "for_inference",
    "from_bert",
    "load_tokenizer",
    "sinusoidal_embedding",
    "to_bert",
    "train_tokenizer",
]

AutoConfig.register(PlainformerConfig.model_type, PlainformerConfig, exist_ok=True)
AutoModel.register(PlainformerConfig, PlainformerModel, exist_ok=True)
AutoModelForMaskedLM.register(PlainformerConfig, PlainformerForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(PlainformerConfig, PlainformerForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(PlainformerConfig, PlainformerForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(PlainformerConfig, PlainformerForQuestionAnswering, exist_ok=True)
AutoModelForMultipleChoice.register(PlainformerConfig, PlainformerForMultipleChoice, exist_ok=True)

AutoConfig.register(PlainformerSeq2SeqConfig.model_type, PlainformerSeq2SeqConfig, exist_ok=True)
AutoModel.register(PlainformerSeq2SeqConfig, PlainformerSeq2SeqEncoder, exist_ok=True)
AutoModelForSeq2SeqLM.register(PlainformerSeq2SeqConfig, PlainformerForConditionalGeneration, exist_ok=True)
