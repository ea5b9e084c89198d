"""The relaxation with odd-set inequalities: sifting and separation in turn."""

from __future__ import annotations

from ymir_opt.formulation.linear import LinearModel
from ymir_opt.solvers.cuts import Separator, extended
from ymir_opt.solvers.lp import LpResult, proven, relax
from ymir_opt.solvers.matrix import packing_rows
from ymir_opt.solvers.sifting import Master

__all__ = ["strengthen"]

ROUNDS = 20
LEAST_LIFT = 0.002
"""Share of the gap target that a round of inequalities must gain to be followed by another."""


def strengthen(
    model: LinearModel, deadline: float | None = None, gap: int = 0
) -> tuple[LinearModel, LpResult, Master | None] | None:
    """Return the model with what its relaxation violates added as rows, that one's relaxation and its master.

    Every whole point of the model satisfies the rows, so that bounds hold for both. None where the
    relaxation is infeasible.

    Parameters
    ----------
    model : LinearModel
    deadline : float or None
        Of ``time.monotonic()``; what is reached by then counts.
    gap : int
        Gap target in quanta: inequalities that lift the bound by next to nothing of it end the search.
    """
    master = Master(model)
    found = master.solve(deadline)
    if found is None:
        whole = relax(model, deadline=deadline)
        return None if whole is None else (model, whole, None)
    separator = Separator(model, master.columns, packing_rows(model))
    rows = 0
    for _ in range(ROUNDS if found.optimal else 0):
        cuts = separator.violated(found.x)
        if not cuts:
            break
        master.add_cuts(cuts)
        better = master.solve(deadline)
        if better is None or not better.optimal:
            break
        lifted = float(model.cost @ better.x) - float(model.cost @ found.x)
        found, rows = better, len(master.cuts)
        if lifted < LEAST_LIFT * gap:
            break
    strong = extended(model, master.cuts[:rows])
    # an interrupted master has other rows than the model
    return strong, proven(strong, found), master if rows == len(master.cuts) else None
