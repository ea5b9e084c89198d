"""Themis: leases for the jobs that are furthest from their fair finish time.

* Source: Mahajan et al., NSDI'20, as in Titan's public simulator (SoCC'22).
* Parameters: Leases of 600 s; of the candidates (waiting jobs and expired leases) the 80 % with the largest
  finish-time fairness rho' are offered GPUs, greedily, on the requested counts.
* Cadence: Rounds of 60 s.
* Variants: ``:faithful`` keeps the reference's estimate: rho' = [staying + t(g) attained / deserved] /
  [running deserved / attained + staying - running + t(w)], w = max(1, int(min(G / (2 running jobs), g))), t
  the predicted time (one accumulation step too many), attained service with starting time, running without;
  GPUs of an expired lease that is not among the 80 % count as free although they are kept. ``:fixed``
  counts every active job once in w, uses the time that the throughput implies, and does not give GPUs away
  twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Themis"]

LEASE_S = 600.0
FRACTION = 0.8
TINY = 1e-3


class Themis:
    """Finish-time fairness with leases."""

    def __init__(self, text: str = "") -> None:
        self.fixed = "fixed" in variant("themis", text, ())
        self.name = f"themis:{text}" if text else "themis"
        self.cadence = Cadence.rounds(60.0)
        self.reset()

    def reset(self) -> None:
        """Forget leases and deserved service."""
        self._deserved: dict[int, float] = {}
        self._lease: dict[int, float] = {}
        self._last = -np.inf

    def state(self) -> dict[str, Any]:
        """Return what is kept between rounds, as JSON values."""
        return {
            "deserved": list(self._deserved.items()),
            "lease": list(self._lease.items()),
            "last": None if np.isinf(self._last) else self._last,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        self._deserved = {int(key): float(value) for key, value in state["deserved"]}
        self._lease = {int(key): float(value) for key, value in state["lease"]}
        self._last = -np.inf if state["last"] is None else float(state["last"])

    def decide(self, view: SnapshotView) -> Decision:
        """Renew or end expired leases and start the least fairly treated jobs."""
        size, total = len(view), view.total_gpus
        serial, need = view.column("serial"), view.requested_gpus
        deserved = self._accrue(view, serial, need, total)
        running = view.running
        lease = np.array([self._lease.get(int(s), -np.inf) for s in serial])
        # a job that runs without a lease was started by the last decision
        lease = np.where(running & np.isinf(lease), view.column("last_start_s"), lease)
        expired = running & (view.now_s - lease >= LEASE_S)
        rows = np.concatenate([np.flatnonzero(view.startable), np.flatnonzero(expired)])
        gpus = np.where(running, view.gpus, 0).astype(np.int64)
        started: list[int] = []
        if len(rows):
            rho = self._rho(view, rows, deserved[rows])
            order = rows[np.argsort(1.0 / rho, kind="stable")]
            offered = order[: round(len(order) * FRACTION)]
            free = view.free_gpus + int(need[expired].sum())
            if self.fixed:
                left_out = np.setdiff1d(np.flatnonzero(expired), offered)
                free -= int(need[left_out].sum())
            for row in offered.tolist():
                if need[row] <= free:
                    free -= int(need[row])
                    if running[row]:
                        lease[row] += LEASE_S
                    else:
                        started.append(row)
                        gpus[row] = need[row]
                elif running[row]:
                    gpus[row] = 0
        self._lease = {int(serial[r]): float(lease[r]) for r in range(size) if running[r] and gpus[r]}
        self._last = view.now_s
        waived = frozenset[str]() if self.fixed else frozenset({"capacity"})
        return Decision(gpus, order=np.array(started, dtype=np.int64), waived=waived)

    def _accrue(
        self, view: SnapshotView, serial: NDArray[np.int64], need: NDArray[np.int64], total: int
    ) -> NDArray[np.float64]:
        """Add what every active job deserved since the last round."""
        share = np.minimum(total / (len(view) + TINY), need)
        since = np.maximum(self._last, view.submitted_at_s)
        before = np.array([self._deserved.get(int(s), 0.0) for s in serial])
        deserved: NDArray[np.float64] = before + share * np.maximum(0.0, view.now_s - since)
        self._deserved = dict(zip(serial.tolist(), deserved.tolist(), strict=True))
        return deserved

    def _rho(
        self, view: SnapshotView, rows: NDArray[np.int64], deserved: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        time_s = view.time_s if self.fixed else view.predicted_time_s
        jobs = len(view) if self.fixed else 2 * int(view.running.sum())
        need = view.requested_gpus[rows]
        fair = np.maximum(1, np.minimum(view.total_gpus / (jobs + TINY), need).astype(np.int64))
        attained = view.held_gpu_s[rows]
        staying, running = view.age_s[rows], view.productive_s[rows]
        alone = running * deserved / (attained + TINY) + staying - running + time_s(rows, fair)
        shared = staying + time_s(rows, need) * attained / (deserved + TINY)
        rho = np.where(deserved == 0.0, 1.0, shared / np.maximum(alone, TINY))
        return np.maximum(rho, 1e-12)
