"""One training: a new model, so many steps of Adam, and what it reached.

Everything follows from the seed: weights, texts and their order. Times are those of the processor, for one thread, and
hold on a machine that does other work too.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plainformer import PlainformerConfig
from plainformer.losses_plainformer import IGNORE_INDEX
from plainformer.positions_plainformer import POSITION_KINDS

from .tasks import Batch, Task

TEST_SEED = 12345  # the same questions for every model
TEST_BATCH, TEST_BATCHES = 256, 3


@dataclass(frozen=True)
class Budget:
    """How a model is trained. Texts have between `shortest` and `length` symbols."""

    steps: int
    length: int
    shortest: int
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup: int = 50  # steps in which the learning rate rises
    decays: bool = True  # the learning rate falls along half a cosine; otherwise it stays
    max_grad_norm: float | None = 1.0

    def __str__(self) -> str:
        lengths = f"{self.shortest} to {self.length}" if self.shortest < self.length else self.length
        return f"{self.steps} steps of {self.batch_size} texts of {lengths}"


def make_config(task: Task, kind: str, **fields: Any) -> PlainformerConfig:
    """A small model for a task: 64 wide, 2 layers, 4 heads, unless `fields` say otherwise."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "type_vocab_size": 0}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # no text is seen often
    fields = {**sizes, **dropouts, **task.fields, "position_embedding_type": kind, **fields}
    width = fields["hidden_size"]
    usual = {
        "intermediate_size": 4 * width,
        "initializer_range": initial_deviation(width),
        "scale_embedding": not POSITION_KINDS[kind].has_limit,  # see docs/positions.md
    }
    return PlainformerConfig(**{**usual, **fields})


def initial_deviation(width: int) -> float:
    """BERT's 0.02, which is for a width of 768, for another width."""
    return 0.02 * math.sqrt(768 / width)


def train(model: nn.Module, batches: Iterable[Batch], budget: Budget) -> tuple[list[float], float]:
    """Train in place. The loss of each step, and the processor's seconds; it stops where the loss is no number."""
    optimizer = torch.optim.Adam(model.parameters(), lr=budget.learning_rate, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, make_schedule(budget))
    losses, start = [], time.process_time()
    for batch in batches:
        loss = model.train()(**batch).loss
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        loss.backward()
        if budget.max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), budget.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses, time.process_time() - start


def make_schedule(budget: Budget) -> Callable[[int], float]:
    """The part of the learning rate at each step."""

    def part(step: int) -> float:
        if step < budget.warmup:
            return (step + 1) / budget.warmup
        done = (step - budget.warmup) / max(1, budget.steps - budget.warmup)
        return (1 + math.cos(math.pi * done)) / 2 if budget.decays else 1.0

    return part


def draw_batches(task: Task, budget: Budget, seed: int) -> Iterable[Batch]:
    """As many as the budget has steps. They depend on the seed alone, so models of one seed see the same texts."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(budget.steps):
        length = int(torch.randint(budget.shortest, budget.length + 1, (), generator=draw))
        yield task.draw(budget.batch_size, length, draw, for_test=False)


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the loss is no number, or ended above where it began (over a twentieth of the steps each)."""
    few = max(1, len(losses) // 20)
    return not math.isfinite(losses[-1]) or sum(losses[-few:]) > sum(losses[:few])


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, length: int, quick: bool = False) -> tuple[float, float]:
    """Mean loss, and the fraction of right answers, over questions that are the same for every model."""
    model.eval()
    draw = torch.Generator().manual_seed(TEST_SEED)
    losses, right, asked = 0.0, 0, 0
    for _ in range(1 if quick else TEST_BATCHES):
        batch = task.draw(8 if quick else TEST_BATCH, length, draw, for_test=True)
        loss, count = score(model, batch)
        asked_here = int((batch["labels"] != IGNORE_INDEX).sum())
        losses, right, asked = losses + loss * asked_here, right + count, asked + asked_here
    return losses / asked, right / asked


def score(model: nn.Module, batch: Batch) -> tuple[float, int]:
    """The loss of a batch, and the number of right answers."""
    output = model(**batch)
    guesses: Tensor = output.logits.argmax(dim=-1)
    return float(output.loss), int((guesses == batch["labels"]).sum())
