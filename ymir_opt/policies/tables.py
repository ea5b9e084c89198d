"""What a policy is told about speed and transfer: estimates by throughput key and job class."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["SpeedTable", "TransferTable"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class SpeedTable:
    """Estimated speed of every throughput key.

    Attributes
    ----------
    types : tuple of str
        GPU type names; index ``t``.
    names : tuple of (str, int)
        (foundation model, global batch) of each key ``k``.
    rate : float64[K, T, G + 1]
        Samples/s by GPU count on a packed placement; 0 at count 0 and where unknown.
    predicted : float64[K, T, G + 1]
        Seconds a sample as Titan's simulator predicts them (one accumulation step too many); inf where
        unknown. Only faithful reproductions use it.
    cold_s, warm_s : float64[K, T]
        Seconds of a cold and a warm start; ``rigid_start_s`` for jobs without a key.
    memory_gib : float64[K, T, G + 1]
        Memory per GPU, nan unknown.
    gpu_memory_gib : float64[T]
        Memory of a GPU of each type.
    """

    types: tuple[str, ...]
    names: tuple[tuple[str, int], ...]
    rate: FloatArray
    predicted: FloatArray
    cold_s: FloatArray
    warm_s: FloatArray
    memory_gib: FloatArray
    gpu_memory_gib: FloatArray
    rigid_start_s: float = 0.0

    @property
    def counts(self) -> int:
        """Return the largest GPU count of the table."""
        return int(self.rate.shape[2]) - 1

    def key_of(self, model: str, batch: int) -> int:
        """Return the key of (foundation model, batch), or -1."""
        try:
            return self.names.index((model, batch))
        except ValueError:
            return -1


@dataclass(frozen=True)
class TransferTable:
    """Estimated transfer between job classes (a class is model, task, setting, target, batch).

    Attributes
    ----------
    models, tasks : tuple of str
        Foundation model and task of each class ``c``.
    warm : float64[C, C]
        ``warm[i, j]``: work of class i started from class j's weights, over its work alone; nan unknown.
    joint : float64[C, C]
        ``joint[i, j]``: work of class i trained jointly with class j, over its work alone; nan unknown.
    share : float64[C, C]
        ``share[i, j]``: speed of class i on one GPU shared with class j, over its speed alone; nan unknown.
    batches : tuple of int
        Global batch of each class.
    share_gib : float64[C, C]
        Memory of both together on one GPU; nan unknown.
    log_sd : float
        Standard deviation of the logarithm of the ratios' errors, as the estimator knows it.
    """

    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    warm: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    joint: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    share: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    share_gib: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    log_sd: float = 0.0
