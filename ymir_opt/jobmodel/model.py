"""The job model of one data folder: speed, memory, switch cost, work and transfer of a job.

Everything here is a measured table or follows from one by a stated rule; what was not measured is None
or an :class:`~ymir_opt.domain.errors.InputError`, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.jobmodel.curves import MAX_EPOCHS, Curves, Reach, Setting
from ymir_opt.jobmodel.memory import MemoryTable, SharingTable, read_switch_s
from ymir_opt.jobmodel.throughput import Iteration, StepTable, packed
from ymir_opt.jobmodel.workload import WorkloadJob

__all__ = ["RESTART_S", "SAMPLES_PER_EPOCH", "JobModel", "TransferRatio", "Work"]

RESTART_S = 30.0
"""Seconds of every (re)allocation besides the model's context switch."""

SAMPLES_PER_EPOCH: dict[str, int] = {
    "wnli": 159,
    "rte": 623,
    "mrpc": 917,
    "stsb": 1438,
    "sst2": 16838,
    "qnli": 26186,
    "qqp": 90962,
    "mnli": 98176,
    "snli": 137344,
    "ag_news": 30000,
    "wikitext-103": 59061,
    "Bingsu#Cat_and_Dog": 8000,
    "frgfm#imagenette": 9469,
    "Bingsu#Human_Action_Recognition": 12600,
    "cifar100": 50000,
    "fashion_mnist": 60000,
    "mnist": 60000,
    "food101": 75750,
    "imagenet-split-0": 25000,
    "imagenet-split-1": 75000,
    "imagenet-split-2": 100000,
}
"""Samples of one epoch, by task, as Titan's simulator counts them."""

Against = Literal["trace", "best_single"]


@dataclass(frozen=True)
class Work:
    """Samples that a job trains until its target.

    Attributes
    ----------
    samples : float
        Samples per epoch times `epochs`.
    epochs : float
        First epoch at which the target is reached, at most ten.
    reached : bool
        False: the curve never reaches the target; the job ends at the limit of ten epochs.
    """

    samples: float
    epochs: float
    reached: bool


@dataclass(frozen=True)
class TransferRatio:
    """Work with a transfer over work alone, to the same target.

    Attributes
    ----------
    ratio : float
        Epochs with the transfer over epochs alone; below 1 the transfer saves work. With a censored
        numerator it is a lower limit, with a censored denominator an upper limit of the true ratio.
    with_transfer, alone : Reach
    against : {"trace", "best_single"}
        Whether "alone" is the trace's own setting or the best measured single-task setting.
    setting : (str, int)
        The learning rate and accumulation of "alone".
    matched_hyperparameters : bool
        Always False here: the setting of the transfer runs was not recorded.
    """

    ratio: float
    with_transfer: Reach
    alone: Reach
    against: Against
    setting: Setting
    matched_hyperparameters: bool = False


class JobModel:
    """Tables and curves of one profile folder (``curves/`` and ``lut/<GPU type>/``).

    Tables are read on first use. Methods that take `placement` accept the number of GPUs (packed on
    nodes of `node_gpus`) or the GPUs on each node.

    Parameters
    ----------
    folder : Path or str
        The folder that holds ``curves`` and ``lut``.
    node_gpus : int
        GPUs of a node, for packed placements.
    """

    def __init__(self, folder: Path | str, node_gpus: int = 4) -> None:
        self.folder = Path(folder)
        self.node_gpus = node_gpus
        if not (self.folder / "lut").is_dir():
            raise NotFoundError(
                str(self.folder), "has no folder 'lut'", "name the folder with lut/ and curves/"
            )
        self._tables: dict[tuple[str, str], StepTable] = {}
        self._memory: dict[tuple[str, str], MemoryTable | None] = {}
        self._sharing: dict[tuple[str, str], SharingTable | None] = {}
        self._switch: dict[tuple[str, str], float] = {}
        self._curves: Curves | None = None

    @property
    def curves(self) -> Curves:
        """Return the learning curves (read on first use)."""
        if self._curves is None:
            self._curves = Curves.read(self.folder / "curves")
        return self._curves

    def gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types with tables, sorted."""
        return tuple(sorted(p.name for p in (self.folder / "lut").iterdir() if p.is_dir()))

    def models(self, gpu_type: str = "V100") -> tuple[str, ...]:
        """Return the foundation models with step times on a GPU type, sorted."""
        suffix = "_placements.csv"
        files = (self.folder / "lut" / gpu_type).glob(f"*{suffix}")
        return tuple(sorted(p.name.removesuffix(suffix) for p in files))

    def _path(self, model: str, gpu_type: str, table: str) -> Path:
        if "/" in model or "/" in gpu_type or ".." in (model, gpu_type):
            raise NotFoundError(f"{model} on {gpu_type}", "is not a table's name", "check the name")
        return self.folder / "lut" / gpu_type / f"{model}_{table}.csv"

    def step_table(self, model: str, gpu_type: str = "V100") -> StepTable:
        """Return the step times of a model on a GPU type.

        Raises
        ------
        NotFoundError
            There is no such table.
        """
        key = (model, gpu_type)
        if key not in self._tables:
            path = self._path(model, gpu_type, "placements")
            if not path.exists():
                known = ", ".join(self.models(gpu_type)) or f"types {', '.join(self.gpu_types())}"
                raise NotFoundError(f"{model} on {gpu_type}", "has no step times", f"known: {known}")
            self._tables[key] = StepTable(path, self._path(model, gpu_type, "scalability"))
        return self._tables[key]

    def batch_limits(self, model: str, gpu_type: str = "V100") -> tuple[int, int]:
        """Return the smallest and largest local batch of the step table."""
        table = self.step_table(model, gpu_type)
        return table.smallest_batch, table.largest_batch

    def max_gpus(self, model: str, batch_size: int, limit: int = 32) -> int:
        """Return ``min(limit, floor(batch / bmin))``, at least 1 (bmin is the same on both GPU types)."""
        gpu_type = "V100" if "V100" in self.gpu_types() else self.gpu_types()[0]
        return max(1, min(limit, batch_size // self.batch_limits(model, gpu_type)[0]))

    def placement(self, gpus: int | tuple[int, ...]) -> tuple[int, ...]:
        """Return the GPUs on each node for a count (packed) or a placement (as given)."""
        return packed(gpus, self.node_gpus) if isinstance(gpus, int) else gpus

    def iteration(
        self, model: str, batch_size: int, gpus: int | tuple[int, ...], gpu_type: str = "V100"
    ) -> Iteration | None:
        """Return one optimiser step of a job, or None outside the measured range of placements."""
        return self.step_table(model, gpu_type).iteration(self.placement(gpus), batch_size)

    def samples_per_s(
        self, model: str, batch_size: int, gpus: int | tuple[int, ...], gpu_type: str = "V100"
    ) -> float | None:
        """Return a job's throughput in samples/s (the task does not matter), or None if unmeasured.

        Parameters
        ----------
        model : str
            Foundation model.
        batch_size : int
            Global batch, samples.
        gpus : int or tuple of int
            GPU count (packed on the fewest nodes) or the GPUs on each node.
        gpu_type : str
        """
        found = self.iteration(model, batch_size, gpus, gpu_type)
        return None if found is None else found.samples_per_s

    def memory_gib(
        self, model: str, batch_size: int, gpus: int | tuple[int, ...], gpu_type: str = "V100"
    ) -> float | None:
        """Return the memory per GPU (the table's GB, taken as GiB), or None outside the measured range."""
        table = self.memory_table(model, gpu_type)
        found = self.iteration(model, batch_size, gpus, gpu_type)
        return None if table is None or found is None else table.at(found.local_batch)

    def memory_table(self, model: str, gpu_type: str = "V100") -> MemoryTable | None:
        """Return memory by local batch, or None if it was not measured."""
        key = (model, gpu_type)
        if key not in self._memory:
            path = self._path(model, gpu_type, "memory")
            self._memory[key] = MemoryTable.read(path) if path.exists() else None
        return self._memory[key]

    def sharing_table(self, model: str, gpu_type: str = "V100") -> SharingTable | None:
        """Return the measured pairs that share one GPU, or None if there are none."""
        key = (model, gpu_type)
        if key not in self._sharing:
            path = self._path(model, gpu_type, "sharing")
            self._sharing[key] = SharingTable.read(path) if path.exists() else None
        return self._sharing[key]

    def shared_speed(
        self, model: str, batches: tuple[int, int], gpu_type: str = "V100"
    ) -> tuple[float, float] | None:
        """Return each job's speed on a shared GPU over its speed alone there, or None if unmeasured.

        Parameters
        ----------
        model : str
        batches : (int, int)
            Local batches of the two jobs (one GPU, no accumulation).
        gpu_type : str
        """
        table = self.sharing_table(model, gpu_type)
        pair = None if table is None else table.step_s(*batches)
        if pair is None:
            return None
        alone = [self.step_table(model, gpu_type).step_sync((1,), batch) for batch in batches]
        if alone[0] is None or alone[1] is None:
            return None
        return alone[0][0] / pair[0], alone[1][0] / pair[1]

    def context_switch_s(self, model: str, gpu_type: str = "V100") -> float:
        """Return the measured context switch of a model, seconds."""
        key = (model, gpu_type)
        if key not in self._switch:
            self._switch[key] = read_switch_s(self._path(model, gpu_type, "context_switch"))
        return self._switch[key]

    def cold_start_s(self, model: str, gpu_type: str = "V100") -> float:
        """Return what every (re)allocation costs: 30 s and the context switch, with the GPUs held."""
        return RESTART_S + self.context_switch_s(model, gpu_type)

    def samples_per_epoch(self, task: str) -> int:
        """Return the samples of one epoch of a task.

        Raises
        ------
        NotFoundError
            The task is not in the table.
        """
        try:
            return SAMPLES_PER_EPOCH[task]
        except KeyError:
            known = ", ".join(sorted(SAMPLES_PER_EPOCH))
            raise NotFoundError(
                f"task {task[:60]!r}", "has no samples per epoch", f"known: {known}"
            ) from None

    def work(self, job: WorkloadJob) -> Work:
        """Return the samples that the job trains to its target, alone and with its own setting.

        Raises
        ------
        InputError
            The job's (model, task, learning rate, accumulation) has no curve.
        """
        reach = self.curves.alone(job.model, job.task, job.setting, job.target)
        if reach is None:
            raise InputError(
                f"job {job.name[:60]!r}",
                f"no curve of {job.model}@{job.task} at lr {job.learning_rate}, {job.accumulation} steps",
                "use a measured setting",
            )
        return Work(self.samples_per_epoch(job.task) * reach.epochs, reach.epochs, reach.reached)

    def _alone(self, job: WorkloadJob, against: Against) -> tuple[Setting, Reach] | None:
        if against == "best_single":
            return self.curves.best_alone(job.model, job.task, job.target)
        reach = self.curves.alone(job.model, job.task, job.setting, job.target)
        return None if reach is None else (job.setting, reach)

    def _ratio(self, job: WorkloadJob, reach: Reach | None, against: Against) -> TransferRatio | None:
        alone = self._alone(job, against)
        if reach is None or alone is None:
            return None
        return TransferRatio(reach.epochs / alone[1].epochs, reach, alone[1], against, alone[0])

    def temporal_ratio(
        self, job: WorkloadJob, source_task: str, against: Against = "trace"
    ) -> TransferRatio | None:
        """Return the work ratio of `job` started from `source_task`'s weights; None if not measured."""
        return self._ratio(job, self.curves.after(job.model, source_task, job.task, job.target), against)

    def joint_ratio(
        self, job: WorkloadJob, other_task: str, against: Against = "trace"
    ) -> TransferRatio | None:
        """Return the work ratio of `job` trained jointly with `other_task`; None if not measured.

        Both numbers count epochs of the job's own data. The joint curves were recorded with every task's
        data visited once an epoch.
        """
        return self._ratio(job, self.curves.jointly(job.model, job.task, other_task, job.target), against)

    @staticmethod
    def max_epochs() -> float:
        """Return the epoch limit of every job."""
        return MAX_EPOCHS
