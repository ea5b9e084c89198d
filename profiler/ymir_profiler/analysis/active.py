"""Which pair to measure next: a ridge regression on sources, targets and scores, and its doubt.

The gain of (source, target) is taken as mean + source effect + target effect + weights . scores, with
a Gaussian prior on each; the next pair is the one whose posterior mean plus a multiple of its standard
deviation is largest among the pairs not measured (an upper confidence bound, as in linear bandits:
Li, Chu, Langford and Schapire, WWW 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chooser", "Pair"]

Pair = tuple[str, str]
FloatArray = NDArray[np.float64]


class Chooser:
    """Chooses pairs one after the other.

    Parameters
    ----------
    pairs : sequence of (str, str)
        Every pair (source, target) that may be measured.
    scores : mapping of (str, str) to sequence of float
        Cheap scores; a pair without has zeros.
    boldness : float
        How many standard deviations of doubt are worth as much as mean.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        scores: Mapping[Pair, Sequence[float]] | None = None,
        boldness: float = 0.5,
    ) -> None:
        self.pairs = list(pairs)
        self.boldness = boldness
        sources = sorted({s for s, _ in pairs})
        targets = sorted({t for _, t in pairs})
        width = len(next(iter(scores.values()))) if scores else 0
        cheap = np.array([list((scores or {}).get(p, [0.0] * width)) for p in self.pairs], dtype=float)
        cheap = cheap.reshape(len(self.pairs), width)
        spread = cheap.std(axis=0)
        cheap = (cheap - cheap.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        one_hot = np.zeros((len(self.pairs), len(sources) + len(targets)))
        for row, (source, target) in enumerate(self.pairs):
            one_hot[row, sources.index(source)] = 1.0
            one_hot[row, len(sources) + targets.index(target)] = 1.0
        self._design = np.hstack([np.ones((len(self.pairs), 1)), one_hot, cheap])
        self._index = {pair: row for row, pair in enumerate(self.pairs)}

    def posterior(self, measured: Mapping[Pair, float]) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of every pair's gain, in the order of ``pairs``."""
        if not measured:
            return np.zeros(len(self.pairs)), np.ones(len(self.pairs))
        rows = [self._index[pair] for pair in measured]
        y = np.array(list(measured.values()), dtype=float)
        scale = float(y.std()) or 1.0
        x = self._design[rows]
        precision = x.T @ x + np.eye(x.shape[1])
        precision[0, 0] -= 0.99
        covariance = np.linalg.inv(precision)
        mean = self._design @ (covariance @ (x.T @ (y / scale)))
        doubt = np.sqrt(np.einsum("ij,jk,ik->i", self._design, covariance, self._design))
        return mean * scale, doubt * scale

    def next(self, measured: Mapping[Pair, float], allowed: Sequence[Pair] | None = None) -> Pair:
        """Return the pair to measure next among those allowed (all that are not measured).

        Raises
        ------
        ValueError
            If none is left.
        """
        left = [pair for pair in (allowed or self.pairs) if pair not in measured]
        if not left:
            raise ValueError("every pair is measured")
        mean, doubt = self.posterior(measured)
        value = mean + self.boldness * doubt
        return max(left, key=lambda pair: (value[self._index[pair]], -self._index[pair]))
