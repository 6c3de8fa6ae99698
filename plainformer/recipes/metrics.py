"""One metric for each task: figures by name.

The names of a task's metrics stand beside its function, the one that chooses the best model first.
"""

import importlib.util
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics.sequence_labeling import classification_report as entity_report
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from sklearn.metrics import accuracy_score, classification_report, f1_score
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction

from ..losses_plainformer import IGNORE_INDEX
from .errors import RecipeError

# The characters of scripts that are written without spaces: Chinese, and Japanese with its kana.
KANA = r"\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
UNSPACED = KANA + r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
CLASSIFICATION_METRICS = {
    SINGLE: ("accuracy", "f1"),
    MULTI: ("f1", "micro_f1", "accuracy"),
    REGRESSION: ("mse", "pearson", "spearman"),
}


def score_single(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy, and the unweighted mean of F1 over the classes."""
    predictions, labels = prediction.predictions.argmax(-1), prediction.label_ids
    return {"accuracy": accuracy_score(labels, predictions), "f1": f1_score(labels, predictions, average="macro")}


def score_multi(prediction: EvalPrediction) -> dict[str, float]:
    """F1 over the labels (macro) and over all decisions (micro); accuracy: rows with exactly the right labels."""
    predictions, labels = prediction.predictions > 0, prediction.label_ids > 0.5  # logit 0 is probability 0.5
    macro, micro = (f1_score(labels, predictions, average=mean, zero_division=0) for mean in ("macro", "micro"))
    return {"accuracy": accuracy_score(labels, predictions), "f1": macro, "micro_f1": micro}


def score_regression(prediction: EvalPrediction) -> dict[str, float]:
    """Mean squared error and both correlations, which are 0 where all predictions are the same."""
    predictions, labels = prediction.predictions.reshape(-1), prediction.label_ids.reshape(-1)
    pearson = spearman = 0.0
    if len(set(predictions)) > 1 and len(set(labels)) > 1:
        pearson, spearman = float(pearsonr(predictions, labels)[0]), float(spearmanr(predictions, labels)[0])
    return {"mse": float(np.mean((predictions - labels) ** 2)), "pearson": pearson, "spearman": spearman}


CLASSIFICATION_SCORES = {SINGLE: score_single, MULTI: score_multi, REGRESSION: score_regression}

OUTSIDE = "O"  # the tag of a word of no entity
ENTITY_TAG = re.compile("(?P<prefix>[BIMELUS])(-(?P<kind>.+))?")
# seqeval knows B, I, E and S; others write the same with M for I, or L for E and U for S.
SEQEVAL_PREFIXES = {"M": "I", "L": "E", "U": "S"}
EACH = {"precision": "precision", "recall": "recall", "f1": "f1-score", "number": "support"}  # as reports name them


def are_entity_tags(names: Iterable[str]) -> bool:
    """Whether tags say where entities begin: B-PER, I-PER (BIO, BIOES, BILOU, BMES), or B, M, E, S for words."""
    found = [ENTITY_TAG.fullmatch(name) for name in names if name != OUTSIDE]
    if not all(found):
        return False
    kinds = {match["kind"] for match in found}
    return None not in kinds or (kinds == {None} and any(match["prefix"] == "B" for match in found))


def tag_metric_names(names: Sequence[str], each: bool) -> list[str]:
    """The metrics of these tags; with `each` those of each kind of entity (or tag) as well."""
    kinds, figures = set(names), ["accuracy", "f1"]
    if are_entity_tags(names):
        kinds = {tag.partition("-")[2] for tag in map(for_seqeval, names) if tag != OUTSIDE}
        figures = ["f1", "precision", "recall", "accuracy"]
    return figures + [f"{kind}_{name}" for kind in sorted(kinds) for name in EACH if each]


def for_seqeval(tag: str) -> str:
    """A tag as seqeval knows it. A tag without a kind of entity, such as M, is of a word."""
    if tag == OUTSIDE:
        return tag
    prefix, _, kind = tag.partition("-")
    return f"{SEQEVAL_PREFIXES.get(prefix, prefix)}-{kind or 'WORD'}"


def score_entities(references: list[list[str]], predictions: list[list[str]], each: bool = False) -> dict[str, float]:
    """Entities that are right from their first word to their last, and in kind (as CoNLL's own script counts them)."""
    sides = [[list(map(for_seqeval, sentence)) for sentence in side] for side in (references, predictions)]
    scores = precision_recall_fscore_support(*sides, average="micro", zero_division=0)
    figures = {name: float(score) for name, score in zip(("precision", "recall", "f1"), scores, strict=False)}
    figures["accuracy"] = accuracy_score(list(chain(*references)), list(chain(*predictions)))
    if each:
        figures |= _of_each_kind(entity_report(*sides, output_dict=True, zero_division=0))
    return figures


def score_tags(
    references: list[list[str]], predictions: list[list[str]], names: Iterable[str], each: bool = False
) -> dict[str, float]:
    """Accuracy, and the unweighted mean of F1 over the tags; the O of unseen words need not be one of them."""
    references, predictions = list(chain(*references)), list(chain(*predictions))
    present = [name for name in names if name in {*references, *predictions}]
    report = classification_report(references, predictions, labels=present, output_dict=True, zero_division=0)
    figures = {"accuracy": accuracy_score(references, predictions), "f1": report["macro avg"]["f1-score"]}
    return {**figures, **(_of_each_kind(report) if each else {})}


def _of_each_kind(report: dict[str, dict[str, float]]) -> dict[str, float]:
    """Precision, recall, F1 and number of each kind of entity (or tag) in a classification report."""
    kinds = [kind for kind, scores in report.items() if isinstance(scores, dict) and not kind.endswith(" avg")]
    return {f"{kind}_{name}": float(report[kind][column]) for kind in kinds for name, column in EACH.items()}


ANSWER_METRICS = ("f1", "exact_match")
NEGATIVE_METRICS = ("has_answer_exact_match", "has_answer_f1", "no_answer_accuracy")  # where some have no answer


def score_answers(
    predictions: Iterable[str], references: Sequence[list[str]], with_negative: bool = False
) -> dict[str, float]:
    """Exact match and F1 in percent; for SQuAD 2 also of the questions with an answer, and those without alone.

    Of several answers to a question the best one counts; a question with none has no answer.
    """
    scores = np.array([score_answer(*pair) for pair in zip(predictions, references, strict=True)]) * 100
    metrics = dict(zip(("exact_match", "f1"), scores.mean(0).tolist(), strict=True))
    if with_negative:
        has_answer = np.array([bool(answers) for answers in references])
        if has_answer.any():
            exact, f1 = scores[has_answer].mean(0).tolist()
            metrics |= {"has_answer_exact_match": exact, "has_answer_f1": f1}
        if not has_answer.all():
            metrics |= {"no_answer_accuracy": float(scores[~has_answer, 0].mean())}
    return metrics


def score_answer(text: str, references: list[str]) -> tuple[float, float]:
    """Exact match and F1 of a text and the reference nearest to it."""
    ours, theirs = answer_words(text), list(map(answer_words, references or [""]))
    return float(ours in theirs), max(overlap(ours, words) for words in theirs)


def overlap(ours: list[str], theirs: list[str]) -> float:
    """F1 of the words in common."""
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


def answer_words(text: str) -> list[str]:
    """The words that count, as in SQuAD: in lower case, without punctuation and English articles.

    Chinese and Japanese are written without spaces: of these each character is a word, and other characters between
    them (digits, Latin letters) form words. Such texts also lose the punctuation that is not in ASCII.
    """
    marks = set(string.punctuation)
    if re.search(f"[{UNSPACED}]", text):
        marks |= {character for character in text if unicodedata.category(character).startswith("P")}
    text = "".join(character for character in text.lower() if character not in marks)
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return re.findall(rf"[{UNSPACED}]|[^\s{UNSPACED}]+", text)


MASKED_LM_METRICS = ("loss", "perplexity", "accuracy")


def sum_up_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [B, L, V] and labels [B, L] -> each row's summed loss and number of right predictions, [B, 2]."""
    # Without it Trainer would keep the logits of the whole evaluation.
    masked = labels != IGNORE_INDEX
    predictions, references = logits[masked].float(), labels[masked]  # [N, V] and [N]
    losses = cross_entropy(predictions, references, reduction="none")
    figures = torch.zeros(*labels.shape, 2, device=predictions.device)
    figures[masked] = torch.stack([losses, (predictions.argmax(-1) == references).float()], dim=-1)
    return figures.sum(dim=1)


def score_masked(prediction: EvalPrediction) -> dict[str, float]:
    """Loss, perplexity and accuracy over all masked tokens, from what `sum_up_rows` returns.

    The loss takes the place of `Trainer`'s, a mean over batches, which depends on their size and on label smoothing.
    """
    count = np.count_nonzero(prediction.label_ids != IGNORE_INDEX)
    loss, right = prediction.predictions.sum(axis=0, dtype=np.float64) / count
    return {"loss": float(loss), "perplexity": float(np.exp(loss)), "accuracy": float(right)}


TEXT_METRICS = ("exact_match", "word_error_rate", "phoneme_error_rate", "bleu", "chrf")
OF_SACREBLEU = ("bleu", "chrf")  # a package of its own


def find_text_metrics(given: str) -> list[str]:
    """The names in `a,b,c`; a RecipeError for one that is not known, or whose package is not installed."""
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    unknown = [name for name in names if name not in TEXT_METRICS]
    if unknown or not names:
        known = f"choose from {', '.join(TEXT_METRICS)}"
        raise RecipeError(f"--metrics {given}: {unknown[0] if unknown else 'nothing'} is no metric here; {known}.")
    if set(names) & set(OF_SACREBLEU) and importlib.util.find_spec("sacrebleu") is None:
        raise RecipeError(f"--metrics {given} needs the package sacrebleu: pip install sacrebleu.")
    return names


def score_texts(predictions: Sequence[str], references: Sequence[list[str]], names: Iterable[str]) -> dict[str, float]:
    """The metrics `names` of texts that were generated; of several references to a text the nearest one counts.

    exact_match: the share of texts that are a reference. word_error_rate: the share of those that are none, as it is
    defined for spelling to sounds, where each text is one word. phoneme_error_rate: insertions, deletions and
    substitutions of words (there: sounds) for each word of the references. bleu, chrf: of sacrebleu, from 0 to 100.
    """
    exact = np.mean([text in those for text, those in zip(predictions, references, strict=True)])
    scores = {
        "exact_match": lambda: float(exact),
        "word_error_rate": lambda: float(1 - exact),
        "phoneme_error_rate": lambda: _error_rate(predictions, references),
        "bleu": lambda: _score_corpus("BLEU", predictions, references),
        "chrf": lambda: _score_corpus("CHRF", predictions, references),
    }
    return {name: scores[name]() for name in names}


def _error_rate(predictions: Sequence[str], references: Sequence[list[str]]) -> float:
    """Edits from all predictions to the references nearest to them, over the words of these references."""
    edits = words = 0
    for text, those in zip(predictions, references, strict=True):
        distances = [(edit_distance(text.split(), other.split()), len(other.split())) for other in those]
        nearest = min(distances)
        edits, words = edits + nearest[0], words + nearest[1]
    return edits / max(words, 1)


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that make one sequence of the other (Levenshtein 1966)."""
    distances = list(range(len(other) + 1))  # from what was read of `one` to each beginning of `other`
    for count, item in enumerate(one, start=1):
        before, distances = distances, [count]
        for place, candidate in enumerate(other, start=1):
            substituted = before[place - 1] + (item != candidate)
            distances.append(min(before[place] + 1, distances[-1] + 1, substituted))
    return distances[-1]


def _score_corpus(name: str, predictions: Sequence[str], references: Sequence[list[str]]) -> float:
    """A metric of sacrebleu's. It takes the first references of all texts, then the second ones, None for no more."""
    import sacrebleu.metrics

    streams = zip_longest(*references)  # each has one reference of every text
    metric = getattr(sacrebleu.metrics, name)()
    return metric.corpus_score(list(predictions), [list(stream) for stream in streams]).score
