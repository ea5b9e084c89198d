"""A small integer program for the baselines: one option a job, capacities, least cost.

minimise    sum_c cost[c] x[c]
subject to  sum of x over the columns of job j          = 1   for every job
            sum of gpus[c] x[c] over the columns of type t <= capacity[t]
            x binary
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError

__all__ = ["choose"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MAX_NODES = 20_000


def choose(
    members: Sequence[Sequence[int]],
    cost: FloatArray,
    gpus: IntArray,
    capacity: IntArray,
    gpu_type: IntArray | None = None,
    *,
    jobs: int,
    gap: float = 0.0,
    seed: int = 0,
) -> IntArray:
    """Return the chosen columns (HiGHS, one thread, node limit instead of a clock).

    Parameters
    ----------
    members : sequence of sequences of int
        Jobs of each column; every job needs a column without GPUs.
    cost : float64[m]
    gpus : int64[m]
    capacity : int64[T]
    gpu_type : int64[m] or None
        None: all of type 0.
    jobs : int
    gap : float
        Relative gap at which the search may stop.
    seed : int

    Raises
    ------
    SolverError
        HiGHS found no solution.
    """
    import highspy

    from ymir_opt.solvers.highs_core import new_solver

    columns, types = len(cost), len(capacity)
    kinds = np.zeros(columns, dtype=np.int64) if gpu_type is None else gpu_type
    lengths = np.array([len(m) for m in members], dtype=np.int64)
    held = gpus > 0
    starts = np.concatenate([[0], np.cumsum(lengths + held)])
    index = np.empty(starts[-1], dtype=np.int32)
    value = np.ones(starts[-1])
    for column, rows in enumerate(members):
        begin = starts[column]
        index[begin : begin + len(rows)] = rows
    last = starts[1:][held] - 1
    index[last] = jobs + kinds[held]
    value[last] = gpus[held]

    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, jobs + types
    model.col_cost_ = cost
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.ones(columns)
    model.row_lower_ = np.concatenate([np.ones(jobs), np.full(types, -np.inf)])
    model.row_upper_ = np.concatenate([np.ones(jobs), capacity.astype(np.float64)])
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = starts.astype(np.int32)
    model.a_matrix_.index_, model.a_matrix_.value_ = index, value
    model.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver = new_solver()
    for name, setting in (
        ("random_seed", seed),
        ("mip_rel_gap", gap),
        ("mip_abs_gap", 0.0),
        ("mip_max_nodes", MAX_NODES),
    ):
        solver.setOptionValue(name, setting)
    solver.passModel(model)
    solver.run()
    solution = np.array(solver.getSolution().col_value)
    if len(solution) != columns or solver.getInfo().primal_solution_status != 2:
        raise SolverError("choose", f"HiGHS ended with {solver.getModelStatus()}", "report it")
    return np.flatnonzero(solution > 0.5)
