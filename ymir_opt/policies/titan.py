"""Titan: a MILP over GPU counts that minimises the sum of slowdowns; with merging of pairs if asked for.

* Source: Gao et al., SoCC'22, as in its public simulator.
* Parameters: counts {0, 1, 2, 3, 4, 8, 12, ...}; only the G jobs with the least predicted time on one GPU
  take part; cost of a count a: max(T(a), D) / max(T(fair), D) with fair = max(1, floor(G / N)); no GPUs costs
  10 000; no switching cost.
* Cadence: rounds of D = 120 s.
* Variants: ``:faithful`` uses the reference's predicted time (one accumulation step too many), ``:fixed`` the
  time that the throughput implies. Bare ``titan`` never merges. ``:merge`` also offers pairs of waiting jobs
  of one model for joint training if TranWt = (2 min + max) / (F_A + F_B) is at least 1.1, at cost
  2 max(F(a), D) / max(F(2 fair), D) / TranWt, F the mean of F_A and F_B. The reference let a merged pair
  finish after the first task's work; here the work is always that of all members, in the plan and in the
  simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.choose import choose
from ymir_opt.policies.joint import joint_finish_s, pair_known
from ymir_opt.policies.view import Decision, GroupDecision, GroupView, SnapshotView

__all__ = ["Titan"]

ROUND_S = 120.0
QUEUED_COST = 1e4
LEAST_TRANWT = 1.1
PARTNERS = 4
TENANT = 2

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Times = Callable[[IntArray, IntArray], FloatArray]


@dataclass
class _Program:
    """Columns of the round's program; a unit is a job or a running joint group."""

    members: list[tuple[int, ...]] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)

    def add(self, units: tuple[int, ...], counts: IntArray, costs: FloatArray) -> None:
        for count, cost in zip(counts.tolist(), costs.tolist(), strict=True):
            if np.isfinite(cost):
                self.members.append(units)
                self.gpus.append(count)
                self.cost.append(cost)


class Titan:
    """Sum of slowdowns by MILP."""

    def __init__(self, text: str = "") -> None:
        parts = variant("titan", text, ("merge",))
        self.fixed, self.merge = "fixed" in parts, "merge" in parts
        self.name = f"titan:{text}" if text else "titan"
        self.cadence = Cadence.rounds(ROUND_S)

    def reset(self) -> None:
        """Keep no state."""

    def decide(self, view: SnapshotView) -> Decision:
        """Solve the round's MILP."""
        gpus = np.zeros(len(view), dtype=np.int64)
        total = view.total_gpus
        grouped = {row: group for group in view.groups for row in group.rows}
        free = view.startable | view.running
        free[list(grouped)] = False
        rows = np.flatnonzero(free)
        if not (len(rows) or view.groups) or not total:
            return Decision(gpus)
        time_s: Times = view.time_s if self.fixed else view.predicted_time_s
        units = self._units(view, rows, time_s, total)
        solo = [u for u in units if isinstance(u, int)]
        fair = max(1, total // len(units))
        counts = np.array([1, 2, 3, 4, *range(8, total + 1, 4)], dtype=np.int64)
        counts = counts[counts <= total]
        program = _Program()
        for i, unit in enumerate(units):
            program.add((i,), np.zeros(1, np.int64), np.array([QUEUED_COST * _size(unit)]))
            if isinstance(unit, int):
                self._solo(program, view, i, unit, counts, fair, time_s)
            else:
                self._running_pair(program, view, i, unit, counts, fair)
        if self.merge:
            self._pairs(
                program, view, {row: i for i, row in enumerate(units) if isinstance(row, int)}, counts, fair
            )
        chosen = choose(
            program.members,
            np.array(program.cost),
            np.array(program.gpus, dtype=np.int64),
            np.array([total]),
            jobs=len(units),
        )
        groups = []
        for column in chosen.tolist():
            count, members = program.gpus[column], [units[i] for i in program.members[column]]
            if not count:
                continue
            first = members[0]
            if isinstance(first, GroupView):
                groups.append(GroupDecision("joint", first.rows, count, first.gpu_type))
            elif len(members) == 1:
                gpus[first] = count
            else:
                pair = tuple(sorted(m for m in members if isinstance(m, int)))
                groups.append(GroupDecision("joint", pair, count))
        return Decision(gpus, order=np.array(solo, dtype=np.int64), groups=tuple(groups))

    def _units(self, view: SnapshotView, rows: IntArray, time_s: Times, total: int) -> list[int | GroupView]:
        """Return the G jobs and running pairs with the least time on one GPU, in that order."""
        one = time_s(rows, np.ones(len(rows), dtype=np.int64))
        keyed: list[tuple[float, bool, int, int | GroupView]] = [
            (float(t), bool(view.running[row]), row, row) for t, row in zip(one, rows.tolist(), strict=True)
        ]
        for group in view.groups:
            finish = self._pair_finish(view, group.rows, np.ones(1, np.int64), new=False)
            keyed.append((float(finish.mean(axis=0)[0]), True, group.rows[0], group))
        keyed.sort(key=lambda item: item[:3])
        return [item[3] for item in keyed[:total]]

    def _solo(
        self,
        program: _Program,
        view: SnapshotView,
        i: int,
        row: int,
        counts: IntArray,
        fair: int,
        time_s: Times,
    ) -> None:
        most, least = int(view.max_gpus[row]), int(view.min_gpus[row])
        base = float(time_s(np.array([row]), np.array([min(fair, most)]))[0])
        allowed = counts[(counts <= most) & (counts >= least)]
        times = time_s(np.full(len(allowed), row), allowed)
        if not np.isfinite(base):
            return
        program.add((i,), allowed, np.maximum(times, ROUND_S) / max(base, ROUND_S))

    def _running_pair(
        self, program: _Program, view: SnapshotView, i: int, group: GroupView, counts: IntArray, fair: int
    ) -> None:
        rows, size = list(group.rows), len(group.rows)
        most = int(view.max_gpus[rows].sum())
        allowed = counts[(counts <= most) & (counts >= int(view.min_gpus[rows].max()))]
        finish = self._pair_finish(view, group.rows, allowed, new=False).mean(axis=0)
        base = self._pair_finish(view, group.rows, np.array([min(size * fair, most)]), new=False).mean()
        program.add((i,), allowed, size * np.maximum(finish, ROUND_S) / max(float(base), ROUND_S))

    def _pairs(
        self, program: _Program, view: SnapshotView, unit_of: dict[int, int], counts: IntArray, fair: int
    ) -> None:
        """Add the best partners of every waiting job."""
        rows = [
            r
            for r in unit_of
            if not view.gpus[r] and view.done[r] == 0 and view.column("sharing")[r] >= TENANT
        ]
        rejected = view.rejected
        serial = view.column("serial")
        offered: dict[int, int] = {}
        found = []
        for position, a in enumerate(rows):
            for b in rows[position + 1 :]:
                if ("joint", frozenset((int(serial[a]), int(serial[b])))) in rejected or not pair_known(
                    view, a, b
                ):
                    continue
                weight = self._tranwt(view, (a, b), fair)
                if weight >= LEAST_TRANWT:
                    found.append((-weight, a, b))
        for minus, a, b in sorted(found):
            if offered.get(a, 0) >= PARTNERS or offered.get(b, 0) >= PARTNERS:
                continue
            offered[a], offered[b] = offered.get(a, 0) + 1, offered.get(b, 0) + 1
            most = int(view.max_gpus[a] + view.max_gpus[b])
            allowed = counts[(counts <= most) & (counts >= max(view.min_gpus[a], view.min_gpus[b]))]
            finish = self._pair_finish(view, (a, b), allowed).mean(axis=0)
            base = self._pair_finish(view, (a, b), np.array([min(2 * fair, most)])).mean()
            cost = -2.0 * np.maximum(finish, ROUND_S) / max(float(base), ROUND_S) / minus
            program.add((unit_of[a], unit_of[b]), allowed, cost)

    def _tranwt(self, view: SnapshotView, rows: tuple[int, int], fair: int) -> float:
        count = np.array([fair])
        seconds = self._seconds(view)
        alone = [
            float(view.remaining[row] * seconds[int(view.key[row]), min(fair, int(view.max_gpus[row]))])
            for row in rows
        ]
        together = float(self._pair_finish(view, rows, count).sum())
        return (2 * min(alone) + max(alone)) / together if together > 0 else 0.0

    def _seconds(self, view: SnapshotView) -> FloatArray:
        if not self.fixed:
            return view.speed.predicted[:, 0]
        rate = view.speed.rate[:, 0]
        return np.divide(1.0, rate, out=np.full_like(rate, np.inf), where=rate > 0)

    def _pair_finish(
        self, view: SnapshotView, rows: tuple[int, ...], counts: IntArray, *, new: bool = True
    ) -> FloatArray:
        return joint_finish_s(view, (rows[0], rows[1]), counts, self._seconds(view), new=new)


def _size(unit: int | GroupView) -> int:
    return 1 if isinstance(unit, int) else len(unit.rows)
