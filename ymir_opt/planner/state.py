"""What one round leaves to the next: the prices of its GPUs and jobs.

With them the next round's pool is priced well at once, where a round without a past needs a first pool
and its relaxation to find prices. Prices choose candidates and guess duals; they decide nothing, so a state
that fits badly costs time, never soundness.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ymir_opt.candidates.prices import Prices, saving_of
from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.plan import Plan
from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parameters import OBJECTIVE_NAME, OBJECTIVE_VERSION

__all__ = ["SolverMemory", "SolverState", "read_state", "state_path", "write_state"]

FORMAT = "ymir.solver-state.v1"
LEAST_KNOWN = 0.5
"""Share of the jobs that a state must know to be used."""


@dataclass(frozen=True)
class SolverState:
    """Prices in units of the objective, by name.

    Attributes
    ----------
    snapshot_sha256 : str
        Of the snapshot whose plan they belong to.
    gpu : dict of GPU type to float
        Price of one GPU.
    job : dict of job id to float
        Price of covering the job.
    """

    snapshot_sha256: str
    gpu: dict[str, float]
    job: dict[str, float]

    @classmethod
    def of(cls, instance: Instance, prices: Prices, quantum: float, digest: str) -> SolverState:
        """Return the state that prices in quanta amount to."""
        jobs = zip(instance.jobs, prices.job.tolist(), strict=True)
        return cls(
            digest,
            {name: price * quantum for name, price in zip(instance.types, prices.gpu.tolist(), strict=True)},
            {job.id: price * quantum for job, price in jobs},
        )

    def prices(self, instance: Instance, alone: ColumnTable) -> Prices | None:
        """Return the prices of another round in its quanta, None where too little of it is known.

        Parameters
        ----------
        instance : Instance
        alone : ColumnTable
            Columns of single jobs: a new job is worth what it gains alone at the prices of GPUs.
        """
        known = np.array([job.id in self.job for job in instance.jobs], dtype=np.bool_)
        if not all(name in self.gpu for name in instance.types) or known.mean() < LEAST_KNOWN:
            return None
        gpu = np.array([self.gpu[name] for name in instance.types]) / alone.quantum
        job = np.array([self.job.get(job.id, 0.0) for job in instance.jobs]) / alone.quantum
        gain = saving_of(alone) - gpu[alone.type] * alone.gpus
        worth = np.zeros(len(job))
        one = alone.size == 1
        np.maximum.at(worth, alone.jobs[one, 0], gain[one])
        return Prices(gpu, np.where(known, job, worth))


@dataclass
class SolverMemory:
    """What a solve is given of the round before, and what it leaves to the next."""

    before: SolverState | None = None
    after: SolverState | None = None


def state_path(plan: str) -> Path:
    """Return where the state beside a plan lies."""
    return Path(f"{plan}.state.json")


def write_state(path: Path, state: SolverState) -> None:
    """Write a state in one step."""
    data = {
        "format": FORMAT,
        "objective": [OBJECTIVE_NAME, OBJECTIVE_VERSION],
        "snapshot_sha256": state.snapshot_sha256,
        "gpu": state.gpu,
        "job": state.job,
    }
    write_atomic(path, json.dumps(data, allow_nan=False) + "\n")


def read_state(path: Path, previous: Plan) -> SolverState | None:
    """Return the state of a plan; None where there is none, or it is broken or another plan's."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    ours = data.get("objective") == [OBJECTIVE_NAME, OBJECTIVE_VERSION]
    if not ours or data.get("snapshot_sha256") != previous.snapshot_sha256:
        return None
    gpu, job = _prices(data.get("gpu")), _prices(data.get("job"))
    return None if gpu is None or job is None else SolverState(previous.snapshot_sha256, gpu, job)


def _prices(found: Any) -> dict[str, float] | None:
    if not isinstance(found, dict):
        return None
    for price in found.values():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
            return None
    return {name: float(price) for name, price in found.items()}
