"""The hot kernel of sifting three ways: reduced costs of all columns at some prices.

Run ``python solver_runs/kernel_speed.py [--python PATH] [-o FILE]``; ``--python`` names an
interpreter with numpy, scipy and numba. Measured for each: one evaluation, best of ten; what importing it
costs; and for numba the first call with an empty and with a filled cache on disk, in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

NUMBA = """
import time; begun = time.process_time()
import numpy as np, numba
imported = time.process_time() - begun

@numba.njit(cache=True)
def price(start, row, value, cost, duals, out):
    for j in range(len(cost)):
        total = 0.0
        for k in range(start[j], start[j + 1]):
            total += value[k] * duals[row[k]]
        out[j] = cost[j] - total
"""
TIMED = """
def timed(function):
    best = 1e9
    for _ in range(10):
        begun = time.process_time(); function(); best = min(best, time.process_time() - begun)
    return best
a = np.load(sys.argv[1])
"""
CHILD = {
    "numpy": """
import time, sys; begun = time.process_time()
import numpy as np
imported = time.process_time() - begun
"""
    + TIMED
    + """
column = np.repeat(np.arange(len(a['cost'])), np.diff(a['start']))
row, value, cost, duals = a['row'], a['value'], a['cost'], a['duals']
f = lambda: cost - np.bincount(column, value * duals[row], minlength=len(cost))
first = 0.0
""",
    "scipy": """
import time, sys; begun = time.process_time()
import numpy as np
from scipy.sparse import csr_matrix
imported = time.process_time() - begun
"""
    + TIMED
    + """
begun = time.process_time()
m = csr_matrix((a['value'], a['row'], a['start']))
cost, duals = a['cost'], a['duals'][: m.shape[1]]
f = lambda: cost - m @ duals
first = time.process_time() - begun
""",
    "numba": """
import sys; sys.path.insert(0, sys.argv[2])
import time, kernel
from kernel import np, imported, price
"""
    + TIMED
    + """
out = np.empty(len(a['cost'])); args = [a[k] for k in ('start', 'row', 'value', 'cost', 'duals')]
f = lambda: price(*args, out)
begun = time.process_time(); f(); first = time.process_time() - begun
""",
}
END = "import json; print(json.dumps({'import_s': imported, 'first_call_s': first, 'best_s': timed(f)}))"


def matrix(jobs: int, gpus: int, path: Path) -> dict[str, int]:
    """Write the columns of a round's model, with prices."""
    from ymir_opt.candidates import generate
    from ymir_opt.cli.synthetic import synthetic_snapshot
    from ymir_opt.estimates import Estimates
    from ymir_opt.formulation.evaluate import Evaluator
    from ymir_opt.formulation.instance import Instance
    from ymir_opt.formulation.quota import QuotaTable
    from ymir_opt.planner.profiling import reserve
    from ymir_opt.planner.search import Round
    from ymir_opt.solvers.matrix import Columns

    snapshot = synthetic_snapshot(jobs, gpus)
    evaluator = Evaluator(Instance.of(snapshot), Estimates(snapshot))
    quotas = QuotaTable(evaluator.instance)
    kept = reserve(evaluator, quotas, None, only_earlier=False)
    model = Round(evaluator, generate(evaluator).table, quotas, kept.available, kept.charged).model().model
    columns = Columns.of(model)
    np.savez(
        path,
        start=columns.start,
        row=columns.row,
        value=columns.value,
        cost=model.cost.astype(np.float64),
        duals=np.random.default_rng(0).random(model.rows),
    )
    return {"columns": model.variables, "rows": model.rows, "entries": len(columns.row)}


def child(name: str, path: Path, folder: Path, python: str) -> dict[str, Any]:
    """Measure one way in a fresh process."""
    script = folder / f"run_{name}.py"
    script.write_text(CHILD[name] + END)
    (folder / "kernel.py").write_text(NUMBA)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [python, str(script), str(path), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    found: dict[str, float] = json.loads(done.stdout)
    return {key: round(seconds, 5) for key, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with numpy, scipy and numba")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = folder / "matrix.npz"
        row: dict[str, Any] = {
            "size": f"{options.jobs}x{options.gpus}",
            **matrix(options.jobs, options.gpus, path),
        }
        for name, key in (
            ("numpy", "numpy"),
            ("scipy", "scipy"),
            ("numba", "numba"),
            ("numba", "numba_cached"),
        ):
            begun = time.perf_counter()
            row[key] = child(name, path, folder, options.python)
            row[key]["process_wall_s"] = round(time.perf_counter() - begun, 3)
    text = json.dumps({**row, "machine": describe()}) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
