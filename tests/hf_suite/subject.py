"""What transformers' own tests are run against, and what they are not asked.

This file imports nothing of theirs, so that our own tests can read it.
"""

from pathlib import Path

import plainformer
from plainformer.positions_plainformer import POSITION_KINDS

# The table in which their tests look up by a class's name which labels it takes: the class.
MODELS = {
    "MODEL_MAPPING_NAMES": plainformer.PlainformerModel,
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": plainformer.PlainformerForMaskedLM,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": plainformer.PlainformerForSequenceClassification,
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": plainformer.PlainformerForTokenClassification,
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": plainformer.PlainformerForQuestionAnswering,
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": plainformer.PlainformerForMultipleChoice,
}
SEQ2SEQ_MODELS = {"MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": plainformer.PlainformerForConditionalGeneration}

VARIANTS = {
    f"{kind.capitalize()}{'Pre' if pre_norm else 'Post'}Norm": {"position_embedding_type": kind, "pre_norm": pre_norm}
    for kind in POSITION_KINDS
    for pre_norm in (False, True)
}

TINY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}

# One of their tests: why it is not asked. What it asks contradicts what Plainformer promises, or is a fault of theirs.
SKIPPED_BY_US = {
    "test_problem_types": "of classifiers: one has a single class, so its loss is always 0, which Plainformer refuses",
    "test_tokenizer_mismatch_warning": "in transformers 4 it fails without sentencepiece, instead of skipping",
}


def make_tokenizer():
    """A tokenizer for the text that their tokenizer tests read, from where they read it."""
    texts = Path(__file__).parents[2] / "fixtures" / "sample_text.txt"
    return plainformer.train_tokenizer(texts.read_text(encoding="utf-8").split("\n"), 400, min_frequency=1)
