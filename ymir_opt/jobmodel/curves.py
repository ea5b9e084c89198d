"""Learning curves: the first epoch at which a target is reached, alone, after, and with another task.

Reached means the metric is at least the target (every metric here is better when larger; losses are
stored negated). A target that is not reached within :data:`MAX_EPOCHS` is *censored*: it is reported as
``reached=False`` with the epoch limit, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ymir_opt.jobmodel.tables import finite, read_rows, text

__all__ = ["MAX_EPOCHS", "Curve", "Curves", "Reach", "Setting", "first_epoch"]

MAX_EPOCHS = 10.0

Curve = tuple[tuple[float, float], ...]
"""(epoch, metric) pairs by ascending epoch."""
Setting = tuple[str, int]
"""(learning rate as written, accumulation steps): the key of a single-task curve."""


@dataclass(frozen=True)
class Reach:
    """When a curve reaches a target.

    Attributes
    ----------
    epochs : float
        First epoch at which the metric is at least the target, or the limit if it never is.
    reached : bool
        False: censored at `epochs`.
    """

    epochs: float
    reached: bool


def first_epoch(curve: Iterable[tuple[float, float]], target: float, limit: float = MAX_EPOCHS) -> Reach:
    """Return the first epoch up to `limit` at which the curve is at least `target`."""
    epochs = [epoch for epoch, value in curve if value >= target and epoch <= limit]
    return Reach(min(epochs), True) if epochs else Reach(limit, False)


@dataclass(frozen=True)
class Curves:
    """The three kinds of curves, by foundation model.

    Attributes
    ----------
    normal : mapping
        (model, task) -> {(lr, accumulation): curve}.
    temporal : mapping
        (model, source task, target task) -> curve of the target started from the source's weights.
    spatial : mapping
        (model, {task, other}, evaluated task) -> curve of the evaluated task in joint training.
    metrics : mapping
        (model, task) -> name of the metric.
    """

    normal: Mapping[tuple[str, str], Mapping[Setting, Curve]]
    temporal: Mapping[tuple[str, str, str], Curve] = field(default_factory=dict)
    spatial: Mapping[tuple[str, frozenset[str], str], Curve] = field(default_factory=dict)
    metrics: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Curves:
        """Read ``normal_hpo_curves.csv`` and, where present, the two transfer tables."""
        normal: dict[tuple[str, str], dict[Setting, list[tuple[float, float]]]] = {}
        metrics: dict[tuple[str, str], str] = {}
        columns = {
            "model": text,
            "task": text,
            "lr": text,
            "grad_accum_steps": finite,
            "metric": text,
            "epoch": finite,
            "value": finite,
        }
        for _, (model, task, lr, steps, metric, epoch, value) in read_rows(
            folder / "normal_hpo_curves.csv", columns
        ):
            metrics[model, task] = metric
            normal.setdefault((model, task), {}).setdefault((lr, int(steps)), []).append((epoch, value))
        temporal: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        path = folder / "temporal_transfer_curves.csv"
        if path.exists():
            columns = {
                "model": text,
                "source_task": text,
                "target_task": text,
                "epoch": finite,
                "value": finite,
            }
            for _, (model, source, task, epoch, value) in read_rows(path, columns):
                temporal.setdefault((model, source, task), []).append((epoch, value))
        spatial: dict[tuple[str, frozenset[str], str], list[tuple[float, float]]] = {}
        path = folder / "spatial_transfer_curves.csv"
        if path.exists():
            columns = {
                "model": text,
                "task_a": text,
                "task_b": text,
                "eval_task": text,
                "epoch": finite,
                "value": finite,
            }
            for _, (model, a, b, task, epoch, value) in read_rows(path, columns):
                spatial.setdefault((model, frozenset((a, b)), task), []).append((epoch, value))
        return cls(
            normal={
                key: {setting: tuple(sorted(curve)) for setting, curve in settings.items()}
                for key, settings in normal.items()
            },
            temporal={key: tuple(sorted(curve)) for key, curve in temporal.items()},
            spatial={key: tuple(sorted(curve)) for key, curve in spatial.items()},
            metrics=metrics,
        )

    def alone(self, model: str, task: str, setting: Setting, target: float) -> Reach | None:
        """Return when the task alone reaches `target` with one setting; None if not measured."""
        curve = self.normal.get((model, task), {}).get(setting)
        return None if curve is None else first_epoch(curve, target)

    def best_alone(self, model: str, task: str, target: float) -> tuple[Setting, Reach] | None:
        """Return the single-task setting that reaches `target` first (ties: the first in sorted order)."""
        settings = self.normal.get((model, task))
        if not settings:
            return None
        found = [(setting, first_epoch(curve, target)) for setting, curve in sorted(settings.items())]
        return min(found, key=lambda item: (not item[1].reached, item[1].epochs))

    def after(self, model: str, source: str, task: str, target: float) -> Reach | None:
        """Return when `task`, started from `source`'s weights, reaches `target`; None if not measured."""
        curve = self.temporal.get((model, source, task))
        return None if curve is None else first_epoch(curve, target)

    def jointly(self, model: str, task: str, other: str, target: float) -> Reach | None:
        """Return when `task`, trained jointly with `other`, reaches `target`; None if not measured."""
        curve = self.spatial.get((model, frozenset((task, other)), task))
        return None if curve is None else first_epoch(curve, target)
