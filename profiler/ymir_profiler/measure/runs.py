"""Training runs: a task alone, after another, or together with another, evaluated on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ymir_opt.runtime.adapters import Adapter
from ymir_opt.runtime.checkpoint import exists, load_adapter, save_adapter
from ymir_opt.runtime.sampling import annealed_schedule
from ymir_opt.runtime.session import Rows
from ymir_profiler.data.tasks import batches
from ymir_profiler.measure.base import Outcome
from ymir_profiler.measure.bench import Bench
from ymir_profiler.store.store import key_of

__all__ = ["JointRun", "SoloRun", "WarmRun", "evaluate", "source_adapter"]

# multiply-adds a second of one core, in float32: only for estimates before anything is measured
FLOPS = 2e10


def _about(bench: Bench, name: str) -> dict[str, str]:
    return {"task": name, "sha256": bench.task(name).sha256}


def _conditions(bench: Bench, seed: int) -> dict[str, Any]:
    training = bench.recipe.training
    return {
        "adapter": bench.recipe.adapter.model_dump(),
        "batch_size": training.batch_size,
        "max_length": training.max_length,
        "eval_at": list(training.eval_at),
        "seed": seed,
    }


def _estimate(bench: Bench, runs: float = 1.0) -> float:
    training = bench.recipe.training
    parameters = bench.multiplied
    samples = 3 * training.eval_at[-1] + training.test_rows * len(training.eval_at)
    return runs * 2 * parameters * samples * training.max_length * 0.5 / FLOPS


def evaluate(bench: Bench, adapter: str, task: str) -> tuple[str, float]:
    """Return the test rows as a string of 1 (correct) and 0, and the mean loss."""
    data = bench.encoded(task, "test")
    correct = ["0"] * len(data.labels)
    loss = 0.0
    for indices in data.by_length():
        part = data.take(indices)
        logits = bench.runtime.logits(part.inputs, adapter, task)
        loss += float(torch.nn.functional.cross_entropy(logits, part.labels, reduction="sum"))
        for index, good in zip(indices, (logits.argmax(dim=1) == part.labels).tolist(), strict=True):
            correct[index] = "1" if good else "0"
    return "".join(correct), loss / len(correct)


class _Curve:
    """Evaluations of one task on the way, and its last state."""

    def __init__(self, bench: Bench, adapter: str, task: str) -> None:
        self.bench, self.adapter, self.task = bench, adapter, task
        self.points: list[dict[str, float]] = []
        self.correct = ""
        self.samples = 0
        self.train_loss = 0.0

    def trained(self, rows: int, loss: float) -> None:
        before, self.samples = self.samples, self.samples + rows
        self.train_loss = loss
        if any(before < at <= self.samples for at in self.bench.recipe.training.eval_at):
            self.correct, test_loss = evaluate(self.bench, self.adapter, self.task)
            self.points.append(
                {
                    "samples": self.samples,
                    "metric": self.correct.count("1") / len(self.correct),
                    "loss": test_loss,
                    "train_loss": loss,
                }
            )

    @property
    def done(self) -> bool:
        return self.samples >= self.bench.recipe.training.eval_at[-1]

    def value(self) -> dict[str, Any]:
        return {
            "points": self.points,
            "correct": self.correct,
            "majority": self.bench.task(self.task).majority,
        }


def _train(
    bench: Bench, adapter: Adapter, tasks: Sequence[str], seed: int, go_on: int | None = None
) -> Outcome:
    """Train an adapter on one task, or on several with annealed sampling, until each has its samples.

    ``go_on`` is a number of samples to reach in any case, without further evaluations.
    """
    size = bench.recipe.training.batch_size
    curves = {task: _Curve(bench, adapter.name, task) for task in tasks}
    data = {task: bench.encoded(task, "train") for task in tasks}
    streams = {task: batches(bench.task(task), size, seed) for task in tasks}
    steps = -(-bench.recipe.training.eval_at[-1] // size)
    schedule = annealed_schedule([len(bench.task(t).train) for t in tasks], len(tasks) * steps, seed)
    turn = 0
    while not all(curve.done and curve.samples >= (go_on or 0) for curve in curves.values()):
        # beyond the planned steps, whoever still lacks samples has its turn
        open_tasks = [task for task in tasks if not curves[task].done] or list(tasks)
        task = tasks[schedule[turn]] if turn < len(schedule) else open_tasks[turn % len(open_tasks)]
        turn += 1
        rows = data[task].take(next(streams[task]))
        (result,) = bench.runtime.step([Rows(adapter.name, task, rows.inputs, rows.labels)])
        if not result.updated:
            return Outcome({"curves": {t: c.value() for t, c in curves.items()}, "turns": turn}, "non-finite")
        curves[task].trained(len(rows.labels), result.loss)
    return Outcome({"curves": {task: curve.value() for task, curve in curves.items()}, "turns": turn})


@dataclass(frozen=True)
class SoloRun:
    """A task alone, from a new adapter; the adapter is kept for warm starts."""

    task: str
    seed: int
    kind: str = "run"

    @property
    def title(self) -> str:
        """A few words."""
        return f"{self.task} alone, seed {self.seed}"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return {
            "mode": "solo",
            "target": _about(bench, self.task),
            "source_samples": bench.recipe.training.source_samples,
            **_conditions(bench, self.seed),
        }

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return _estimate(bench)

    def measure(self, bench: Bench) -> Outcome:
        """Train, evaluate, keep the adapter."""
        adapter = bench.runtime.add("solo", bench.spec(self.seed))
        try:
            adapter.add_head(self.task, len(bench.task(self.task).classes))
            outcome = _train(
                bench, adapter, [self.task], self.seed, go_on=bench.recipe.training.source_samples
            )
            if outcome.status == "ok":
                key = key_of(self.kind, bench.foundation_model, self.subject(bench))
                save_adapter(
                    adapter, bench.artifacts / key, optimiser=False, foundation_model=bench.foundation_model
                )
            return outcome
        finally:
            bench.runtime.remove("solo")


def source_adapter(bench: Bench, task: str, seed: int) -> Adapter:
    """Return the adapter of a task's solo run, training it again where it was not kept."""
    run = SoloRun(task, seed)
    folder = bench.artifacts / key_of(run.kind, bench.foundation_model, run.subject(bench))
    if not exists(folder):
        run.measure(bench)
    return load_adapter(bench.runtime, folder, f"source {task} {seed}")


@dataclass(frozen=True)
class WarmRun:
    """A task from the factors that another task's run ended with; all else as in its solo run.

    Seeds are paired: the same seed gives the same head, order of rows and dropout as alone.
    """

    source: str
    task: str
    seed: int
    kind: str = "run"

    @property
    def title(self) -> str:
        """A few words."""
        return f"{self.source} -> {self.task}, seed {self.seed}"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return {
            "mode": "warm_start",
            "source": _about(bench, self.source),
            "source_samples": bench.recipe.training.source_samples,
            "target": _about(bench, self.task),
            **_conditions(bench, self.seed),
        }

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return _estimate(bench)

    def measure(self, bench: Bench) -> Outcome:
        """Train from the source's factors."""
        source = source_adapter(bench, self.source, self.seed)
        adapter = bench.runtime.add("warm", bench.spec(self.seed))
        try:
            adapter.add_head(self.task, len(bench.task(self.task).classes))
            adapter.copy_factors(source)
            return _train(bench, adapter, [self.task], self.seed)
        finally:
            bench.runtime.remove(source.name)
            bench.runtime.remove("warm")


@dataclass(frozen=True)
class JointRun:
    """Two tasks with one adapter and a head each; every task has as many samples as alone."""

    tasks: tuple[str, str]
    seed: int
    kind: str = "run"

    @property
    def title(self) -> str:
        """A few words."""
        return f"{' + '.join(self.tasks)}, seed {self.seed}"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        members = [_about(bench, task) for task in sorted(self.tasks)]
        return {"mode": "joint", "members": members, **_conditions(bench, self.seed)}

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return _estimate(bench, 2.2)

    def measure(self, bench: Bench) -> Outcome:
        """Train both, by annealed sampling."""
        adapter = bench.runtime.add("joint", bench.spec(self.seed))
        try:
            for task in sorted(self.tasks):
                adapter.add_head(task, len(bench.task(task).classes))
            return _train(bench, adapter, sorted(self.tasks), self.seed)
        finally:
            bench.runtime.remove("joint")
