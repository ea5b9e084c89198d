"""Shortest remaining time first, on the requested GPUs.

* Source: The textbook rule; ``:faithful`` as in Titan's public simulator (SoCC'22).
* Parameters: None.
* Cadence: Rounds of 300 s, as published there.
* Variants: ``srtf`` and ``srtf:faithful`` never preempt and sort by the reference's predicted time (one
  accumulation step too many). ``srtf:preemptive`` lets shorter jobs take the GPUs of longer ones;
  ``srtf:fixed`` does so and uses the time that the throughput implies.
"""

from __future__ import annotations

import numpy as np

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.fill import fill
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Srtf"]


class Srtf:
    """Shortest remaining time first with back-filling."""

    def __init__(self, text: str = "") -> None:
        parts = variant("srtf", text, ("preemptive",))
        self.fixed = "fixed" in parts
        self.preemptive = self.fixed or "preemptive" in parts
        self.name = f"srtf:{text}" if text else "srtf"
        self.cadence = Cadence.rounds(300.0)

    def reset(self) -> None:
        """Keep no state."""

    def decide(self, view: SnapshotView) -> Decision:
        """Give the requested GPUs to the jobs with the least remaining time."""
        rows = np.flatnonzero(view.startable | view.running if self.preemptive else view.startable)
        need = view.requested_gpus
        time_s = view.time_s if self.fixed else view.predicted_time_s
        left = time_s(rows, need[rows])
        order = rows[np.lexsort((rows, view.submitted_at_s[rows], left))]
        gpus = np.zeros_like(view.gpus) if self.preemptive else view.gpus.copy()
        chosen = np.array(
            fill(order, need, view.total_gpus if self.preemptive else view.free_gpus), dtype=np.int64
        )
        gpus[chosen] = need[chosen]
        return Decision(gpus, order=chosen)
