"""The relaxation's bound two ways: sifting, and the subgradient method on the Lagrangian.

Run ``python solver_runs/subgradient_bound.py [--sizes 300x240,1000x1024] [-o FILE]``. Both see the same
model (the pool that `auto` plans with); both bounds are recomputed in integers. The subgradient starts from
what leaving each job out costs, and from 0, and is told how far to go.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.planner.pooling import make_pool
from ymir_opt.planner.profiling import reserve
from ymir_opt.solvers.lp import proven, relax
from ymir_opt.solvers.sifting import Relaxation
from ymir_opt.solvers.subgradient import subgradient

NEAR = 1e-4
"""The subgradient is told of a point this close to the relaxation: the kindest case for its steps."""


def compare(jobs: int, gpus: int, iterations: int) -> dict[str, Any]:
    """Return bounds relative to the relaxation's, and CPU seconds, of one synthetic round."""
    snapshot = synthetic_snapshot(jobs, gpus)
    evaluator = Evaluator(Instance.of(snapshot), Estimates(snapshot), Parameters())
    quotas = QuotaTable(evaluator.instance)
    reservation = reserve(evaluator, quotas, None)
    _, work = make_pool(evaluator, quotas, reservation, None, merge=True, backend="auto")
    model = work.model().model
    begun = time.process_time()
    lp = relax(model)
    row: dict[str, Any] = {"size": f"{jobs}x{gpus}", "variables": model.variables, "rows": model.rows}
    row["sifting_cpu_s"] = time.process_time() - begun
    if lp is None or lp.bound is None:
        return row | {"note": "the relaxation proves nothing"}
    upper = round(lp.objective * (1 + NEAR))
    for name, start in (("from_waiting", None), ("from_zero", np.zeros(model.rows))):
        begun = time.process_time()
        found = subgradient(model, start=start, upper_bound=upper, iterations=iterations)
        row[f"{name}_cpu_s"] = time.process_time() - begun
        exact = proven(model, Relaxation(found.row_duals, np.zeros(model.variables), optimal=False)).bound
        if exact is not None and exact > lp.bound:
            raise SystemExit(f"{row['size']}: the Lagrangian bound {exact} exceeds the relaxation {lp.bound}")
        row[f"{name}_below"] = None if exact is None else (lp.bound - exact) / lp.bound
        row[f"{name}_steps"] = len(found.history)
    return row


def main() -> None:
    """Compare, print, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="300x240,1000x1024,3000x1024")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    rows = [compare(*map(int, size.split("x")), given.iterations) for size in given.sizes.split(",")]
    for row in rows:
        print(json.dumps(row))
    if given.output is not None:
        given.output.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
