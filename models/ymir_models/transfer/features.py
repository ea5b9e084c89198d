"""What is known of a source for a target before any run of the two: history, pair scores, similarity.

Features of target i never use a result of i as a target. Those of a *new* task also never use results of
i as a source: only the pair scores and the history of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.scores import mean_known, ranks

__all__ = ["FEATURES", "NEW_TASK", "History"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

FEATURES = (
    "rank, same setting",
    "rank, all settings",
    "score, same setting",
    "score, all settings",
    "spread of rank",
    "language model, rank",
    "retrieval, rank",
    "language model",
    "retrieval",
    "similar targets by retrieval, rank",
    "similar targets by retrieval, score",
    "similar targets by language model, rank",
    "similar targets by language model, score",
    "reverse, same setting",
    "reverse, all settings",
    "alike as sources",
    "targets alike as sources",
)
NEW_TASK = 13
"""The first so many features need nothing but pair scores of the target."""
WIDTH_RETRIEVAL, WIDTH_LLM, WIDTH_ALIKE = 0.04, 4.0, 1 / 3
FEWEST_COMMON = 5


def _mean(values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return weighted mean over targets and its weight, skipping NaN.

    Parameters
    ----------
    values : float64[K, T, S]
    weight : float64[N, T]

    Returns
    -------
    mean, total : float64[N, K, S]
    """
    known = np.isfinite(values)
    total = np.einsum("nt,kts->nks", weight, known.astype(np.float64))
    added = np.einsum("nt,kts->nks", weight, np.where(known, values, 0.0))
    mean: FloatArray = np.where(total > 0, added / np.maximum(total, 1e-12), np.nan)
    return mean, total


def _standard(rows: FloatArray) -> FloatArray:
    """Return rows less their mean over their spread, NaN kept."""
    centred = rows - mean_known(rows, -1)[..., None]
    spread = np.sqrt(mean_known(centred**2, -1))[..., None]
    result: FloatArray = centred / np.maximum(np.nan_to_num(spread), 1e-6)
    return result


@dataclass(frozen=True)
class History:
    """Past transfers and pair scores.

    Attributes
    ----------
    targets, sources : tuple of str
    rank, level : float64[K, T, S]
        Rank in [0, 1] and standardised score of a source within its target and setting.
    llm, retrieval : float64[T, S]
        Pair scores.
    """

    targets: tuple[str, ...]
    sources: tuple[str, ...]
    rank: FloatArray
    level: FloatArray
    llm: FloatArray
    retrieval: FloatArray

    @classmethod
    def build(
        cls,
        targets: Sequence[str],
        sources: Sequence[str],
        score: FloatArray,
        llm: FloatArray,
        retrieval: FloatArray,
    ) -> History:
        """Return the history of scores (float64[K, T, S]) and pair scores."""
        return cls(tuple(targets), tuple(sources), ranks(score), _standard(score), llm, retrieval)

    @property
    def as_source(self) -> IntArray:
        """Return the column of every target as a source, -1 if it never was one."""
        at = {name: i for i, name in enumerate(self.sources)}
        return np.array([at.get(name, -1) for name in self.targets], dtype=np.int64)

    def _shared(
        self, mask: BoolArray, llm: FloatArray, retrieval: FloatArray, own: BoolArray
    ) -> list[FloatArray]:
        """Return the features that a new task has, each float64[N, K, S].

        Parameters
        ----------
        mask : bool[T]
            Targets whose results may be used.
        llm, retrieval : float64[N, S]
            Pair scores of the N targets asked about.
        own : bool[N, T]
            Which known target each of them is: never used for itself.
        """
        settings = self.rank.shape[0]
        weight = (mask[None, :] & ~own).astype(np.float64)
        flat = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1.0)

        def wide(values: FloatArray) -> FloatArray:
            return np.broadcast_to(values[:, None, :], (len(own), settings, values.shape[-1]))

        def everywhere(values: FloatArray) -> FloatArray:
            return wide(mean_known(values, 1))

        rank, _ = _mean(self.rank, flat)
        level, _ = _mean(self.level, flat)
        average = mean_known(self.rank, 0)[None]
        first, _ = _mean(average, flat)
        second, _ = _mean(average**2, flat)
        spread = np.sqrt(np.maximum(second - first**2, 0.0))[:, 0, :]
        columns = [rank, everywhere(rank), level, everywhere(level), wide(spread)]
        columns += [
            wide(ranks(llm)),
            wide(ranks(retrieval)),
            wide(_standard(llm)),
            wide(_standard(retrieval)),
        ]
        mean_level = mean_known(self.level, 0)[None]
        for near in (
            self._near(retrieval, self.retrieval, WIDTH_RETRIEVAL),
            self._near(llm, self.llm, WIDTH_LLM),
        ):
            for values in (self.rank, mean_level):
                plain, _ = _mean(values, flat)
                found, total = _mean(values, weight * near)
                # one more target's worth of weight on what all targets say
                pulled = total * (np.nan_to_num(found) - plain) / (total + 1.0)
                columns.append(np.broadcast_to(pulled, (len(own), settings, pulled.shape[-1])))
        return columns

    def _near(self, asked: FloatArray, known: FloatArray, width: float) -> FloatArray:
        """Return float64[N, T]: how alike the targets are by pair scores, 1 for the nearest.

        `asked` holds the scores of sources for the N targets; where a known target is one of the sources,
        its score says how alike the two are.
        """
        column = self.as_source
        near = np.where(column >= 0, asked[:, np.maximum(column, 0)], np.nan)
        closest = np.max(np.where(np.isfinite(near), near, -np.inf), axis=1, keepdims=True)
        weight: FloatArray = np.nan_to_num(np.exp((near - closest) / width))
        return weight

    def _alike(self, mask: BoolArray) -> FloatArray:
        """Return float64[S, S]: correlation of sources over the targets that may be used."""
        level = mean_known(self.level, 0)[mask]
        known = np.isfinite(level).astype(np.float64)
        x = np.where(known > 0, level, 0.0)
        n = known.T @ known
        mean_own, mean_other = x.T @ known / np.maximum(n, 1), known.T @ x / np.maximum(n, 1)
        cross = x.T @ x / np.maximum(n, 1) - mean_own * mean_other
        var_own = (x**2).T @ known / np.maximum(n, 1) - mean_own**2
        var_other = known.T @ (x**2) / np.maximum(n, 1) - mean_other**2
        correlation = cross / np.sqrt(np.maximum(var_own * var_other, 1e-12))
        usable = (n >= FEWEST_COMMON) & ~np.eye(len(n), dtype=bool)
        return np.asarray(np.where(usable, correlation, 0.0), dtype=np.float64)

    def features(self, mask: BoolArray) -> FloatArray:
        """Return float64[T, K, S, 17]: features of every known target.

        Parameters
        ----------
        mask : bool[T]
            Targets whose results may be used; a target's own results never are.
        """
        targets, settings = len(self.targets), self.rank.shape[0]
        own = np.eye(targets, dtype=np.bool_)
        columns = self._shared(mask, self.llm, self.retrieval, own)
        column = self.as_source
        shape = (targets, settings, len(self.sources))
        reverse = np.full(shape, 0.5)
        row = {name: i for i, name in enumerate(self.targets)}
        for s, name in enumerate(self.sources):
            t = row.get(name, -1)
            if t >= 0 and mask[t]:
                seen = column >= 0
                value = self.rank[:, t, np.maximum(column, 0)].T
                reverse[:, :, s] = np.where(seen[:, None] & np.isfinite(value), value, 0.5)
        alike = self._alike(mask)
        mine = np.where(column[:, None] >= 0, alike[np.maximum(column, 0)], 0.0)
        weight = (mask[None, :] & ~own).astype(np.float64)
        similar = np.where(column >= 0, mine[:, np.maximum(column, 0)], 0.0)
        mean_level = mean_known(self.level, 0)[None]
        plain, _ = _mean(mean_level, weight)
        found, _ = _mean(mean_level, weight * np.exp(similar / WIDTH_ALIKE))
        columns += [
            reverse,
            np.broadcast_to(reverse.mean(axis=1, keepdims=True), shape),
            np.broadcast_to(mine[:, None, :], shape),
            np.broadcast_to(found - plain, shape),
        ]
        return np.asarray(np.nan_to_num(np.stack(columns, axis=-1)), dtype=np.float64)

    def new_task(self, llm: FloatArray, retrieval: FloatArray) -> FloatArray:
        """Return float64[K, S, 13]: features of a task that nothing but pair scores is known of."""
        own = np.zeros((1, len(self.targets)), dtype=np.bool_)
        mask = np.ones(len(self.targets), dtype=np.bool_)
        columns = self._shared(mask, llm[None, :], retrieval[None, :], own)
        return np.asarray(np.nan_to_num(np.stack(columns, axis=-1))[0], dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        """Return the arrays as they are written to an artefact."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_fields(cls, fields: Fields) -> History:
        """Read the arrays back; raises `InputError` where one is missing or wrong."""
        targets, sources = fields.texts("targets"), fields.texts("sources")
        t, s = len(targets), len(sources)
        rank = fields.array("rank", -1, t, s)
        return cls(
            targets,
            sources,
            rank,
            fields.array("level", len(rank), t, s),
            fields.array("llm", t, s),
            fields.array("retrieval", t, s),
        )
