"""Gavel's fractional program on a snapshot: maximise the sum of normalised throughputs.

Run ``python solver_runs/gavel_lp.py SNAPSHOT``. ``X[j, t]`` is the share of time that job j runs on type t
at its requested count; ``sum_t X[j, t] <= 1`` and ``sum_j count_j X[j, t] <= GPUs_t`` (D. Narayanan et al.,
*Heterogeneity-aware cluster scheduling policies for deep learning workloads*, OSDI 2020, without space
sharing).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance


def shares(snapshot: Snapshot) -> tuple[str, float]:
    """Return the program's status and its value."""
    import cvxpy

    instance = Instance.of(snapshot)
    jobs = Evaluator(instance, Estimates(snapshot)).jobs
    count = np.minimum(jobs.requested, jobs.max)
    every = np.arange(jobs.count)
    rate = np.column_stack(
        [jobs.rate_or_largest(every, np.full(jobs.count, t), count) for t in range(len(instance.types))]
    )
    rate = np.nan_to_num(rate)
    normal = rate / np.maximum(rate.max(axis=1, keepdims=True), 1e-12)
    gpus = np.bincount(instance.gpu_type[instance.gpu_ready], minlength=len(instance.types))
    share = cvxpy.Variable(normal.shape, nonneg=True)
    limits = [cvxpy.sum(share, axis=1) <= 1, count @ share <= gpus]
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(cvxpy.multiply(normal, share))), limits)
    problem.solve()
    return str(problem.status), float(problem.value)


def main() -> None:
    path = Path(sys.argv[1])
    print(*shares(parse_snapshot(path.read_bytes(), str(path))))


if __name__ == "__main__":
    main()
