"""Their `PipelineTesterMixin` on every class that a pipeline takes, once per variant."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from transformers.pipelines import SUPPORTED_TASKS

from plainformer import PlainformerConfig

from ... import test_pipeline_mixin
from ...test_pipeline_mixin import PipelineTesterMixin
from .subject import MODELS, TINY, VARIANTS, make_tokenizer

PIPELINES = {
    "feature-extraction": MODELS["MODEL_MAPPING_NAMES"],
    "fill-mask": MODELS["MODEL_FOR_MASKED_LM_MAPPING_NAMES"],
    "question-answering": MODELS["MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"],
    "text-classification": MODELS["MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"],
    "token-classification": MODELS["MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"],
    "zero-shot": MODELS["MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"],
}

if "question-answering" not in SUPPORTED_TASKS:
    del PIPELINES["question-answering"]  # transformers 5 has no such pipeline

for model_class in PIPELINES.values():
    test_pipeline_mixin.tiny_model_summary[model_class.__name__] = {
        "tokenizer_classes": ["BertTokenizerFast"],
        "processor_classes": [],
    }


class PipelineTests(PipelineTesterMixin):
    """Models are saved in the folders where the mixin looks for them, in the place of tiny ones on the Hub."""

    pipeline_model_mapping = PIPELINES

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        tokenizer = make_tokenizer()
        labels = {"label2id": {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}}  # zero-shot wants the last
        config = PlainformerConfig(**{**TINY, **cls.choices, "vocab_size": len(tokenizer)}, **labels)
        folder = Path(temporary.name, "plainformer")
        for model_class in set(PIPELINES.values()):
            model_class(config).save_pretrained(folder / model_class.__name__)
            tokenizer.save_pretrained(folder / model_class.__name__)
        place = mock.patch.object(test_pipeline_mixin, "TRANSFORMERS_TINY_MODEL_PATH", temporary.name)
        place.start()
        cls.addClassCleanup(place.stop)

    def skipTest(self, reason):
        """Theirs skips what does not load; here it is a failure."""
        self.fail(reason)


for name in dir(PipelineTesterMixin):
    task = name.removeprefix("test_pipeline_").removesuffix("_fp16").replace("_", "-")
    if name.startswith("test_") and task not in PIPELINES:
        setattr(PipelineTests, name, None)  # images, sounds, generation: not collected

untested = [task for task in PIPELINES if not hasattr(PipelineTests, f"test_pipeline_{task.replace('-', '_')}")]
if untested:
    raise LookupError(f"transformers' PipelineTesterMixin has no test of {', '.join(untested)}: was it renamed?")

for variant, choices in VARIANTS.items():
    name = f"Plainformer{variant}PipelineTest"
    globals()[name] = type(name, (PipelineTests, unittest.TestCase), {"choices": choices, "__module__": __name__})
