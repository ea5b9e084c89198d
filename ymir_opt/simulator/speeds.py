"""True speeds: from a job model's tables, and of rigid jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ymir_opt.jobmodel import JobModel

__all__ = ["UNKNOWN_MEMORY_GIB", "ModelSpeeds", "RigidSpeeds", "Speeds"]

UNKNOWN_MEMORY_GIB = 80.0


class Speeds(Protocol):
    """True speeds.

    Attributes
    ----------
    types : tuple of str
        GPU types with speeds.
    """

    types: tuple[str, ...]

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: str) -> float:
        """Return samples/s of a job on a placement (0: cannot run)."""
        ...

    def predicted(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return seconds a sample as the reference predicts them (inf: unknown)."""
        ...

    def start_s(self, model: str, gpu_type: str, warm: bool) -> float:
        """Return the seconds of a cold or warm start."""
        ...

    def memory_gib(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return memory per GPU on a packed placement (nan: unknown)."""
        ...

    def gpu_memory_gib(self, gpu_type: str) -> float:
        """Return the memory of a GPU."""
        ...


@dataclass
class ModelSpeeds:
    """Speeds from a job model's tables.

    Parameters
    ----------
    model : JobModel
    types : tuple of str
    warm_s : float or None
        Seconds of a start on GPUs that already hold the model; None: the same as a cold one (the tables
        do not say what a warm start costs).
    restart_s : float
        Part of a cold start besides the context switch.
    """

    model: JobModel
    types: tuple[str, ...]
    warm_s: float | None = None
    restart_s: float = 30.0

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: str) -> float:
        """Return samples/s on a placement; 0 outside the measured range."""
        return self.model.samples_per_s(model, batch, placement, gpu_type) or 0.0

    def predicted(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return the reference's seconds a sample on a packed placement."""
        found = self.model.iteration(model, batch, gpus, gpu_type)
        return float("inf") if found is None else found.predicted_seconds / found.samples

    def start_s(self, model: str, gpu_type: str, warm: bool) -> float:
        """Return the seconds of a start."""
        if warm and self.warm_s is not None:
            return self.warm_s
        return self.restart_s + self.model.context_switch_s(model, gpu_type)

    def memory_gib(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return the measured memory per GPU; below the smallest measured batch that batch's."""
        table = self.model.memory_table(model, gpu_type)
        found = self.model.iteration(model, batch, gpus, gpu_type)
        if table is None or found is None:
            return float("nan")
        memory = table.at(max(float(found.local_batch), float(table.batch[0])))
        return float("nan") if memory is None else memory

    def gpu_memory_gib(self, gpu_type: str) -> float:
        """Return the most memory that any table of the type was measured with: so much there is."""
        tables = [self.model.memory_table(name, gpu_type) for name in self.model.models(gpu_type)]
        return max((float(t.gib[-1]) for t in tables if t is not None), default=UNKNOWN_MEMORY_GIB)


@dataclass
class RigidSpeeds:
    """Rigid jobs only: speed one at the requested count on every type."""

    types: tuple[str, ...]
    restart_s: float = 0.0

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: str) -> float:
        """Return 1: a second of work a second."""
        return 1.0

    def predicted(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return 1."""
        return 1.0

    def start_s(self, model: str, gpu_type: str, warm: bool) -> float:
        """Return the restart cost."""
        return self.restart_s

    def memory_gib(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        """Return nan: unknown."""
        return float("nan")

    def gpu_memory_gib(self, gpu_type: str) -> float:
        """Return a placeholder that excludes nothing."""
        return UNKNOWN_MEMORY_GIB
