"""Sia: an integer program over GPU types and counts, with a factor for restarts.

* Source: Jayaram Subramanya et al., SOSP'23, restated for jobs with a fixed global batch (goodput is then
  throughput).
* Parameters: configurations are powers of two inside a node and whole nodes beyond; minimise the sum of
  (throughput over the job's smallest)^p with p = -0.5 plus 1.1 for every job without GPUs; a configuration
  other than the present one counts r x throughput, r = (age - restarts S) / (age + S) with S the start; a new
  job begins at its smallest count and no job more than doubles in a round.
* Cadence: rounds of 60 s.
* Variants: ``:faithful`` and ``:fixed`` are the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.choose import choose
from ymir_opt.policies.view import RIGID, Decision, SnapshotView

__all__ = ["Sia"]

POWER = -0.5
QUEUED = 1.1
GAP = 1e-4


class Sia:
    """Normalised throughput by MILP."""

    def __init__(self, text: str = "") -> None:
        variant("sia", text, ())
        self.name = f"sia:{text}" if text else "sia"
        self.cadence = Cadence.rounds(60.0)

    def reset(self) -> None:
        """Keep no state."""

    def decide(self, view: SnapshotView) -> Decision:
        """Solve the round's program."""
        gpus = np.zeros(len(view), dtype=np.int64)
        kinds = np.full(len(view), -1, dtype=np.int64)
        rows = np.flatnonzero(view.startable | view.running)
        if not len(rows) or not view.total_gpus:
            return Decision(gpus)
        job, count, kind = self._options(view, rows)
        cost = self._costs(view, rows, job, count, kind)
        number = len(rows)
        job = np.concatenate([job, np.arange(number)])
        count = np.concatenate([count, np.zeros(number, dtype=np.int64)])
        kind = np.concatenate([kind, np.zeros(number, dtype=np.int64)])
        cost = np.concatenate([cost, np.full(number, QUEUED)])
        members = [(j,) for j in job.tolist()]
        chosen = choose(members, cost, count, view.type_gpus, kind, jobs=number, gap=GAP)
        gpus[rows[job[chosen]]] = count[chosen]
        kinds[rows[job[chosen]]] = np.where(count[chosen] > 0, kind[chosen], -1)
        return Decision(gpus, gpu_type=kinds, order=rows)

    @staticmethod
    def _options(
        view: SnapshotView, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (job, count, type) of every configuration."""
        least, most, held = view.min_gpus[rows], view.max_gpus[rows], view.gpus[rows]
        rigid = view.key[rows] == RIGID
        limit = np.where(held > 0, np.minimum(2 * held, most), least)
        mask = view.column("type_mask")[rows]
        parts = []
        for t in range(len(view.speed.types)):
            of_type = view.nodes["node_type"] == t
            node = int(view.nodes["node_gpus"][of_type].max(initial=0))
            if not node:
                continue
            inside = [1 << k for k in range(node.bit_length()) if 1 << k <= node]
            top = int(view.type_gpus[t])
            counts = np.unique([*inside, *range(node, top + 1, node), *least.tolist()])
            j, n = (a.ravel() for a in np.meshgrid(np.arange(len(rows)), counts, indexing="ij"))
            ok = (n >= least[j]) & (n <= limit[j]) & (n <= top) & (mask[j] >> t & 1 == 1)
            ok &= ~rigid[j] | (n == view.requested_gpus[rows][j])
            # only a job's smallest count may be something else than a power of two or whole nodes
            ok &= np.isin(n, [*inside, *range(node, top + 1, node)]) | (n == least[j])
            parts.append((j[ok], n[ok], np.full(int(ok.sum()), t)))
        if not parts:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none
        return tuple(np.concatenate(part).astype(np.int64) for part in zip(*parts, strict=True))  # type: ignore[return-value]

    @staticmethod
    def _costs(
        view: SnapshotView,
        rows: NDArray[np.int64],
        job: NDArray[np.int64],
        count: NDArray[np.int64],
        kind: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        rate = np.zeros(len(job))
        for t in range(len(view.speed.types)):
            here = kind == t
            times = view.time_s(rows[job[here]], count[here], t)
            rate[here] = view.remaining[rows[job[here]]] / times
        smallest = np.full(len(rows), np.inf)
        known = rate > 0
        np.minimum.at(smallest, job[known], rate[known])
        start = view.start_s()[rows]
        age, restarts = view.age_s[rows], view.column("restarts")[rows]
        factor = np.clip((age - restarts * start) / (age + start + 1e-9), 1e-3, 1.0)
        held, held_type = view.gpus[rows][job], view.gpu_type[rows][job]
        stays = (held == count) & (held_type == kind)
        fresh = held == 0
        value = rate / smallest[job] * np.where(stays | fresh, 1.0, factor[job])
        with np.errstate(divide="ignore"):
            cost: NDArray[np.float64] = np.where(known, np.maximum(value, 1e-9) ** POWER, QUEUED + 1.0)
        return cost
