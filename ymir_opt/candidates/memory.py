"""What has been scored once is not scored again: savings do not depend on prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.numbering import CODES

__all__ = ["ScoreMemory", "Scored"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Savings of sets at some (type, GPU count) options.

    Attributes
    ----------
    saving : float64[M, O]
        Queueing cost of the members less the group's, in quanta; -inf where inadmissible.
    gpus : int16[M, O]
    """

    saving: FloatArray
    gpus: NDArray[np.int16]

    def take(self, rows: IntArray) -> Scored:
        """Return these rows."""
        return Scored(self.saving[rows], self.gpus[rows])


@dataclass
class ScoreMemory:
    """Remembers by mode, size of the sets and options tried."""

    jobs: int
    _known: dict[tuple[Mode, int, bool], tuple[IntArray, Scored]] = field(default_factory=dict)

    def get(self, mode: Mode, sets: IntArray, full: bool, score: Callable[[IntArray], Scored]) -> Scored:
        """Return the savings of distinct sets int64[M, K]; ``score`` is asked for what is not known."""
        size = sets.shape[1]
        if (self.jobs + 1) ** size >= CODES or not len(sets):
            return score(sets)
        code = np.zeros(len(sets), dtype=np.int64)
        for column in sets.T:
            code = code * (self.jobs + 1) + column
        key = (mode, size, full)
        if key not in self._known:
            found = score(sets)
            order = np.argsort(code, kind="stable")
            self._known[key] = (code[order], found.take(order))
            return found
        codes, known = self._known[key]
        at = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
        new = np.flatnonzero(codes[at] != code)
        if not len(new):
            return known.take(at)
        fresh = score(sets[new])
        every = np.concatenate([codes, code[new]])
        joined = Scored(
            np.concatenate([known.saving, fresh.saving]), np.concatenate([known.gpus, fresh.gpus])
        )
        at[new] = len(codes) + np.arange(len(new))
        order = np.argsort(every, kind="stable")
        self._known[key] = (every[order], joined.take(order))
        return joined.take(at)
