"""What the page of a comparison draws, as JSON values: one entry a trace, and in it one a policy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.simulator.bootstrap import interval, interval_factor
from ymir_opt.simulator.bounds import JctBound
from ymir_opt.simulator.metrics import rho
from ymir_opt.simulator.metrics_timeline import StepSeries, Timeline, timeline
from ymir_opt.simulator.results import JobRecord, Segment, SimulationResult

__all__ = ["MAX_SEGMENTS", "comparison_data"]

FloatArray = NDArray[np.float64]

MAX_SEGMENTS = 6000
"""Stretches drawn in one chart of GPUs; the shortest are left out, and the page says how many."""
MAX_JOBS = 20_000
MAX_ROUNDS = 20_000
_CURVE = 240
_STEPS = 160


def comparison_data(
    rows: Sequence[Mapping[str, Any]], results: Sequence[SimulationResult], bounds: Sequence[JctBound | None]
) -> list[dict[str, Any]]:
    """Return the traces' entries in the order of their first row.

    Parameters
    ----------
    rows : sequence of mapping
        As ``compare --json`` prints them.
    results : sequence of SimulationResult
        The rows' runs.
    bounds : sequence of JctBound or None
        The rows' bounds.
    """
    traces: dict[str, dict[str, dict[int, int]]] = {}
    for k, row in enumerate(rows):
        traces.setdefault(row["trace"], {}).setdefault(row["policy"], {})[row["seed"]] = k
    return [_trace(name, by_policy, rows, results, bounds) for name, by_policy in traces.items()]


def _trace(
    name: str,
    by_policy: Mapping[str, Mapping[int, int]],
    rows: Sequence[Mapping[str, Any]],
    results: Sequence[SimulationResult],
    bounds: Sequence[JctBound | None],
) -> dict[str, Any]:
    shown = {policy: seeds.get(0, next(iter(seeds.values()))) for policy, seeds in by_policy.items()}
    longest = max(_of(results[k]).max(initial=1.0) for seeds in by_policy.values() for k in seeds.values())
    shortest = min(
        _of(results[k]).min(initial=longest) for seeds in by_policy.values() for k in seeds.values()
    )
    grid = np.geomspace(max(shortest, 1e-3), max(longest, shortest * 1.001, 1e-2), _CURVE)
    bound = next((bounds[k] for k in shown.values() if bounds[k] is not None), None)
    first = results[next(iter(shown.values()))]
    origin = _origin_s([results[k] for k in shown.values()])
    return {
        "trace": name,
        "gpus": first.gpus,
        "jobs": first.jobs_finished,
        "bound": None
        if bound is None
        else {
            "fastest": bound.fastest_s,
            "shortest_first": bound.shortest_first_s,
            "slot_prices": bound.slot_prices_s,
            "mean": bound.mean_s,
        },
        "seeds": max(len(seeds) for seeds in by_policy.values()),
        "origin_s": origin,
        "grid": grid,
        "runs": [
            _run(
                policy,
                rows[shown[policy]],
                [(results[k], bounds[k]) for _, k in sorted(seeds.items())],
                grid,
                origin,
            )
            for policy, seeds in by_policy.items()
        ],
    }


def _of(result: SimulationResult) -> FloatArray:
    return result.jct_s()


def _origin_s(results: Sequence[SimulationResult]) -> float:
    """Return the first submission: the page's times count from there, whatever clock the trace has."""
    submitted = [job.submitted_at_s for result in results for job in result.jobs]
    rounds = [float(result.series["time_s"][0]) for result in results if len(result.series.get("time_s", ()))]
    return min([*submitted, *rounds], default=0.0)


def _run(
    policy: str,
    row: Mapping[str, Any],
    replicates: list[tuple[SimulationResult, JctBound | None]],
    grid: FloatArray,
    origin: float,
) -> dict[str, Any]:
    """Return a policy's entry; `replicates` are its runs by seed with their bounds, the original first."""
    result = replicates[0][0]
    ratios = np.sort(rho(result.jobs))
    means = np.array([r.mean_jct_s for r, _ in replicates])
    # Each resampled trace has a bound of its own: how hard it is cancels out of the ratio.
    least = np.array(
        [np.nan if bound is None or not bound.mean_s else bound.mean_s for _, bound in replicates]
    )
    over = timeline(result)
    used = over.utilisation(*_extent(over))
    return {
        "policy": policy,
        "row": {**row, "utilisation": used if used is None else round(used, 3), "merges": _merges(row)},
        "mean_interval": interval(means) if np.isfinite(means).all() else None,
        "ratio_interval": interval(means / least) if np.isfinite(means / least).all() else None,
        "cdf": _cdf([r for r, _ in replicates], grid),
        "rho": None
        if not len(ratios)
        else {
            "mean": float(ratios.mean()),
            **dict(
                zip(
                    ("p5", "q1", "median", "q3", "p95"),
                    np.percentile(ratios, (5, 25, 50, 75, 95)),
                    strict=True,
                )
            ),
            "max": float(ratios[-1]),
        },
        "over": _over(over, origin),
        "gpus": _gpus(result, origin) if result.segments else None,
    }


def _cdf(replicates: list[SimulationResult], grid: FloatArray) -> dict[str, FloatArray | None]:
    """Return the share of jobs done within each time of the grid, with a 95 % band from the replicates."""
    shares = []
    for result in replicates:
        took = np.sort(_of(result))
        shares.append(np.searchsorted(took, grid, side="right") / max(1, len(took)))
    first = np.round(shares[0], 5)
    factor = interval_factor(len(shares))
    if factor is None:
        return {"share": first, "low": None, "high": None}
    half = factor * np.std(np.array(shares[1:]), axis=0, ddof=1)
    low = np.maximum.accumulate(np.clip(first - half, 0.0, 1.0))
    high = np.maximum.accumulate(np.clip(first + half, 0.0, 1.0))
    return {
        "share": first,
        "low": np.asarray(np.round(low, 5), dtype=np.float64),
        "high": np.asarray(np.round(high, 5), dtype=np.float64),
    }


def _merges(row: Mapping[str, Any]) -> str:
    kept, back = row["merges_kept"], row["merges_rolled_back"]
    return f"{kept}, {back} undone" if back else str(kept)


def _extent(over: Timeline) -> tuple[float, float]:
    """Return the first and the last change of a run."""
    series = [s.time_s for s in (over.used_gpus, over.waiting_jobs) if len(s.time_s)]
    return (min(t[0] for t in series), max(t[-1] for t in series)) if series else (0.0, 0.0)


def _over(over: Timeline, origin: float) -> dict[str, Any]:
    share = None
    if len(over.total_gpus.time_s) and len(over.used_gpus.time_s):
        times = np.union1d(over.used_gpus.time_s, over.total_gpus.time_s)
        total = over.total_gpus.at(times)
        # Before the first round the cluster is as it was then.
        total = np.where(total > 0, total, over.total_gpus.value[0])
        used = over.used_gpus.at(times)
        share = StepSeries(times, np.divide(used, total, out=np.zeros_like(used), where=total > 0))
    return {
        "utilisation": None if share is None else _steps(share, origin),
        "queue": _steps(over.waiting_jobs, origin),
        "fragmentation": _steps(over.fragmentation, origin),
        "exact": over.exact,
    }


def _steps(series: StepSeries, origin: float) -> dict[str, FloatArray] | None:
    if not len(series.time_s):
        return None
    thin = series.thinned(_STEPS)
    return {"t": np.round(thin.time_s - origin, 1), "v": np.round(thin.value, 4)}


def _gpus(result: SimulationResult, origin: float) -> dict[str, Any]:
    """Return who held which GPU when, and what is needed to say why."""
    kept = sorted(result.segments, key=lambda s: s.start_s - s.end_s)[:MAX_SEGMENTS]
    kept.sort(key=lambda s: (s.start_s, s.group))
    names = sorted({node for s in kept for node, _ in s.nodes}, key=_natural)
    sizes = dict.fromkeys(names, 1)
    for segment in kept:
        for node, mask in segment.nodes:
            sizes[node] = max(sizes[node], mask.bit_length())
    index = {name: k for k, name in enumerate(names)}
    records = {job.id: job for job in result.jobs[:MAX_JOBS]}
    mentioned = dict.fromkeys(job for s in kept for job in s.jobs)
    number = {name: k for k, name in enumerate(mentioned)}
    when = result.series.get("time_s", np.zeros(0))
    step = max(1, -(-len(when) // MAX_ROUNDS))
    rounds = {
        name: np.round(result.series[name][::step], 5)
        for name in ("time_s", "waiting_jobs", "used_gpus", "total_gpus", "value_gap", "plan_wall_s")
        if name in result.series
    }
    if "time_s" in rounds:
        rounds["time_s"] = np.round(rounds["time_s"] - origin, 1)
    return {
        "nodes": [[name, sizes[name]] for name in names],
        "dropped": len(result.segments) - len(kept),
        "segments": [_segment(s, index, number, origin) for s in kept],
        "jobs": [_job(name, records.get(name), origin) for name in mentioned],
        "rounds": rounds,
    }


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Order n2 before n10."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part
    ]


def _segment(
    segment: Segment, index: Mapping[str, int], number: Mapping[str, int], origin: float
) -> list[Any]:
    """Return [group, mode, jobs, start, ready, end, ended by, pieces of neighbouring GPUs, whys]."""
    pieces = []
    for node, mask in segment.nodes:
        gpu = 0
        while mask >> gpu:
            if mask >> gpu & 1:
                width = 1
                while mask >> (gpu + width) & 1:
                    width += 1
                pieces.append([index[node], gpu, width])
                gpu += width
            else:
                gpu += 1
    return [
        segment.group,
        segment.mode,
        [number[job] for job in segment.jobs],
        round(segment.start_s - origin, 1),
        round(min(segment.ready_s, segment.end_s) - origin, 1),
        round(segment.end_s - origin, 1),
        segment.ended_by,
        pieces,
        segment.why,
        segment.ended_why,
    ]


def _job(name: str, record: JobRecord | None, origin: float) -> list[Any]:
    """Return [id, submitted, first start, completed, requested, alone, starts, preemptions, model, task]."""
    if record is None:
        return [name]
    alone = record.exclusive_s if math.isfinite(record.exclusive_s) else record.fastest_s
    return [
        name,
        round(record.submitted_at_s - origin, 1),
        round(record.first_start_s - origin, 1),
        round(record.completed_at_s - origin, 1),
        record.requested_gpus,
        round(alone, 1) if math.isfinite(alone) else None,
        record.starts,
        record.preemptions,
        record.model,
        record.task,
    ]
