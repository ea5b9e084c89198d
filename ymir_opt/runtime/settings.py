"""What a worker takes from a job's request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.request import JobRequest
from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.evaluation import check_metric

__all__ = ["MAX_GRAD_NORM", "Settings", "settings_of"]

# transformers' default
MAX_GRAD_NORM = 1.0
EVALUATIONS_AN_EPOCH = 4


@dataclass(frozen=True)
class Settings:
    """A job's training in numbers, once the number of its training rows is known.

    Attributes
    ----------
    spec : AdapterSpec
    targets : tuple of str or None
        Names of the layers that the adapter changes; None: query and value.
    batch_size : int
        Rows a step.
    steps : int
        Of the whole run: the job ends there at the latest.
    eval_every : int
        Samples between two evaluations.
    metric : str
    target : float or None
    greater : bool
        Whether the metric is to rise.
    patience : int or None
        Evaluations without a better value after which the job ends.
    """

    spec: AdapterSpec
    targets: tuple[str, ...] | None
    batch_size: int
    steps: int
    eval_every: int
    metric: str
    target: float | None
    greater: bool
    patience: int | None

    def better(self, value: float, than: float | None) -> bool:
        """Return whether a metric is an improvement."""
        if math.isnan(value):
            return False
        return than is None or (value > than if self.greater else value < than)

    def reached(self, value: float | None) -> bool:
        """Return whether a metric is at the target or beyond."""
        if value is None or self.target is None or math.isnan(value):
            return False
        return value >= self.target if self.greater else value <= self.target


def settings_of(request: JobRequest, rows: int) -> Settings:
    """Return a job's settings.

    Parameters
    ----------
    request : JobRequest
    rows : int
        Training rows.

    Raises
    ------
    InputError
        For a PEFT type that the worker does not train, or an unknown metric.
    """
    if request.peft.peft_type != "LORA":
        raise InputError(
            "peft.peft_type", f"{request.peft.peft_type} is not trained by the worker", "use LORA"
        )
    training = request.training
    target = request.target
    if target is not None:
        check_metric(target.metric)
    steps = max(1, math.ceil(training.num_train_epochs * rows / training.global_batch_size))
    spec = AdapterSpec(
        r=request.peft.r,
        lora_alpha=request.peft.lora_alpha,
        lora_dropout=request.peft.lora_dropout,
        learning_rate=training.learning_rate,
        max_grad_norm=MAX_GRAD_NORM if training.max_grad_norm is None else training.max_grad_norm,
        # requests without these fields train without warm-up and decay
        warmup_steps=int(getattr(training, "warmup_steps", 0) or 0),
        weight_decay=float(getattr(training, "weight_decay", 0.0) or 0.0),
        seed=training.seed,
        lr_scheduler_type=training.lr_scheduler_type,
        training_steps=steps,
        optim=training.optim,
    )
    return Settings(
        spec=spec,
        targets=request.peft.target_modules,
        batch_size=training.global_batch_size,
        steps=steps,
        eval_every=training.eval_every_samples or max(1, math.ceil(rows / EVALUATIONS_AN_EPOCH)),
        metric="eval_accuracy" if target is None else target.metric,
        target=None if target is None else target.value,
        greater=True if target is None else target.greater_is_better,
        patience=training.early_stopping_patience,
    )
