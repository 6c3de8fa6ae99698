"""Their `ModelTesterMixin`, `TrainingTesterMixin` and `ConfigTester` on every Plainformer class, once per variant."""

import unittest
from contextlib import contextmanager

import torch
from transformers.models.auto import modeling_auto

from plainformer import PlainformerConfig, PlainformerForMaskedLM
from plainformer.positions_plainformer import POSITION_KINDS

from ...test_configuration_common import ConfigTester
from ...test_modeling_common import ModelTesterMixin
from .subject import MODELS, TINY, VARIANTS

try:
    from ...test_training_mixin import TrainingTesterMixin
except ImportError:  # transformers 4 has none

    class TrainingTesterMixin:
        pass


for table, model_class in MODELS.items():
    getattr(modeling_auto, table)["plainformer"] = model_class.__name__


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
        mask = torch.randint(2, shape)
        mask[:, 0] = 1  # no row without a token
        return self.get_config(), {
            "input_ids": torch.randint(TINY["vocab_size"], shape),
            "token_type_ids": torch.randint(2, shape),
            "attention_mask": mask,
        }


class PlainformerTests(ModelTesterMixin, TrainingTesterMixin):
    all_model_classes = tuple(MODELS.values())
    test_can_init_all_missing_weights_before_2023 = True  # they mean: models whose file does not say a later year
    test_resize_position_embeddings = property(
        lambda self: POSITION_KINDS[self.choices["position_embedding_type"]].has_limit
    )
    training_overfit_learning_rate = 3e-3
    model_tester = None
    # What transformers 4 still asks about: tracing of listed models only, head masks and head pruning, gone from 5.
    fx_compatible = test_head_masking = test_pruning = False

    def setUp(self):
        self.model_tester = PlainformerModelTester(self.choices)

    @contextmanager
    def subTest(self, *args, **kwargs):
        """A subtest that is reported only where it does not pass: there are 16,000, and reports take their time."""
        try:
            yield
        except Exception:
            with super().subTest(*args, **kwargs):
                raise

    def _get_trainable_model_class(self):
        return PlainformerForMaskedLM

    def test_config(self):
        fields = {**self.choices, "hidden_size": 36, "num_attention_heads": 4}
        # Without the properties that transformers 4 sets to 0 and 1, as no encoder could have them.
        tester = ConfigTester(self, PlainformerConfig, has_text_modality=False, common_properties=[], **fields)
        tester.run_common_tests()


for variant, choices in VARIANTS.items():
    name = f"Plainformer{variant}Test"
    globals()[name] = type(name, (PlainformerTests, unittest.TestCase), {"choices": choices, "__module__": __name__})
