"""Step times by placement and local batch, gradient accumulation, and samples per second.

Source of the tables and of the accumulation rule: Titan (SoCC'22), public simulator; restated in
``docs/titan-reproduction.md``. A *placement* is the number of GPUs used on each node, in node order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InputError
from ymir_opt.jobmodel.tables import count, positive, read_rows, text

__all__ = ["Iteration", "StepTable", "accumulation", "normal_placement", "packed"]

FloatArray = NDArray[np.float64]
_EPS = 1e-8


@dataclass(frozen=True)
class Iteration:
    """One optimiser step of a job on a placement.

    Attributes
    ----------
    local_batch : int
        Samples per GPU and backward pass.
    accumulation : int
        Extra backward passes before the optimiser step (0 = none).
    step_s, sync_s : float
        Seconds of a step with synchronisation, and of the synchronisation alone.
    seconds : float
        ``step + (step - sync) * accumulation``.
    samples : int
        ``gpus * local_batch * (accumulation + 1)``.
    """

    local_batch: int
    accumulation: int
    step_s: float
    sync_s: float
    seconds: float
    samples: int

    @property
    def samples_per_s(self) -> float:
        """Return the throughput."""
        return self.samples / self.seconds

    @property
    def predicted_seconds(self) -> float:
        """Return the iteration time as Titan's simulator predicts it: one accumulation too many."""
        return self.step_s + (self.step_s - self.sync_s) * (self.accumulation + 1)


def packed(gpus: int, node_gpus: int = 4) -> tuple[int, ...]:
    """Return the placement on the fewest nodes: full nodes, then the rest."""
    full, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * full + ((rest,) if rest else ())


def normal_placement(placement: tuple[int, ...]) -> tuple[int, ...]:
    """Return the placement without zeros in its smallest rotation (the tables' key)."""
    used = tuple(p for p in placement if p)
    if len(used) < 2:
        return used
    return min(used[i:] + used[:i] for i in range(len(used)))


def accumulation(batch: int, gpus: int, smallest: int, largest: int) -> tuple[int, int]:
    """Return ``(local batch, accumulation steps)`` for a global batch on some GPUs.

    ``b = ceil(T/n)``; ``k = ceil(b/bmax) - 1``, at least 1 if one GPU cannot hold the batch; the local
    batch is ``ceil(b/(k+1))`` capped at ``floor(T/(n(k+1)))``, at least bmin.

    Parameters
    ----------
    batch : int
        Global batch T, samples.
    gpus : int
        n.
    smallest, largest : int
        Local batch limits bmin and bmax of the step table.
    """
    per_gpu = math.ceil(batch / gpus - _EPS)
    steps = math.ceil(per_gpu / largest - _EPS) - 1
    if gpus == 1 and batch > largest:
        steps = max(1, steps)
    local = math.ceil(per_gpu / (steps + 1) - _EPS)
    local = max(min(local, batch // (gpus * (steps + 1))), smallest)
    return local, steps


@dataclass(frozen=True)
class _Line:
    """Step and synchronisation times over the local batch at one placement or (nodes, GPUs)."""

    batch: FloatArray
    step: FloatArray
    sync: FloatArray

    def at(self, local: float) -> tuple[float, float]:
        return float(np.interp(local, self.batch, self.step)), float(np.interp(local, self.batch, self.sync))


def _line(rows: list[tuple[int, float, float]]) -> _Line:
    """Average the rows of equal local batch (several placements at one point) and sort by batch."""
    table = np.array(rows, dtype=np.float64)
    batches, where = np.unique(table[:, 0], return_inverse=True)
    number = np.bincount(where)
    step = np.bincount(where, weights=table[:, 1]) / number
    return _Line(batches, step, np.bincount(where, weights=table[:, 2]) / number)


class StepTable:
    """Measured step times of one foundation model on one GPU type.

    A measured placement is linear in the local batch. Others, and more than four nodes, are interpolated
    over (nodes, GPUs) in the Delaunay triangle of measured points that holds the query (points on an edge
    use the edge), each linear in the local batch. Nothing outside the measured range is answered.
    """

    def __init__(self, placements: Path, scalability: Path | None) -> None:
        self.source = str(placements)
        self._placements: dict[tuple[int, ...], _Line] = {}
        by_placement: dict[tuple[int, ...], list[tuple[int, float, float]]] = {}
        by_point: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
        columns = {"placement": text, "local_bsz": count, "step_time": positive, "sync_time": positive}
        for line, (name, local, step, sync) in read_rows(placements, columns):
            if not name.isdigit() or "0" in name:
                raise InputError(
                    f"{placements}: line {line}, column placement",
                    f"{name[:60]!r} is not one digit from 1 to 9 a node",
                    "write the GPUs used on each node, such as 1144",
                )
            key = tuple(int(digit) for digit in name)
            by_placement.setdefault(key, []).append((local, step, sync))
            by_point.setdefault((len(key), sum(key)), []).append((local, step, sync))
        if scalability is not None and scalability.exists():
            columns = {
                "num_nodes": count,
                "num_replicas": count,
                "local_bsz": count,
                "step_time": positive,
                "sync_time": positive,
            }
            for _, (nodes, gpus, local, step, sync) in read_rows(scalability, columns):
                by_point.setdefault((nodes, gpus), []).append((local, step, sync))
        if not by_placement:
            raise InputError(str(placements), "has no rows", "give at least one measured placement")
        self._placements = {key: _line(rows) for key, rows in by_placement.items()}
        self._points = {key: _line(rows) for key, rows in by_point.items()}
        self.smallest_batch = int(min(line.batch[0] for line in self._placements.values()))
        self.largest_batch = int(max(line.batch[-1] for line in self._placements.values()))
        self._weights: dict[tuple[int, int], list[tuple[tuple[int, int], float]] | None] = {}
        self._cache: dict[tuple[tuple[int, ...], int], Iteration | None] = {}

    def step_sync(self, placement: tuple[int, ...], local: float) -> tuple[float, float] | None:
        """Return (step, synchronisation) seconds, or None outside the measured range."""
        key = normal_placement(placement)
        line = self._placements.get(key)
        if line is not None:
            return line.at(local)
        weights = self._mix(len(key), sum(key))
        if weights is None:
            return None
        values = [(weight, self._points[point].at(local)) for point, weight in weights]
        return sum(w * v[0] for w, v in values), sum(w * v[1] for w, v in values)

    def iteration(self, placement: tuple[int, ...], batch: int) -> Iteration | None:
        """Return one optimiser step at global batch `batch`, or None outside the measured range."""
        key = (normal_placement(placement), batch)
        if key not in self._cache:
            self._cache[key] = self._iteration(*key)
        return self._cache[key]

    def _iteration(self, placement: tuple[int, ...], batch: int) -> Iteration | None:
        gpus = sum(placement)
        local, steps = accumulation(batch, gpus, self.smallest_batch, self.largest_batch)
        found = self.step_sync(placement, local)
        if found is None:
            return None
        step, sync = found
        seconds = step + (step - sync) * steps
        return Iteration(local, steps, step, sync, seconds, gpus * local * (steps + 1))

    def _mix(self, nodes: int, gpus: int) -> list[tuple[tuple[int, int], float]] | None:
        query = (nodes, gpus)
        if query not in self._weights:
            self._weights[query] = _interpolation(query, list(self._points))
        return self._weights[query]


def _interpolation(
    query: tuple[int, int], points: list[tuple[int, int]]
) -> list[tuple[tuple[int, int], float]] | None:
    """Return measured points around `query` with barycentric weights; None outside their hull."""
    if query in points:
        return [(query, 1.0)]
    # Only points on the nearest two node counts on either side can form an empty triangle around it.
    levels = sorted({p[0] for p in points})
    below = [v for v in levels if v <= query[0]][-2:]
    above = [v for v in levels if v >= query[0]][:2]
    near = sorted(p for p in points if p[0] in {*below, *above})
    segment = _on_segment(query, near)
    if segment is not None:
        return segment
    xy = np.array(near, dtype=np.float64)
    triangles = np.array(list(combinations(range(len(near)), 3)), dtype=np.int64).reshape(-1, 3)
    corner, offset = xy[triangles[:, 0]], np.array(query, dtype=np.float64) - xy[triangles[:, 0]]
    side1, side2 = xy[triangles[:, 1]] - corner, xy[triangles[:, 2]] - corner
    det = side1[:, 0] * side2[:, 1] - side1[:, 1] * side2[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        u = (offset[:, 0] * side2[:, 1] - offset[:, 1] * side2[:, 0]) / det
        v = (side1[:, 0] * offset[:, 1] - side1[:, 1] * offset[:, 0]) / det
        inside = (np.abs(det) > 1e-12) & (u > -1e-12) & (v > -1e-12) & (u + v < 1 + 1e-12)
    best: tuple[float, list[tuple[tuple[int, int], float]]] | None = None
    for row in np.flatnonzero(inside):
        matrix = np.array([side1[row], side2[row]])
        centre = np.linalg.solve(2 * matrix, np.sum(matrix**2, axis=1))
        radius = float(centre @ centre)
        distance = np.sum((xy - corner[row] - centre) ** 2, axis=1)
        if np.any(distance < radius - 1e-9) or (best is not None and radius >= best[0] - 1e-9):
            continue
        shares = (1.0 - float(u[row]) - float(v[row]), float(u[row]), float(v[row]))
        corners = [near[k] for k in triangles[row]]
        best = (radius, [(p, w) for p, w in zip(corners, shares, strict=True) if w > 1e-12])
    return None if best is None else best[1]


def _on_segment(
    query: tuple[int, int], points: list[tuple[int, int]]
) -> list[tuple[tuple[int, int], float]] | None:
    """Return the closest two points of the same GPUs-per-node ray or node count around `query`."""
    best: tuple[float, list[tuple[tuple[int, int], float]]] | None = None
    for a, b in combinations(points, 2):
        same_ray = a[0] * b[1] == a[1] * b[0] and a[0] * query[1] == a[1] * query[0]
        same_nodes = a[0] == b[0] == query[0]
        if not (same_ray or same_nodes):
            continue
        axis = 1 if same_nodes else 0
        low, high = sorted((a, b), key=lambda p: p[axis])
        if not low[axis] < query[axis] < high[axis]:
            continue
        share = (query[axis] - low[axis]) / (high[axis] - low[axis])
        span = float(high[axis] - low[axis])
        if best is None or span < best[0]:
            best = (span, [(low, 1 - share), (high, share)])
    return None if best is None else best[1]
