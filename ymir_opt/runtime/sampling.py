"""Which task a joint run trains on next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ymir_opt.runtime.randomness import derive_seed

__all__ = ["annealed_probabilities", "annealed_schedule"]

DECAY = 0.8


def annealed_probabilities(sizes: Sequence[int], progress: float) -> tuple[float, ...]:
    """Return the probability of each task at a point of a joint run.

    p_i is proportional to D_i ** alpha with alpha = 1 - 0.8 x progress: in proportion to the data at
    the beginning, nearly alike at the end (annealed sampling: Stickland and Murray, "BERT and PALs",
    ICML 2019).

    Parameters
    ----------
    sizes : sequence of int
        Training rows of each task.
    progress : float
        0 at the first step, 1 at the last.
    """
    alpha = 1.0 - DECAY * min(max(progress, 0.0), 1.0)
    weights = np.asarray(sizes, dtype=float) ** alpha
    return tuple(float(w) for w in weights / weights.sum())


def annealed_schedule(sizes: Sequence[int], steps: int, seed: int) -> tuple[int, ...]:
    """Return the index of the task that each of ``steps`` steps trains on; seeded."""
    rng = np.random.default_rng(derive_seed(seed, "annealed sampling"))
    last = max(steps - 1, 1)
    return tuple(
        int(rng.choice(len(sizes), p=annealed_probabilities(sizes, step / last))) for step in range(steps)
    )
