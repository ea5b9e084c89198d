"""What options lose at least, and what GPUs are worth: the relaxation's duals over an extended round.

With the relaxation's proven bound ``L`` and reduced costs ``d``, every plan that uses column ``c`` costs at
least ``L + max(d_c, 0)`` (weak duality), and since a job is in one column only, ``-d`` of each of its other
columns with a negative one more. The *worth* of a column's resources is ``-sum_r y_r a_rc`` over the rows
that are not coverage: what the round's other jobs would save with them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.explain.options import Kind, Option
from ymir_opt.solvers.lp import relax

if TYPE_CHECKING:
    from ymir_opt.planner.search import Round

__all__ = ["GPU_FAMILIES", "Pricing"]

FloatArray = NDArray[np.float64]

GPU_FAMILIES = frozenset({"capacity", "resident", "rung"})


class Pricing:
    """Prices the options of one extended round.

    Parameters
    ----------
    work : Round
        Extended, see `ymir_opt.explain.options.extend`.
    exact_types : frozenset of int
        GPU types with exact node-level rows, as in the search that found the plan.

    Attributes
    ----------
    columns, waiting : list of float
        Reduced costs of the columns, and of leaving each job out, in quanta.
    """

    def __init__(self, work: Round, exact_types: frozenset[int] = frozenset()) -> None:
        self.work = work
        self.stated = work.model(exact_types)
        self.lp = relax(self.stated.model)
        model = self.stated.model
        order = np.argsort(model.index, kind="stable")
        self._entry = order
        self._first = np.searchsorted(model.index[order], np.arange(model.variables + 1))
        self._row = model.row_of_entry
        self.columns: list[float] = [0.0] * len(work.table)
        self.waiting: list[float] = [0.0] * len(work.table.queued_cost)
        if self.lp is not None:
            self.columns = self.lp.reduced_costs[self.stated.x].tolist()
            self.waiting = self.lp.reduced_costs[self.stated.y].tolist()
        self._gains = self._negative()

    def _negative(self) -> list[float]:
        """Return the sum of the negative reduced costs of each job's variables."""
        table = self.work.table
        total = np.minimum(np.array(self.waiting), 0.0)
        column, position = np.nonzero(table.jobs >= 0)
        np.add.at(total, table.jobs[column, position], np.minimum(np.array(self.columns), 0.0)[column])
        found: list[float] = total.tolist()
        return found

    @property
    def bound(self) -> int | None:
        """Proven lower bound of the relaxation, in quanta."""
        return None if self.lp is None else self.lp.bound

    def least(self, option: Option) -> int | None:
        """Return a proven lower bound on every plan with an option, in quanta; None if nothing is proven."""
        if self.bound is None:
            return None
        waits = option.kind is Kind.WAIT
        own = [self.waiting[option.job]] if waits else [self.columns[c] for c in option.columns]
        outside = self._gains[option.job] - sum(d for d in own if d < 0)
        # the bound was rounded up by less than one quantum
        return math.ceil(self.bound - 1 + max(0.0, min(own)) - outside - 1e-6)

    def cheapest(self, option: Option) -> int:
        """Return the option's column with the least reduced cost."""
        return min(option.columns, key=lambda c: (self.columns[c], self.work.table.cost[c], c))

    def worth(self, c: int) -> dict[str, float]:
        """Return what the other jobs would save with a column's resources, in quanta by row family."""
        if self.lp is None:
            return {}
        model, variable = self.stated.model, int(self.stated.x[c])
        out: dict[str, float] = {}
        for entry in self._entry[self._first[variable] : self._first[variable + 1]].tolist():
            row = int(self._row[entry])
            family = model.row_family[row]
            if family != "coverage":
                out[family] = out.get(family, 0.0) - float(self.lp.row_duals[row] * model.value[entry])
        return {family: value for family, value in out.items() if abs(value) > 1e-6}

    def gpu_worth(self) -> dict[tuple[int, int], float]:
        """Return what one GPU of each (type, memory level) is worth to the round, in quanta.

        What the candidate groups of the class pay for a GPU, the median; 0 where GPUs are left over.
        """
        table, instance = self.work.table, self.work.evaluator.instance
        if self.lp is None or not len(table):
            return {}
        model = self.stated.model
        gpus = np.array([f in GPU_FAMILIES or f.startswith("node") for f in model.row_family], dtype=np.bool_)
        duals = np.where(gpus, self.lp.row_duals, 0.0)
        paid = -np.bincount(model.index, weights=model.value * duals[self._row], minlength=model.variables)[
            self.stated.x
        ]
        level = np.array([*(shape.level for shape in table.shapes), 0], dtype=np.int64)[table.shape]
        out = {}
        for t in range(len(instance.types)):
            for lowest in range(len(instance.levels[t])):
                mine = (table.keep < 0) & (table.type == t) & (level == lowest)
                if mine.any():
                    out[t, lowest] = max(0.0, float(np.median(paid[mine] / table.gpus[mine])))
        return out
