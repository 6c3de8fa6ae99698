"""What a pipeline has to give, in the place of their checks of these names, which the archive leaves out.

`PipelineTesterMixin` loads model and tokenizer, asks for a pipeline and examples, runs the check and a batched pass.
"""

import math

from transformers import pipeline

PASSAGE = "The fox jumps over the lazy dog, and the dog sleeps."


class PipelineChecks:
    task: str
    examples: list = ["The fox jumps.", PASSAGE]
    options: dict = {}

    def get_test_pipeline(self, model, tokenizer, dtype="float32", **processors):
        return pipeline(self.task, model=model, tokenizer=tokenizer, dtype=dtype, **self.options), self.examples

    def run_pipeline_test(self, pipe, examples):
        for example in examples:
            self.check(pipe, example, pipe(example))


class FeatureExtractionPipelineTests(PipelineChecks):
    task = "feature-extraction"

    def check(self, pipe, example, output):
        (row,) = output
        assert len(row) == len(pipe.tokenizer(example)["input_ids"])
        assert all(len(vector) == pipe.model.config.hidden_size and all(map(math.isfinite, vector)) for vector in row)


class FillMaskPipelineTests(PipelineChecks):
    task = "fill-mask"
    examples = ["The fox [MASK] over the dog.", "The [MASK] sleeps."]

    def check(self, pipe, example, output):
        scores = [answer["score"] for answer in output]
        assert len(output) == 5 and scores == sorted(scores, reverse=True) and 0 < sum(scores) <= 1.001
        for answer in output:
            assert pipe.tokenizer.convert_tokens_to_ids(answer["token_str"].replace(" ", "")) == answer["token"]


class TextClassificationPipelineTests(PipelineChecks):
    task = "text-classification"

    def check(self, pipe, example, output):
        (answer,) = output
        assert answer["label"] in pipe.model.config.id2label.values()
        assert 1 / pipe.model.config.num_labels <= answer["score"] <= 1


class TokenClassificationPipelineTests(PipelineChecks):
    task = "token-classification"

    def check(self, pipe, example, output):
        assert len(output) == len(pipe.tokenizer(example, add_special_tokens=False)["input_ids"])
        for answer in output:
            assert answer["entity"] in pipe.model.config.id2label.values() and 0 < answer["score"] <= 1
            assert example[answer["start"] : answer["end"]].lower() == answer["word"].removeprefix("##")


class QAPipelineTests(PipelineChecks):
    """Up to transformers 4: 5 has no such pipeline."""

    task = "question-answering"
    examples = [{"question": "Who sleeps?", "context": PASSAGE}]

    def check(self, pipe, example, output):
        assert output["answer"] == example["context"][output["start"] : output["end"]] != ""
        assert 0 <= output["score"] <= 1


class ZeroShotClassificationPipelineTests(PipelineChecks):
    task = "zero-shot-classification"
    options = {"candidate_labels": ["dogs", "foxes"], "hypothesis_template": "The {}."}

    def check(self, pipe, example, output):
        assert sorted(output["labels"]) == ["dogs", "foxes"]
        assert math.isclose(sum(output["scores"]), 1, abs_tol=1e-3)
