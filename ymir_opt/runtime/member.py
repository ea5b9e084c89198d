"""One job in training: what it has done so far, and how that is kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.request import SubmittedJob
from ymir_opt.runtime.adapters import Adapter
from ymir_opt.runtime.checkpoint import save_adapter
from ymir_opt.runtime.dataset import Encoded, JobData, Stream
from ymir_opt.runtime.jobfolder import JobFolder
from ymir_opt.runtime.probing import Point
from ymir_opt.runtime.settings import Settings, settings_of

__all__ = ["Member", "Merge"]

RATE_STEPS = 20


@dataclass
class Merge:
    """A merge that has to prove itself.

    Attributes
    ----------
    group : str
    samples : int
        The member's samples when it began.
    metric : float or None
        Its metric then.
    own_curve : list of (samples, metric)
        What it had shown alone before, counted as the merge counts.
    seconds : float
        Spent in the merge so far.
    passed : bool
    """

    group: str
    samples: int = 0
    metric: float | None = None
    own_curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    passed: bool = False


@dataclass
class Member:
    """A job that a worker trains.

    Attributes
    ----------
    folder : JobFolder
    request : SubmittedJob
    data : JobData
    adapter : str
        Name in the runtime: the job's key, or the joint group's.
    samples : int
        Taken from its stream: with the seed, its whole position.
    rows_per_pass : int
        Rows of a step that are worked through at once; fewer where memory ran out.
    bad : int
        Batches in a row without a finite gradient.
    evaluations : list of dict
        The curve so far.
    best : float or None
    stale : int
        Evaluations since the best.
    started_from : str
        Folder of the weights it started from; empty: its own.
    rejected : list of str
        Groups whose merge was undone for this job.
    merge : Merge or None
    """

    folder: JobFolder
    request: SubmittedJob
    data: JobData
    foundation_model: str
    adapter: str = ""
    samples: int = 0
    rows_per_pass: int = 0
    bad: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    stale: int = 0
    train_loss: float | None = None
    started_from: str = ""
    rejected: list[str] = field(default_factory=list)
    merge: Merge | None = None
    saved_samples: int = 0
    unsaved: int = 0

    def __post_init__(self) -> None:
        self.settings: Settings = settings_of(self.request, len(self.data.train.labels))
        self.stream = Stream(self.request.training.seed, len(self.data.train.labels))
        self.rows_per_pass = self.rows_per_pass or self.settings.batch_size
        self.adapter = self.adapter or self.key
        self._speed: deque[tuple[int, float]] = deque(maxlen=RATE_STEPS)

    @property
    def key(self) -> str:
        """The job's key, also the name of its head."""
        return self.folder.key

    @property
    def metric(self) -> float | None:
        """The last evaluation."""
        return float(self.evaluations[-1]["metric"]) if self.evaluations else None

    @property
    def samples_per_s(self) -> float | None:
        """Training rate over the last steps, evaluations apart."""
        seconds = sum(s for _, s in self._speed)
        return sum(n for n, _ in self._speed) / seconds if seconds > 0 else None

    @property
    def exhausted(self) -> bool:
        """Whether its epochs are done."""
        return self.samples >= self.settings.steps * self.settings.batch_size

    @property
    def points(self) -> list[Point]:
        """The curve as (samples, metric)."""
        return [(int(e["samples"]), float(e["metric"])) for e in self.evaluations]

    def batch(self) -> list[Encoded]:
        """Return the next step's rows, in the parts that are worked through one after another."""
        taken = self.stream.take(self.samples, self.settings.batch_size)
        size = self.rows_per_pass
        return [self.data.train.take(taken[i : i + size]) for i in range(0, len(taken), size)]

    def stepped(self, loss: float, seconds: float, *, updated: bool) -> bool:
        """Count a step; return whether an evaluation is due."""
        before, self.samples = self.samples, self.samples + self.settings.batch_size
        self.bad = 0 if updated else self.bad + 1
        if updated:
            self.train_loss = loss
        self._speed.append((self.settings.batch_size, seconds))
        every = self.settings.eval_every
        return before // every < self.samples // every or self.exhausted

    def evaluated(self, metric: float, loss: float, group: str) -> dict[str, Any]:
        """Note an evaluation and return its line of the curve."""
        entry = {
            "samples": self.samples,
            "metric": metric,
            "loss": loss,
            "train_loss": self.train_loss,
            "group": group,
            "at_s": round(time.time(), 3),
        }
        self.evaluations.append(entry)
        if self.settings.better(metric, self.best):
            self.best, self.stale = metric, 0
        else:
            self.stale += 1
        return entry

    def restart(self, source: str) -> None:
        """Begin again at the first sample, from other weights."""
        self.started_from = source
        self.samples = self.bad = self.stale = self.saved_samples = 0
        self.best = self.train_loss = None
        self.evaluations = []

    def state(self) -> dict[str, Any]:
        """Return everything but weights and optimiser, as JSON values."""
        merge = self.merge
        return {
            "job": self.request.id,
            "foundation_model": self.foundation_model,
            "data_sha256": self.data.sha256,
            "samples": self.samples,
            "rows_per_pass": self.rows_per_pass,
            "bad": self.bad,
            "best": self.best,
            "stale": self.stale,
            "train_loss": self.train_loss,
            "evaluations": list(self.evaluations),
            "started_from": self.started_from,
            "rejected": list(self.rejected),
            "merge": None if merge is None else {**vars(merge), "own_curve": list(merge.own_curve)},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises `InputError` if it was made with other data or another model."""
        place = f"job {self.key}"
        if state["foundation_model"] != self.foundation_model:
            problem = f"its checkpoint is of {state['foundation_model']}, not of {self.foundation_model}"
            raise InputError(place, problem, "run it on its own foundation model")
        if state["data_sha256"] != self.data.sha256:
            raise InputError(
                place, "its data changed since its checkpoint", "restore it, or submit a new job"
            )
        self.samples = self.saved_samples = int(state["samples"])
        self.rows_per_pass = min(int(state["rows_per_pass"]), self.settings.batch_size)
        self.bad, self.stale = int(state["bad"]), int(state["stale"])
        self.best, self.train_loss = state["best"], state["train_loss"]
        self.evaluations = [dict(entry) for entry in state["evaluations"]]
        self.started_from = str(state["started_from"])
        self.rejected = list(state["rejected"])
        merge = state["merge"]
        self.merge = None if merge is None else Merge(**{**merge, "own_curve": _points(merge["own_curve"])})

    def save(self, adapter: Adapter, folder: Path, **more: Any) -> None:
        """Write a checkpoint; raises `InputError` if the disk does not take it."""
        save_adapter(adapter, folder, foundation_model=self.foundation_model, state=self.state(), **more)


def _points(values: Any) -> list[Point]:
    return [(int(samples), float(metric)) for samples, metric in values]
