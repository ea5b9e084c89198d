"""Objective version 1, one named function a term (minimised; seconds, GPU-seconds and weights in).

With ``F_i(c)`` the seconds from ``taken_at_s`` to job i's completion in column c, switch included::

    U_i         = w_i sqrt(x_i + x0)
    E_i(c)      = max(F_i(c), D0) / (kappa if c keeps the job exactly as it runs, else 1)
    cost_i(c)   = U_i [kappa/D0 - 1/E_i(c)] + deadline term
    cost_i(queued) = U_i kappa/D0 + deadline term + preemption term

All costs are at least 0 and bounded. Source: the experiment on the twelve Titan traces described in
``docs/formulation.md``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.jobs import JobTable
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.rowwise import sum_of

__all__ = [
    "admitted",
    "deadline_penalty",
    "deadline_slack",
    "effective_completion",
    "expected",
    "preemption_penalty",
    "probe_cost_s",
    "progress_value",
    "queued_value",
    "transfer_credit",
]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def expected(point: FloatArray, high: FloatArray, p: Parameters) -> FloatArray:
    """Mix a completion with its pessimistic twin: ``(1 - k) F(W) + k F(W_high)``."""
    return (1 - p.uncertainty) * point + p.uncertainty * high


def probe_cost_s(run_s: FloatArray, cold_s: FloatArray, p: Parameters) -> FloatArray:
    """Return what a failed probe costs: the share of the merged run it wastes, and a restart."""
    return p.probe_work_fraction * run_s + cold_s


def effective_completion(finish_s: FloatArray, keep: BoolArray | bool, p: Parameters) -> FloatArray:
    """Return ``E = max(F, D0) / (kappa if kept else 1)``, seconds."""
    return np.asarray(np.maximum(finish_s, p.d0_s) / np.where(keep, p.kappa, 1.0))


def progress_value(
    importance: FloatArray, finish_s: FloatArray, keep: BoolArray | bool, p: Parameters
) -> FloatArray:
    """Return ``U (kappa/D0 - 1/E)``: 0 for a kept job that ends within D0, U kappa/D0 for never."""
    return np.asarray(importance * (p.kappa / p.d0_s - 1.0 / effective_completion(finish_s, keep, p)))


def deadline_penalty(
    importance: FloatArray, finish_s: FloatArray, slack_s: FloatArray, round_s: float, p: Parameters
) -> FloatArray:
    """Return ``U (kappa/D0) min(1, max(0, F - slack) / (30 round_s))``; slack is deadline - now."""
    if not p.deadlines:
        return np.zeros(np.broadcast(importance, finish_s).shape)
    with np.errstate(over="ignore", invalid="ignore"):
        late = np.maximum(0.0, finish_s - slack_s) / (p.deadline_horizon_rounds * round_s)
    late = np.where(np.isfinite(slack_s), np.minimum(1.0, np.where(np.isnan(late), 1.0, late)), 0.0)
    return np.asarray(importance * (p.kappa / p.d0_s) * late)


def queued_value(
    importance: FloatArray, has_deadline: BoolArray, preemption: FloatArray, p: Parameters
) -> FloatArray:
    """Return the cost of leaving each job out: ``U kappa/D0``, full deadline and preemption terms."""
    full = importance * (p.kappa / p.d0_s)
    return np.asarray(
        full + (full if p.deadlines else 0.0) * has_deadline + (preemption if p.preemption else 0.0)
    )


def preemption_penalty(
    importance: FloatArray, keep_finish_s: FloatArray, cold_s: FloatArray, lost_s: FloatArray, p: Parameters
) -> FloatArray:
    """Return ``U [1/E(keep) - 1/max(F(keep) + cold + lost, D0)]`` for running jobs."""
    kept = 1.0 / effective_completion(keep_finish_s, True, p)
    again = 1.0 / np.maximum(keep_finish_s + cold_s + lost_s, p.d0_s)
    return np.asarray(importance * (kept - again))


def transfer_credit(
    importance: FloatArray, with_s: FloatArray, without_s: FloatArray, p: Parameters
) -> FloatArray:
    """Return a waiting sequence member's credit: ``U [1/max(F_with, D0) - 1/max(F_without, D0)]``."""
    return np.asarray(importance * (1.0 / np.maximum(with_s, p.d0_s) - 1.0 / np.maximum(without_s, p.d0_s)))


def admitted(
    weight: FloatArray, finish_s: FloatArray, alone_s: FloatArray, start_s: FloatArray, present: BoolArray
) -> BoolArray:
    """Say which shared columns exist: ``sum w F < sum w C``.

    ``C`` are the completions when the members run alone, one after the other on the same GPUs, in
    the order of least remaining time / w, each paying its start: the papers' TranWt > 1, generalised
    to groups.

    Parameters
    ----------
    weight, finish_s, alone_s, start_s : float64[M, K]
        ``alone_s`` is the run alone on the same GPUs, ``start_s`` its start.
    present : bool[M, K]
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        key = np.where(present, alone_s / weight, np.inf)
    order = np.argsort(key, axis=1, kind="stable")
    duration = np.where(present, alone_s + start_s, 0.0)
    ordered = np.take_along_axis(duration, order, axis=1)
    weights = np.take_along_axis(np.where(present, weight, 0.0), order, axis=1)
    serial = sum_of(np.cumsum(ordered, axis=1) * weights)
    shared = sum_of(np.where(present, weight * finish_s, 0.0))
    return np.asarray(shared < serial * (1 - 1e-12))


def deadline_slack(jobs: JobTable) -> FloatArray:
    """Return seconds from now to each job's deadline; inf without one."""
    now = jobs.instance.snapshot.taken_at_s
    return np.array(
        [np.inf if j.deadline_s is None else j.deadline_s - now for j in jobs.instance.jobs], dtype=np.float64
    )
