"""Tiresias: discretised two-dimensional least attained service.

* Source: Gu et al., NSDI'19; parameters and cadence as in Titan's public simulator (SoCC'22).
* Parameters: Two queues with thresholds of 4 and 1000 GPU-hours of attained service, first in, first out
  inside a queue, back-filling, preemptive, on the requested GPUs. GPU time spent on starting counts as
  service.
* Cadence: Rounds of 300 s.
* Variants: ``:faithful`` and ``:fixed`` are the same: the reference has no known fault here.
"""

from __future__ import annotations

import numpy as np

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.fill import fill
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Tiresias"]

THRESHOLDS_GPU_S = (4 * 3600.0, 1000 * 3600.0)


class Tiresias:
    """Least attained service in discrete queues."""

    def __init__(self, text: str = "") -> None:
        variant("tiresias", text, ())
        self.name = f"tiresias:{text}" if text else "tiresias"
        self.cadence = Cadence.rounds(300.0)

    def reset(self) -> None:
        """Keep no state: the queue follows from the attained service."""

    def decide(self, view: SnapshotView) -> Decision:
        """Fill the cluster queue by queue, first come first served inside each."""
        rows = np.flatnonzero(view.startable | view.running)
        # the last queue takes all above its predecessor's threshold
        queue = np.searchsorted(np.array(THRESHOLDS_GPU_S[:-1]), view.held_gpu_s[rows], side="right")
        order = rows[np.lexsort((rows, view.submitted_at_s[rows], queue))]
        need = view.requested_gpus
        chosen = np.array(fill(order, need, view.total_gpus), dtype=np.int64)
        gpus = np.zeros_like(view.gpus)
        gpus[chosen] = need[chosen]
        return Decision(gpus, order=chosen)
