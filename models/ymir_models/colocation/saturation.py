"""Several adapters on one frozen backbone in one process: how device saturation shares the speed.

One step of K adapters with N rows in all on one GPU takes

    t(N, K) = ((f (1 + k (K-1)))^s + (r (1 + j (K-1)) N)^s)^(1/s)

f: floor of a step (launches, optimiser) in seconds; r: seconds a row of a saturated device; k, j: what a
further adapter adds to either; s: how sharp the corner is (1: the two add up). Member i, with b_i rows of
its own, then runs at t(b_i, 1)/t(N, K) of its speed alone: nearly 1 while the device is not saturated,
b_i/N when it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.conformal import LEVELS, radius
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import ColocationRow, Mode, Profiles, Provenance, ThroughputRow
from ymir_opt.estimates.protocols import ThroughputKey

__all__ = ["SaturationModel", "fit_saturation", "profile_saturation"]

FloatArray = NDArray[np.float64]

NOISE = 0.02
PRIOR_SD = 2.0
FEWEST_ROWS = 3


@dataclass(frozen=True)
class SaturationModel:
    """Fitted saturation of one (model, PEFT type, configuration) on one GPU type.

    Attributes
    ----------
    key : ThroughputKey
    gpu_type : str
    theta : float64[5]
        f and r in seconds, k, j, s.
    most_rows : float
        Largest rows on a GPU that were measured; beyond twice that the model abstains.
    most_adapters : int
        Largest K measured; beyond twice that the model abstains.
    radius : float64[2]
        Half widths of the logarithm of the ratio at 80 and 95 %.
    """

    key: ThroughputKey
    gpu_type: str
    theta: FloatArray
    most_rows: float
    most_adapters: int
    radius: FloatArray

    def step_s(self, rows: FloatArray, adapters: NDArray[Any]) -> FloatArray:
        """Return seconds of a step; rows on one GPU and adapters as arrays."""
        return _step(self.theta, rows, adapters)

    def ratios(self, batches: Sequence[int], gpus: int) -> FloatArray | None:
        """Return the speed ratio of every member, or None outside what was measured."""
        rows = np.asarray(batches, dtype=np.float64) / gpus
        count = len(rows)
        if rows.sum() > 2 * self.most_rows or count > 2 * self.most_adapters:
            return None
        alone = self.step_s(rows, np.ones(count))
        together = self.step_s(np.array([rows.sum()]), np.array([float(count)]))
        return np.minimum(alone / together, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {
            "key": [[self.key.foundation_model, self.key.peft_type, self.key.config]],
            "gpu_type": self.gpu_type,
            "theta": self.theta,
            "most_rows": self.most_rows,
            "most_adapters": self.most_adapters,
            "radius": self.radius,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> SaturationModel:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        return cls(
            key=ThroughputKey(*fields.keys("key")[0]),
            gpu_type=fields.text("gpu_type"),
            theta=fields.array("theta", 5),
            most_rows=fields.number("most_rows"),
            most_adapters=fields.count("most_adapters"),
            radius=fields.array("radius", 2),
        )


def _step(theta: FloatArray, rows: FloatArray, adapters: NDArray[Any]) -> FloatArray:
    floor, row, more_floor, more_row, sharp = theta
    others = np.asarray(adapters, dtype=np.float64) - 1.0
    a = floor * (1.0 + more_floor * others)
    b = row * (1.0 + more_row * others) * rows
    large, small = np.maximum(a, b), np.minimum(a, b)
    step: FloatArray = large * (1.0 + (small / large) ** sharp) ** (1.0 / sharp)
    return step


@dataclass(frozen=True)
class _Cases:
    """Steps alone (rows, seconds), and members of groups (own rows, all rows, K, ratio, group number)."""

    alone: FloatArray
    member: FloatArray


def _cases(throughput: Sequence[ThroughputRow], groups: Sequence[ColocationRow]) -> _Cases:
    alone = [(r.batch_size / r.gpus, r.batch_size / r.samples_per_s) for r in throughput]
    member = []
    for number, row in enumerate(groups):
        total = sum(m.batch_size for m in row.members) / row.gpus
        member += [
            (m.batch_size / row.gpus, total, len(row.members), ratio, number)
            for m, ratio in zip(row.members, row.speed_ratio, strict=True)
            if ratio > 0
        ]
    return _Cases(np.array(alone, dtype=np.float64).reshape(-1, 2), np.array(member).reshape(-1, 5))


def fit_saturation(
    key: ThroughputKey, gpu_type: str, throughput: Sequence[ThroughputRow], groups: Sequence[ColocationRow]
) -> SaturationModel:
    """Fit one model from steps alone and measured groups.

    Parameters
    ----------
    key : ThroughputKey
    gpu_type : str
    throughput : sequence of ThroughputRow
        Of this key on one GPU; absolute seconds come from here.
    groups : sequence of ColocationRow
        ``colocate`` groups of this key.

    Raises
    ------
    InputError
        If there are fewer than three groups.
    """
    if len(groups) < FEWEST_ROWS:
        raise InputError(
            f"{key.foundation_model} on {gpu_type}",
            f"{len(groups)} measured groups are too few",
            f"measure at least {FEWEST_ROWS} colocate groups",
        )
    cases = _cases(throughput, groups)
    theta = _solve(cases)
    residual = np.full(len(cases.member), np.inf)
    for number in np.unique(cases.member[:, 4]):
        out = cases.member[:, 4] == number
        trained = _solve(replace(cases, member=cases.member[~out]))
        residual[out] = _errors(trained, cases.member[out])
    return SaturationModel(
        key,
        gpu_type,
        theta,
        float(cases.member[:, 1].max()),
        int(cases.member[:, 2].max()),
        np.array([radius(residual, level) for level in LEVELS]),
    )


def _errors(theta: FloatArray, member: FloatArray) -> FloatArray:
    own, total, adapters, ratio, _ = member.T
    predicted = _step(theta, own, np.ones(len(own))) / _step(theta, total, adapters)
    result: FloatArray = np.log(predicted / ratio)
    return result


def _solve(cases: _Cases) -> FloatArray:
    from scipy.optimize import least_squares

    rows = np.concatenate([cases.alone[:, 0], cases.member[:, 1]])
    seconds = float(cases.alone[:, 1].min()) if len(cases.alone) else 1.0
    typical = float(np.median(rows))
    start = np.log([0.5 * seconds, 0.5 * seconds / typical, 0.05, 0.02, 2.0])

    def residuals(raw: FloatArray) -> FloatArray:
        theta = np.exp(raw)
        parts = [_errors(theta, cases.member) / NOISE, (raw - start) / PRIOR_SD]
        if len(cases.alone):
            step = _step(theta, cases.alone[:, 0], np.ones(len(cases.alone)))
            parts.append(np.log(step / cases.alone[:, 1]) / NOISE)
        return np.concatenate(parts)

    bounds = (
        start - np.array([8.0, 8.0, 6.0, 6.0, np.log(2.0)]),
        start + np.array([4.0, 4.0, 4.0, 4.0, np.log(4.0)]),
    )
    result: FloatArray = np.exp(least_squares(residuals, start, bounds=bounds, max_nfev=300).x)
    return result


def profile_saturation(profiles: Profiles) -> list[SaturationModel]:
    """Return a model for every key and GPU type with enough measured ``colocate`` groups of one key."""
    groups: dict[tuple[ThroughputKey, str], list[ColocationRow]] = {}
    for row in profiles.colocation:
        keys = {ThroughputKey(m.foundation_model, m.peft_type, m.config) for m in row.members}
        if row.mode is Mode.COLOCATE and row.source is Provenance.MEASURED and len(keys) == 1:
            groups.setdefault((keys.pop(), row.gpu_type), []).append(row)
    models = []
    for (key, gpu_type), members in sorted(groups.items(), key=lambda item: repr(item[0])):
        if len(members) < FEWEST_ROWS:
            continue
        alone = [
            r
            for r in profiles.throughput
            if r.source is Provenance.MEASURED
            and r.gpus == 1
            and r.samples_per_s > 0
            and r.gpu_type == gpu_type
            and ThroughputKey(r.foundation_model, r.peft_type, r.config) == key
        ]
        models.append(fit_saturation(key, gpu_type, alone, members))
    return models
