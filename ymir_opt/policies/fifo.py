"""First in, first out, on the requested GPUs.

* Source: The default order of Slurm, YARN and Kubernetes batch queues.
* Parameters: None.
* Cadence: On events, at least 10 s apart (the reference has none to copy).
* Variants: ``fifo`` is strict: the first job that does not fit holds back all later ones. ``fifo:backfill``
  lets later jobs pass. ``:faithful`` and ``:fixed`` are the same.
"""

from __future__ import annotations

import numpy as np

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.fill import fill
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Fifo"]


class Fifo:
    """First in, first out; never preempts."""

    def __init__(self, text: str = "") -> None:
        self.backfill = "backfill" in variant("fifo", text, ("backfill",))
        self.name = f"fifo:{text}" if text else "fifo"
        self.cadence = Cadence.events()

    def reset(self) -> None:
        """Keep no state."""

    def decide(self, view: SnapshotView) -> Decision:
        """Start waiting jobs in order of submission while they fit."""
        gpus = view.gpus.copy()
        rows = np.flatnonzero(view.startable)
        need = view.requested_gpus
        if self.backfill:
            chosen = np.array(fill(rows, need, view.free_gpus), dtype=np.int64)
        else:
            chosen = rows[: int(np.searchsorted(np.cumsum(need[rows]), view.free_gpus, side="right"))]
        gpus[chosen] = need[chosen]
        return Decision(gpus, order=chosen, large_first=False, stop_at_first=not self.backfill)
