"""Speed ratio of a pair from a Gaussian process over (own key, partner's key); numpy alone.

Kernel between pairs (i, j) and (p, q), with F = 1 for keys of one family, S = F exp(-|d log2 batch| / l):

    k = 1 + f (F(i,p) + F(j,q)) + g (S(i,p) + S(j,q)) + h B(i,p) B(j,q),     B = S + c F

Its posterior mean needs, for every key, sums of the dual weights, and one matrix of them for the product
term: that is what an artefact holds. Whether a pair runs at all is a logistic model of additive loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.logistic import sigmoid
from ymir_opt.estimates.protocols import ThroughputKey

__all__ = ["Hyper", "PairModel", "family_kernel", "pair_kernel", "smooth_kernel"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LOWEST, HIGHEST = 0.01, 1.02
"""Predictions are kept inside what was ever measured."""
RUNS = 0.5
"""Above this probability of not running the model abstains."""
LOGIT_RUNS = math.log(RUNS / (1 - RUNS))


@dataclass(frozen=True)
class Hyper:
    """Kernel parameters: length l in doublings of the batch, weights f, g, h, c, and noise variance."""

    length: float
    family: float
    key: float
    product: float
    constant: float
    noise: float


def family_kernel(family: IntArray, other: IntArray) -> FloatArray:
    """Return F: 1 where two keys are of one family."""
    same: FloatArray = (family[:, None] == other[None, :]).astype(np.float64)
    return same


def smooth_kernel(
    family: IntArray, log_batch: FloatArray, other: IntArray, other_batch: FloatArray, length: float
) -> FloatArray:
    """Return S: decays with the distance of batches inside a family."""
    near: FloatArray = np.exp(-np.abs(log_batch[:, None] - other_batch[None, :]) / length)
    return near * family_kernel(family, other)


def pair_kernel(
    hyper: Hyper, same: FloatArray, smooth: FloatArray, rows: tuple[IntArray, IntArray]
) -> FloatArray:
    """Return the kernel matrix of pairs given F and S between all keys."""
    first, second = rows
    single = hyper.family * same + hyper.key * smooth
    product = smooth + hyper.constant * same
    result: FloatArray = 1.0 + single[np.ix_(first, first)] + single[np.ix_(second, second)]
    result += hyper.product * product[np.ix_(first, first)] * product[np.ix_(second, second)]
    return result


@dataclass(frozen=True)
class _Key:
    """What a pair's ratio needs of one of its keys."""

    row: float
    column: float
    dual: FloatArray
    product: FloatArray
    load: float


@dataclass(frozen=True)
class PairModel:
    """Fitted pairs of one set of measurements on one GPU type; sets are never pooled.

    Attributes
    ----------
    name, gpu_type : str
    families : tuple of ThroughputKey
    family, log_batch : int64[n], float64[n]
        The measured keys.
    hyper : Hyper
    mean, total : float
        Centre of the ratios, and the sum of the dual weights.
    row, column : float64[n]
        Dual weights summed over pairs with this key as the first and as the second.
    dual : float64[n, n]
        Dual weight of every measured pair.
    load : float64[n + 1]
        Weights of the logistic model: one a key (smoothed by S) and the slope on log2 batch.
    threshold : float
        Its intercept; very low where every pair ran.
    scale : float64[families, families]
        Typical absolute error by family of the first and of the second; NaN where never measured.
    radius : float64[2, 2]
        Half widths in units of the scale: rows for measured keys and for new batches, columns 80 and
        95 %.
    """

    name: str
    gpu_type: str
    families: tuple[ThroughputKey, ...]
    family: IntArray
    log_batch: FloatArray
    hyper: Hyper
    mean: float
    total: float
    row: FloatArray
    column: FloatArray
    dual: FloatArray
    load: FloatArray
    threshold: float
    scale: FloatArray
    radius: FloatArray

    @cached_property
    def _family_of(self) -> dict[ThroughputKey, int]:
        return {key: i for i, key in enumerate(self.families)}

    @cached_property
    def _measured(self) -> dict[tuple[int, float], int]:
        pairs = zip(self.family.tolist(), self.log_batch.tolist(), strict=True)
        return {(f, b): i for i, (f, b) in enumerate(pairs)}

    @cached_property
    def _ranges(self) -> FloatArray:
        """Lower and upper log2 batch that each family may be asked for: one doubling beyond."""
        n = len(self.families)
        low = [self.log_batch[self.family == f].min() - 1.0 for f in range(n)]
        high = [self.log_batch[self.family == f].max() + 1.0 for f in range(n)]
        return np.array([low, high])

    def family_of(self, key: ThroughputKey) -> int | None:
        """Return the family's number, or None where it was never measured."""
        return self._family_of.get(key)

    def known(self, family: IntArray, log_batch: FloatArray) -> BoolArray:
        """Say of each key whether its batch is in or near its family's measured range."""
        low, high = self._ranges
        inside: BoolArray = (log_batch >= low[family] - 1e-9) & (log_batch <= high[family] + 1e-9)
        return inside

    def _smooth(self, family: IntArray, log_batch: FloatArray) -> FloatArray:
        return smooth_kernel(family, log_batch, self.family, self.log_batch, self.hyper.length)

    def ratio(
        self, family: IntArray, log_batch: FloatArray, partner: IntArray, partner_batch: FloatArray
    ) -> FloatArray:
        """Return the speed ratio of the first of each pair, whether or not the pair may be asked for.

        Parameters
        ----------
        family, partner : int64[k]
        log_batch, partner_batch : float64[k]
        """
        keys, where = np.unique(
            np.stack([np.append(family, partner), np.append(log_batch, partner_batch)]),
            axis=1,
            return_inverse=True,
        )
        where = where.reshape(-1)
        table = self._table(keys[0].astype(np.int64), keys[1])
        k = len(family)
        result: FloatArray = table[where[:k], where[k:]]
        return result

    def _table(self, family: IntArray, log_batch: FloatArray) -> FloatArray:
        """Return float[k, k]: the ratio of every key beside every other."""
        same = family_kernel(family, self.family)
        smooth = self._smooth(family, log_batch)
        single = self.hyper.family * same + self.hyper.key * smooth
        product = smooth + self.hyper.constant * same
        value = self.mean + self.total + (single @ self.row)[:, None] + (single @ self.column)[None, :]
        value = value + self.hyper.product * (product @ self.dual @ product.T)
        result: FloatArray = np.clip(value, LOWEST, HIGHEST)
        return result

    def _loads(self, family: IntArray, log_batch: FloatArray) -> FloatArray:
        result: FloatArray = self._smooth(family, log_batch) @ self.load[:-1] + self.load[-1] * log_batch
        return result

    def p_infeasible(
        self, family: IntArray, log_batch: FloatArray, partner: IntArray, partner_batch: FloatArray
    ) -> FloatArray:
        """Return the probability that each pair does not run (out of memory)."""
        loads = self._loads(family, log_batch) + self._loads(partner, partner_batch)
        return sigmoid(loads + self.threshold)

    def half_width(
        self, family: IntArray, log_batch: FloatArray, partner: IntArray, partner_batch: FloatArray
    ) -> FloatArray:
        """Return float[k, 2]: half widths at 80 and 95 %."""
        new = np.array(
            [
                (f, b) not in self._measured or (p, c) not in self._measured
                for f, b, p, c in zip(
                    family.tolist(), log_batch.tolist(), partner.tolist(), partner_batch.tolist(), strict=True
                )
            ],
            dtype=np.int64,
        )
        return self.scale[family, partner][:, None] * self.radius[new]

    @cached_property
    def _keys(self) -> dict[tuple[int, float], _Key | None]:
        return {}

    @cached_property
    def _together(self) -> list[list[bool]]:
        """Whether two families were ever measured together."""
        seen: list[list[bool]] = (~np.isnan(self.scale)).tolist()
        return seen

    def _key(self, family: int, log_batch: float) -> _Key | None:
        """Return the part of the kernel that depends on one key alone, None outside its family's range."""
        at = (family, log_batch)
        if at not in self._keys:
            f, b = np.array([family]), np.array([log_batch])
            if not self.known(f, b)[0]:
                self._keys[at] = None
            else:
                same, smooth = family_kernel(f, self.family)[0], self._smooth(f, b)[0]
                single = self.hyper.family * same + self.hyper.key * smooth
                product = smooth + self.hyper.constant * same
                self._keys[at] = _Key(
                    float(single @ self.row),
                    float(single @ self.column),
                    self.hyper.product * (product @ self.dual),
                    product,
                    float(self._loads(f, b)[0]),
                )
        return self._keys[at]

    def pair(
        self, first: tuple[ThroughputKey, int], second: tuple[ThroughputKey, int]
    ) -> tuple[float, float] | None:
        """Return the speed ratios of both, or None where the model abstains.

        It abstains for a family (or two families together) never measured, a batch more than one doubling
        outside the measured ones, and where the pair probably does not run.
        """
        i, j = self._family_of.get(first[0]), self._family_of.get(second[0])
        if i is None or j is None or not self._together[i][j]:
            return None
        x, y = self._key(i, math.log2(first[1])), self._key(j, math.log2(second[1]))
        if x is None or y is None or x.load + y.load + self.threshold > LOGIT_RUNS:
            return None
        base = self.mean + self.total
        one = base + x.row + y.column + float(x.dual @ y.product)
        two = base + y.row + x.column + float(y.dual @ x.product)
        return min(max(one, LOWEST), HIGHEST), min(max(two, LOWEST), HIGHEST)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        body = {name: getattr(self, name) for name in self.__dataclass_fields__}
        body["hyper"] = {name: getattr(self.hyper, name) for name in self.hyper.__dataclass_fields__}
        body["families"] = [[key.foundation_model, key.peft_type, key.config] for key in self.families]
        return body

    @classmethod
    def from_fields(cls, fields: Fields) -> PairModel:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        families = tuple(ThroughputKey(*row) for row in fields.keys("families"))
        n, m = len(fields.array("family")), len(families)
        hyper = fields.part("hyper")
        return cls(
            name=fields.text("name"),
            gpu_type=fields.text("gpu_type"),
            families=families,
            family=fields.indices("family", m),
            log_batch=fields.array("log_batch", n),
            hyper=Hyper(**{name: hyper.number(name) for name in Hyper.__dataclass_fields__}),
            mean=fields.number("mean"),
            total=fields.number("total"),
            row=fields.array("row", n),
            column=fields.array("column", n),
            dual=fields.array("dual", n, n),
            load=fields.array("load", n + 1),
            threshold=fields.number("threshold"),
            scale=fields.array("scale", m, m),
            radius=fields.array("radius", 2, 2),
        )
