"""What one round leaves to the next: the prices of its GPUs and jobs, and the groups that paid at them.

With them the next round's pool is good at once, where a round without a past needs a first pool and its
relaxation to find prices. They choose candidates and guess duals; they decide nothing, so a state that fits
badly costs time, never soundness.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.prices import Prices, saving_of, worthwhile
from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import MAX_MEMBERS, MODES, ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parameters import OBJECTIVE_NAME, OBJECTIVE_VERSION

__all__ = ["SolverMemory", "SolverState", "read_state", "state_path", "write_state"]

FORMAT = "ymir.solver-state.v2"
LEAST_KNOWN = 0.5
"""Share of the jobs that a state must know to be used."""
GROUPS_PER_JOB = 4
"""Groups left to the next round, for each job those of the highest reduced profit."""

Groups = tuple[tuple[Mode, tuple[str, ...]], ...]


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
    groups : tuple of (mode, job ids)
        Those worth the most at these prices; in a sequence in their order.
    """

    snapshot_sha256: str
    gpu: dict[str, float]
    job: dict[str, float]
    groups: Groups = ()

    @classmethod
    def of(cls, instance: Instance, prices: Prices, table: ColumnTable, digest: str) -> SolverState:
        """Return what prices in quanta and a round's columns amount to."""
        jobs = zip(instance.jobs, prices.job.tolist(), strict=True)
        gpus = zip(instance.types, prices.gpu.tolist(), strict=True)
        names = [job.id for job in instance.jobs]
        best = worthwhile(table, prices, GROUPS_PER_JOB)
        rows = zip(table.mode[best].tolist(), table.jobs[best].tolist(), strict=True)
        # one set may be there with several counts
        groups = dict.fromkeys((MODES[mode], tuple(names[j] for j in row if j >= 0)) for mode, row in rows)
        return cls(
            digest,
            {name: price * table.quantum for name, price in gpus},
            {job.id: price * table.quantum for job, price in jobs},
            tuple(groups),
        )

    def sets(self, instance: Instance) -> list[tuple[Mode, NDArray[np.int64]]]:
        """Return the groups whose jobs are still there, int64[M, K] by mode and size."""
        found: dict[tuple[Mode, int], list[list[int]]] = {}
        for mode, names in self.groups:
            if all(name in instance.job_row for name in names):
                rows = [instance.job_row[name] for name in names]
                found.setdefault((mode, len(rows)), []).append(rows)
        return [(mode, np.array(rows, dtype=np.int64)) for (mode, _), rows in found.items()]

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
        "groups": [[mode.value, *names] for mode, names in state.groups],
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
    groups = _groups(data.get("groups"))
    if gpu is None or job is None or groups is None:
        return None
    return SolverState(previous.snapshot_sha256, gpu, job, groups)


def _groups(found: Any) -> Groups | None:
    if not isinstance(found, list):
        return None
    modes = {mode.value: mode for mode in Mode}
    out = []
    for row in found:
        if not isinstance(row, list) or not all(isinstance(name, str) for name in row):
            return None
        if len(set(row[1:])) != len(row) - 1 or not 2 < len(row) <= 1 + MAX_MEMBERS or row[0] not in modes:
            return None
        out.append((modes[row[0]], tuple(row[1:])))
    return tuple(out)


def _prices(found: Any) -> dict[str, float] | None:
    if not isinstance(found, dict):
        return None
    for price in found.values():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
            return None
    return {name: float(price) for name, price in found.items()}
