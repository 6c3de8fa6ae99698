"""Their `ModelTesterMixin`, `TrainingTesterMixin` and `ConfigTester` on every Plainformer class, once per variant."""

import unittest
from contextlib import contextmanager

import torch
from transformers.models.auto import modeling_auto

from plainformer import PlainformerConfig, PlainformerSeq2SeqConfig
from plainformer.positions_plainformer import POSITION_KINDS

from ...generation.test_utils import GenerationTesterMixin
from ...test_configuration_common import ConfigTester
from ...test_modeling_common import ModelTesterMixin
from .subject import MODELS, SEQ2SEQ_MODELS, TINY, VARIANTS

try:
    from ...test_training_mixin import TrainingTesterMixin
except ImportError:  # transformers 4 has none

    class TrainingTesterMixin:
        pass


for models in (MODELS, SEQ2SEQ_MODELS):
    for table, model_class in models.items():
        getattr(modeling_auto, table)[model_class.config_class.model_type] = model_class.__name__


class PlainformerModelTester:
    """The tiny configuration and batch that their tests ask for."""

    batch_size, seq_length = 13, 7
    num_choices = 4
    is_training = True
    hidden_size, num_hidden_layers = TINY["hidden_size"], TINY["num_hidden_layers"]
    num_attention_heads, vocab_size = TINY["num_attention_heads"], TINY["vocab_size"]

    def __init__(self, choices):
        self.choices = choices

    def get_config(self):
        return PlainformerConfig(**TINY, **self.choices)

    def prepare_config_and_inputs_for_common(self):
        shape = (self.batch_size, self.seq_length)
        return self.get_config(), {
            "input_ids": torch.randint(TINY["vocab_size"], shape),
            "token_type_ids": torch.randint(2, shape),
            "attention_mask": make_mask(shape),
        }


class PlainformerSeq2SeqModelTester(PlainformerModelTester):
    """The same with targets, as long as the sources: some of their tests give both the same mask."""

    START = 1

    def get_config(self):
        options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # they look at one step's gradient
        ids = {"decoder_start_token_id": self.START, "eos_token_id": 2}
        return PlainformerSeq2SeqConfig(**TINY, **self.choices, **options, **ids)

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        shape = (self.batch_size, self.seq_length)
        targets = {
            "decoder_input_ids": torch.randint(TINY["vocab_size"], shape),
            "decoder_attention_mask": make_mask(shape),
        }
        return config, {**inputs, **targets}


def make_mask(shape):
    """A mask with padding anywhere, but no row without a token."""
    mask = torch.randint(2, shape)
    mask[:, 0] = 1
    return mask


class PlainformerTests(ModelTesterMixin, TrainingTesterMixin):
    all_model_classes = tuple(MODELS.values())
    trainable_model_class = MODELS["MODEL_FOR_MASKED_LM_MAPPING_NAMES"]
    model_tester_class = PlainformerModelTester
    test_can_init_all_missing_weights_before_2023 = True  # they mean: models whose file does not say a later year
    test_resize_position_embeddings = property(
        lambda self: POSITION_KINDS[self.choices["position_embedding_type"]].has_limit
    )
    training_overfit_learning_rate = 3e-3
    model_tester = None
    # What transformers 4 still asks about: tracing of listed models only, head masks and head pruning, gone from 5.
    fx_compatible = test_head_masking = test_pruning = False

    def setUp(self):
        self.model_tester = self.model_tester_class(self.choices)

    @contextmanager
    def subTest(self, *args, **kwargs):
        """A subtest that is reported only where it does not pass: there are 16,000, and reports take their time."""
        try:
            yield
        except Exception:
            with super().subTest(*args, **kwargs):
                raise

    def _get_trainable_model_class(self):
        return self.trainable_model_class

    def test_config(self):
        fields = {**self.choices, "hidden_size": 36, "num_attention_heads": 4}
        # Without the properties that transformers 4 sets to 0 and 1, as no encoder could have them.
        options = {"has_text_modality": False, "common_properties": []}
        ConfigTester(self, type(self.model_tester.get_config()), **options, **fields).run_common_tests()


class PlainformerSeq2SeqTests(GenerationTesterMixin, PlainformerTests):
    is_encoder_decoder = True
    all_model_classes = tuple(SEQ2SEQ_MODELS.values())
    trainable_model_class = SEQ2SEQ_MODELS["MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"]
    model_tester_class = PlainformerSeq2SeqModelTester
    training_overfit_learning_rate, training_overfit_steps = 1e-2, 100  # a third of theirs: it is the slowest test

    def _create_text_training_batch(self, *args, **kwargs):
        """Their pattern, to be written from its first token alone: that is what the test then generates from.

        Theirs has no start token, and `generate` gives it: it is the pattern's first token.
        """
        pattern = super()._create_text_training_batch(*args, **kwargs)["input_ids"]
        assert (pattern[:, 0] == self.model_tester.START).all()
        mask = torch.zeros_like(pattern)
        mask[:, 0] = 1
        return {"input_ids": pattern, "attention_mask": mask, "labels": pattern[:, 1:]}


for prefix, tests in {"Plainformer": PlainformerTests, "PlainformerSeq2Seq": PlainformerSeq2SeqTests}.items():
    for variant, choices in VARIANTS.items():
        name = f"{prefix}{variant}Test"
        globals()[name] = type(name, (tests, unittest.TestCase), {"choices": choices, "__module__": __name__})
