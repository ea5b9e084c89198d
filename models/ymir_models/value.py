"""What a merge is worth: Ymir's TranWt for any group, with limits, before and after a probe.

TranWt (Ymir, ICS 2024) is the sum of completion times when the members run alone one after the other,
shortest first, over the sum when they are merged on the same GPUs; above 1 the merge saves waiting. Its
two-member forms are (2 min + max)/(2 T_A + T_A->B) for a sequence and (2 min + max)/(2 T_A||B) for joint
training; here a group has any number of members, weights, and a first finisher that leaves early.

How much transfer helps is uncertain: the logarithms of the members' work ratios are normal, and move
together (the widest limits that their own allow).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ymir_opt.domain.errors import InputError

__all__ = [
    "Merge",
    "Value",
    "alone_completions",
    "sequence_completions",
    "shared_completions",
    "tranwt",
    "value_of",
]

FloatArray = NDArray[np.float64]
Rates = Callable[[tuple[int, ...]], Sequence[float]]
"""Samples/s of the members of a set that still run, in their order."""

NODES = 101
_GRID = np.array([NormalDist().inv_cdf((i + 0.5) / NODES) for i in range(NODES)])


def alone_completions(times: ArrayLike, weights: ArrayLike | None = None) -> FloatArray:
    """Return when each member completes if they run one after the other, least time/weight first.

    Parameters
    ----------
    times : float[m]
        Seconds of each alone on the group's GPUs, its start included.
    weights : float[m], optional
    """
    t = _positive(times, "times")
    w = np.ones_like(t) if weights is None else _positive(weights, "weights")
    order = np.argsort(t / w, kind="stable")
    result = np.empty_like(t)
    result[order] = np.cumsum(t[order])
    return result


def sequence_completions(times: ArrayLike) -> FloatArray:
    """Return completions of a sequence: each member starts, from the one before, when that one ends."""
    return np.asarray(np.cumsum(_positive(times, "times")), dtype=np.float64)


def shared_completions(work: ArrayLike, rates: Rates, start_s: float = 0.0) -> FloatArray:
    """Return completions of members that run together; a finisher leaves and the rest go on.

    Parameters
    ----------
    work : float[m]
        Samples of each in the merge.
    rates : callable
        Samples/s of the members of a set of indices, asked for every remaining set.
    start_s : float
        Seconds before any progress.
    """
    left = _positive(work, "work").copy()
    result = np.zeros_like(left)
    running = tuple(range(len(left)))
    now = start_s
    while running:
        speed = _positive(rates(running), "rates")
        need = left[list(running)] / speed
        step = float(need.min())
        now += step
        left[list(running)] -= speed * step
        ended = {member for member, time in zip(running, need, strict=True) if time <= step * (1 + 1e-12)}
        for member in ended:
            result[member] = now
        running = tuple(member for member in running if member not in ended)
    return result


def _positive(values: ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all() or (array <= 0).any():
        raise InputError(name, "must be finite numbers above 0, one a member", "check the estimates")
    return array


def tranwt(alone: ArrayLike, merged: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return TranWt of a group: weighted completions alone over weighted completions merged.

    Parameters
    ----------
    alone : float[m]
        Seconds of each member alone (not completions).
    merged : float[m]
        Completions in the merge.
    weights : float[m], optional
    """
    times = _positive(alone, "alone")
    w = np.ones_like(times) if weights is None else _positive(weights, "weights")
    return float(w @ alone_completions(times, w) / (w @ _positive(merged, "merged")))


@dataclass(frozen=True)
class Merge:
    """A group that may be merged.

    Attributes
    ----------
    alone_s : float[m]
        Seconds of each member alone on the group's GPUs, its start included.
    completions : callable
        Completions of the members for their work ratios (float[m]).
    log_ratio : float[m]
        Expected logarithm of each member's work ratio; 0 where nothing changes.
    log_spread : float[m]
        Its standard deviation; 0 where it is known.
    weights : float[m], optional
    """

    alone_s: tuple[float, ...]
    completions: Callable[[FloatArray], FloatArray]
    log_ratio: tuple[float, ...]
    log_spread: tuple[float, ...]
    weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Value:
    """What a merge is worth.

    Attributes
    ----------
    tranwt, low, high : float
        With 80 % limits.
    p_benefit : float
        Probability that the merge saves waiting.
    saving_s : float
        Expected weighted seconds saved without a probe.
    saving_probed_s : float
        Expected with a probe: a merge that does not help is split again, at the probe's cost.
    probe_gain_s : float
        What the probe is worth: the difference of the two.
    """

    tranwt: float
    low: float
    high: float
    p_benefit: float
    saving_s: float
    saving_probed_s: float
    probe_gain_s: float


def value_of(merge: Merge, probe_s: float = 0.0, wrong: float = 0.0) -> Value:
    """Return the value of a merge over the distribution of its work ratios.

    Parameters
    ----------
    merge : Merge
    probe_s : float
        Weighted seconds lost by a probe that ends in a split.
    wrong : float
        Probability that the probe's verdict is the opposite of the truth.

    Raises
    ------
    InputError
        If a figure is not finite, not positive, or of the wrong length.
    """
    times = _positive(merge.alone_s, "alone_s")
    w = np.ones_like(times) if merge.weights is None else _positive(merge.weights, "weights")
    middle, spread = np.asarray(merge.log_ratio), np.asarray(merge.log_spread)
    if len({len(times), len(w), len(middle), len(spread)}) > 1 or (spread < 0).any():
        raise InputError("merge", "members, ratios, spreads and weights differ", "give one of each a member")
    if not 0 <= wrong <= 0.5 or not probe_s >= 0:
        raise InputError("probe", f"cost {probe_s}, error {wrong}", "cost from 0, error from 0 to 0.5")
    before = float(w @ alone_completions(times, w))
    grid = _GRID if spread.any() else np.zeros(1)
    after = np.array([float(w @ merge.completions(np.exp(middle + spread * z))) for z in grid])
    saving = before - after
    # a probe keeps what helps and splits what does not, unless its verdict is wrong
    kept, split = saving, np.full_like(saving, -probe_s)
    right, false = np.where(saving > 0, kept, split), np.where(saving > 0, split, kept)
    probed = float(((1 - wrong) * right + wrong * false).mean())
    ratio = before / after
    return Value(
        tranwt=before / float(w @ merge.completions(np.exp(middle))),
        low=float(np.quantile(ratio, 0.1)),
        high=float(np.quantile(ratio, 0.9)),
        p_benefit=float(np.mean(saving > 0)),
        saving_s=float(saving.mean()),
        saving_probed_s=probed,
        probe_gain_s=probed - float(saving.mean()),
    )
