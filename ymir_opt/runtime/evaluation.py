"""Metrics on a job's evaluation rows, under transformers' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import NotFoundError
from ymir_opt.runtime.dataset import EVALUATION_BATCH, Encoded
from ymir_opt.runtime.memory import is_out_of_memory, release
from ymir_opt.runtime.session import Runtime

__all__ = ["METRICS", "Evaluation", "check_metric", "evaluate", "macro_f1"]


@dataclass(frozen=True)
class Evaluation:
    """Predicted and true classes of every row, and the mean loss."""

    predicted: torch.Tensor
    labels: torch.Tensor
    loss: float


def _accuracy(found: Evaluation) -> float:
    # in double precision: 7 of 10 reach a target of 0.7
    return int((found.predicted == found.labels).sum()) / len(found.labels)


def macro_f1(predicted: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the mean over classes (of either tensor) of 2 TP / (2 TP + FP + FN)."""
    scores = []
    for number in torch.unique(torch.cat([predicted, labels])).tolist():
        hit = int(((predicted == number) & (labels == number)).sum())
        named, true = int((predicted == number).sum()), int((labels == number).sum())
        scores.append(2 * hit / (named + true))
    return sum(scores) / len(scores)


METRICS: Mapping[str, Callable[[Evaluation], float]] = {
    "eval_accuracy": _accuracy,
    "eval_f1": lambda found: macro_f1(found.predicted, found.labels),
    "eval_loss": lambda found: found.loss,
}


def check_metric(name: str) -> None:
    """Raise `NotFoundError` for a metric that is not known."""
    if name not in METRICS:
        raise NotFoundError("target.metric", f"{name!r} is unknown", nearest(name, set(METRICS)))


def evaluate(runtime: Runtime, adapter: str, head: str, rows: Encoded) -> Evaluation:
    """Predict every row; where memory runs out, the batch is halved until it does not."""
    size = EVALUATION_BATCH
    while True:
        try:
            return _evaluate(runtime, adapter, head, rows, size)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or size == 1:
                raise
            size //= 2
            release(runtime.device)


def _evaluate(runtime: Runtime, adapter: str, head: str, rows: Encoded, size: int) -> Evaluation:
    predicted = torch.empty_like(rows.labels)
    loss = 0.0
    for indices in rows.by_length(size):
        part = rows.take(indices)
        logits = runtime.logits(part.inputs, adapter, head)
        loss += float(torch.nn.functional.cross_entropy(logits, part.labels, reduction="sum"))
        predicted[torch.as_tensor(indices, device=predicted.device)] = logits.argmax(dim=1)
    return Evaluation(predicted, rows.labels, loss / len(rows.labels))
