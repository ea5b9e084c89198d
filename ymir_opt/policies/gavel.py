"""Gavel: max-min fairness of effective throughput by linear program, rounded in rounds.

* Source: Narayanan et al., OSDI'20.
* Parameters: X[m, t] is the share of time of job m on GPU type t at its requested count g_m; maximise the
  least normalised throughput sum_t rate X / (rate under an equal share), subject to sum_t X[m, t] <= 1 and
  sum_m g_m X[m, t] <= G_t, with a small weight on the sum so that slack is used. In every round (job, type)
  pairs are taken by decreasing priority X / (share of time received so far) while they fit.
* Cadence: rounds of 360 s.
* Variants: ``:faithful`` and ``:fixed`` are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import SolverError
from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Gavel", "max_min_shares"]

SLACK_WEIGHT = 1e-3


def max_min_shares(
    value: NDArray[np.float64], gpus: NDArray[np.int64], capacity: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return X[m, t] that maximises the least ``sum_t value[m, t] X[m, t]``.

    Parameters
    ----------
    value : float64[M, T]
        Normalised throughput of a full share; 0 where the type is not allowed.
    gpus : int64[M]
    capacity : int64[T]

    Raises
    ------
    SolverError
        HiGHS gave no solution.
    """
    import highspy

    from ymir_opt.solvers.highs_core import new_solver

    jobs, types = value.shape
    pairs = np.argwhere(value > 0)
    served = np.unique(pairs[:, 0])
    m, t = pairs[:, 0], pairs[:, 1]
    number = len(pairs)
    # rows: one share a job, one capacity a type, one least-throughput row a job
    start = np.arange(0, 3 * number + 1, 3)
    index = np.stack([m, jobs + t, jobs + types + m], axis=1).ravel()
    entries = np.stack([np.ones(number), gpus[m].astype(float), value[m, t]], axis=1).ravel()
    start = np.concatenate([start, [3 * number + len(served)]])
    index = np.concatenate([index, jobs + types + served])
    entries = np.concatenate([entries, -np.ones(len(served))])
    top = max(1.0, float(value.max(initial=1.0)))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = number + 1, 2 * jobs + types
    model.sense_ = highspy.ObjSense.kMaximize
    weight = SLACK_WEIGHT / max(1, jobs)
    model.col_cost_ = np.concatenate([weight * value[m, t] / top, [1.0]])
    model.col_lower_ = np.zeros(number + 1)
    model.col_upper_ = np.concatenate([np.ones(number), [np.inf]])
    model.row_lower_ = np.concatenate([np.full(jobs + types, -np.inf), np.zeros(jobs)])
    model.row_upper_ = np.concatenate([np.ones(jobs), capacity.astype(float), np.full(jobs, np.inf)])
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = start.astype(np.int32), index.astype(np.int32)
    model.a_matrix_.value_ = entries
    solver = new_solver()
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise SolverError("gavel", f"HiGHS ended with {solver.getModelStatus()}", "report it")
    shares = np.zeros_like(value)
    shares[m, t] = np.array(solver.getSolution().col_value)[:number]
    return shares


class Gavel:
    """Max-min fairness in rounds."""

    def __init__(self, text: str = "") -> None:
        variant("gavel", text, ())
        self.name = f"gavel:{text}" if text else "gavel"
        self.cadence = Cadence.rounds(360.0)
        self.reset()

    def reset(self) -> None:
        """Forget the time received."""
        self._received: dict[int, list[float]] = {}
        self._last = -np.inf

    def state(self) -> dict[str, Any]:
        """Return what is kept between rounds, as JSON values."""
        last = None if np.isinf(self._last) else self._last
        return {"received": list(self._received.items()), "last": last}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        self._received = {int(key): [float(x) for x in value] for key, value in state["received"]}
        self._last = -np.inf if state["last"] is None else float(state["last"])

    def decide(self, view: SnapshotView) -> Decision:
        """Solve for the shares and serve those that are furthest behind."""
        types = len(view.speed.types)
        received = self._account(view, types)
        gpus = np.zeros(len(view), dtype=np.int64)
        kinds = np.full(len(view), -1, dtype=np.int64)
        need = view.requested_gpus
        rows = np.flatnonzero((view.startable | view.running) & (need <= view.total_gpus))
        if not len(rows):
            return Decision(gpus)
        mask = view.column("type_mask")[rows]
        rate = np.zeros((len(rows), types))
        for t in range(types):
            time_s = view.time_s(rows, need[rows], t)
            allowed = np.isfinite(time_s) & (mask >> t & 1 == 1) & (need[rows] <= view.type_gpus[t])
            rate[allowed, t] = 1.0 / np.maximum(time_s[allowed], 1e-9)
        equal = rate @ (view.type_gpus / view.total_gpus)
        value = np.divide(rate, equal[:, None], out=np.zeros_like(rate), where=equal[:, None] > 0)
        # as in the reference, a job's throughput counts in proportion to its GPUs
        share = max_min_shares(value * need[rows][:, None], need[rows], view.type_gpus)
        fraction = received[rows] / np.maximum(view.age_s[rows], 1.0)[:, None]
        priority = np.where(share > 1e-9, share / np.maximum(fraction, 1e-6), -1.0)
        free = view.type_gpus.copy()
        order = []
        flat = np.argsort(-priority.ravel(), kind="stable")
        for pair in flat.tolist():
            m, t = divmod(pair, types)
            row = int(rows[m])
            if priority[m, t] > 0 and not gpus[row] and need[row] <= free[t]:
                gpus[row], kinds[row] = need[row], t
                free[t] -= need[row]
                order.append(row)
        return Decision(gpus, gpu_type=kinds, order=np.array(order, dtype=np.int64))

    def _account(self, view: SnapshotView, types: int) -> NDArray[np.float64]:
        """Add the time since the last round; return seconds received, float64[n, T]."""
        passed = view.now_s - np.maximum(self._last, view.column("last_start_s"))
        received = np.zeros((len(view), types))
        for row, serial in enumerate(view.column("serial").tolist()):
            before = self._received.get(serial)
            if before is not None:
                received[row] = before
            if view.gpus[row]:
                received[row, view.gpu_type[row]] += max(0.0, float(passed[row]))
        serials = view.column("serial").tolist()
        self._received = dict(zip(serials, received.tolist(), strict=True))
        self._last = view.now_s
        return received
