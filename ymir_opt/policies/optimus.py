"""Optimus: marginal gains in remaining time.

* Source: Peng et al., EuroSys'18, as in Titan's public simulator (SoCC'22).
* Parameters: Every job first gets its smallest count in order of submission; then one GPU at a time goes to
  the job whose remaining time drops most, while the drop is positive, up to every job's largest count. A
  job whose count changes is placed anew.
* Cadence: Rounds of 300 s.
* Variants: ``:faithful`` keeps the reference's mistake: after a job has been given a GPU, its next gain
  (and its cap) are those of the job submitted last, so that a job can get more than its largest count (its
  batch then grows to the smallest local batch on every GPU). ``:fixed`` uses the job's own. Both use the
  reference's predicted time (one accumulation step too many), on which the published figures rest.
"""

from __future__ import annotations

import heapq

import numpy as np

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Optimus"]


class Optimus:
    """Greedy by marginal gain."""

    def __init__(self, text: str = "") -> None:
        self.fixed = "fixed" in variant("optimus", text, ())
        self.name = f"optimus:{text}" if text else "optimus"
        self.cadence = Cadence.rounds(300.0)

    def reset(self) -> None:
        """Keep no state."""

    def decide(self, view: SnapshotView) -> Decision:
        """Give one GPU after the other to the job that gains most."""
        rows = np.flatnonzero(view.startable | view.running)
        gpus = np.zeros(len(view), dtype=np.int64)
        if not len(rows):
            return Decision(gpus)
        order = rows[np.lexsort((rows, ~view.running[rows], view.submitted_at_s[rows]))]
        smallest, largest = view.min_gpus[order], view.max_gpus[order]
        gains = self._gains(view, order, int(largest.max()) + 1)
        left = view.total_gpus
        count = np.zeros(len(order), dtype=np.int64)
        heap: list[tuple[float, int]] = []
        for i, least in enumerate(smallest.tolist()):
            if least > left:
                continue
            count[i] = least
            left -= least
            # the reference looks at the cap only after a GPU has been added
            if not self.fixed or least + 1 <= largest[i]:
                heap.append((-gains[i, least], i))
        heapq.heapify(heap)
        while left > 0 and heap and heap[0][0] < 0:
            _, i = heapq.heappop(heap)
            count[i] += 1
            left -= 1
            source = i if self.fixed else len(order) - 1
            if count[i] + 1 <= largest[source]:
                heapq.heappush(heap, (-gains[source, count[i]], i))
        gpus[order] = count
        return Decision(gpus, order=order, waived=frozenset[str]() if self.fixed else frozenset({"max_gpus"}))

    @staticmethod
    def _gains(view: SnapshotView, order: np.ndarray, top: int) -> np.ndarray:
        """Return ``gains[i, n]``: drop in predicted time from n to n + 1 GPUs, float64[m, top]."""
        counts = np.arange(top + 1)
        times = np.stack([view.predicted_time_s(order, np.full(len(order), n)) for n in counts[1:]], axis=1)
        gains = np.zeros((len(order), top))
        with np.errstate(invalid="ignore"):
            gains[:, 1:] = times[:, :-1] - times[:, 1:]
        return np.nan_to_num(gains, nan=0.0, posinf=0.0, neginf=0.0)
