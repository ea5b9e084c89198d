"""Our planner and its peers on the same rounds: CPU, wall, memory, objective, bound and gaps.

Run ``python solver_runs/solver_peers.py [--sizes 100x32,...] [--titan] [--methods ...] -o FILE.jsonl``.
Every run is a fresh ``ymir-plan solve``; the single solvers get a wall-clock limit. Results are appended
as JSON lines, and runs that the file has already are skipped. Methods:

* ``auto``: prices first from 200 jobs on, else HiGHS; ``decompose``, ``highs``, ``cpsat``, ``cbc``: one
  solver on our pool (the last three as one model); ``greedy``;
* ``pop-4``: jobs and nodes split at random into four rounds that are planned alone (D. Narayanan et al.,
  *Solving large-scale granular resource allocation problems efficiently with POP*, SOSP 2021);
* ``gavel``, ``titan``: these systems' decisions, by their own objectives, so that only times compare;
* ``gavel-lp``: Gavel's fractional max-sum-throughput program alone, through cvxpy.

``calibration_s`` is the CPU time of a fixed piece of work just before the run: machines and loads differ,
and the quotient of ``cpu_s`` by it does so less.
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
from rich.progress import Progress

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_plan, parse_snapshot
from ymir_opt.domain.snapshot import Snapshot

PER_MIB = 1 << 20 if sys.platform == "darwin" else 1 << 10
SIZES = "100x32,300x240,1000x240,1000x1024,3000x1024,10000x1024,10000x10000"
METHODS = "auto,greedy,highs,cpsat,cbc,pop-4,gavel,titan,gavel-lp"
TITAN = (("FM-2-vit", 7200, 63), ("FM-1-roberta-base", 28800, 120), ("FM-2-vit", 25200, 500))
# beyond these sizes a method gives nothing within the limit, or its arrays do not fit
LARGEST = {"highs": 3000, "cpsat": 3000, "cbc": 1000, "gavel": 3000, "titan": 3000}
PARTS = 4


def calibration_s() -> float:
    """Return the CPU seconds of a fixed piece of interpreted and vectorised work."""
    begun = time.process_time()
    sum(i * i % 7 for i in range(1_000_000))
    values = np.arange(2_000_000) % 1013
    for _ in range(4):
        np.argsort(values, kind="stable")
    return time.process_time() - begun


def command(arguments: list[str], limit_s: float) -> dict[str, Any]:
    """Run one command in a process of its own; it is killed at twice the limit."""
    begun = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            arguments, stdout=subprocess.DEVNULL, stderr=errors, stdin=subprocess.DEVNULL, env=environment
        )
        killed = False
        while True:
            done, status, usage = os.wait4(child.pid, os.WNOHANG)
            if done:
                break
            if not killed and time.perf_counter() - begun > 2 * limit_s + 10:
                child.kill()
                killed = True
            time.sleep(0.01)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    return {
        "process_wall_s": round(time.perf_counter() - begun, 3),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_rss_mib": round(usage.ru_maxrss / PER_MIB, 1),
        "failed": "killed" if killed else (last[0][:200] if child.returncode and last else None),
    }


def solved(source: Path, folder: Path, options: list[str], limit_s: float) -> dict[str, Any]:
    """Run ``ymir-plan solve``."""
    target = folder / "plan.json"
    target.unlink(missing_ok=True)
    arguments = [sys.executable, "-m", "ymir_opt", "solve", str(source), "-o", str(target), *options]
    row = command(arguments, limit_s)
    if target.exists():
        solver = parse_plan(target.read_bytes(), "plan").solver
        row |= {
            "wall_s": round(solver.wall_s, 3),
            "status": solver.status.value,
            "stopped_by": solver.stopped_by.value,
            "objective": solver.objective,
            "bound": solver.bound,
            "gap": solver.gap,
            "value_gap": solver.value_gap,
            "gap_scope": solver.gap_scope.value,
            "columns": solver.candidates.columns,
        }
    return row


def split(snapshot: Snapshot, parts: int, seed: int) -> list[Snapshot]:
    """Return rounds of random shares of nodes and jobs; a running job stays with its node."""
    rng = np.random.default_rng(seed)
    dealt = _dealt(rng, len(snapshot.cluster.nodes), parts)
    node_part = {n.id: int(p) for n, p in zip(snapshot.cluster.nodes, dealt, strict=True)}
    job_part = {}
    for job, p in zip(snapshot.jobs, _dealt(rng, len(snapshot.jobs), parts), strict=True):
        job_part[job.id] = node_part[next(iter(job.allocation))] if job.allocation else int(p)
    out = []
    for part in range(parts):
        nodes = tuple(n for n in snapshot.cluster.nodes if node_part[n.id] == part)
        jobs = tuple(j for j in snapshot.jobs if job_part[j.id] == part)
        cluster = snapshot.cluster.model_copy(update={"nodes": nodes})
        out.append(snapshot.model_copy(update={"cluster": cluster, "jobs": jobs}))
    return out


def _dealt(rng: np.random.Generator, count: int, parts: int) -> np.ndarray:
    return rng.permutation(np.arange(count) % parts)


def popped(source: Path, folder: Path, limit_s: float) -> dict[str, Any]:
    """Plan the parts one after the other; objectives add up, the bound of the whole is not known."""
    total: dict[str, Any] = {"process_wall_s": 0.0, "cpu_s": 0.0, "peak_rss_mib": 0.0, "failed": None}
    objective = wall = 0.0
    snapshot = parse_snapshot(source.read_bytes(), str(source))
    if len(snapshot.cluster.nodes) < PARTS:
        return {**total, "failed": "fewer nodes than parts"}
    for i, part in enumerate(split(snapshot, PARTS, seed=0)):
        piece = folder / f"part{i}.json"
        piece.write_text(dump_json(part), encoding="utf-8")
        row = solved(piece, folder, ["--time-limit", str(limit_s / PARTS)], limit_s / PARTS)
        for name in ("process_wall_s", "cpu_s"):
            total[name] = round(total[name] + row[name], 3)
        total["peak_rss_mib"] = max(total["peak_rss_mib"], row["peak_rss_mib"])
        if "objective" not in row:
            return {**total, "failed": row["failed"]}
        objective, wall = objective + row["objective"], wall + row["wall_s"]
    return {**total, "objective": objective, "wall_s": round(wall, 3)}


def run(method: str, source: Path, folder: Path, limit_s: float) -> dict[str, Any]:
    """Run one method on one snapshot."""
    if method == "pop-4":
        return popped(source, folder, limit_s)
    if method == "gavel-lp":
        return command([sys.executable, str(Path(__file__).with_name("gavel_lp.py")), str(source)], limit_s)
    if method in ("gavel", "titan"):
        return solved(source, folder, ["--policy", method], limit_s)
    guard = [] if method in ("auto", "greedy") else ["--time-limit", str(limit_s)]
    return solved(source, folder, ["--backend", method, *guard], limit_s)


def instances(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return (name, jobs) of the instances asked for."""
    found = []
    for size in options.sizes.split(",") if options.sizes else []:
        found += [(f"{size}/{seed}", int(size.partition("x")[0])) for seed in range(options.seeds)]
    if options.titan:
        found += [(f"titan/{trace}@{at}", jobs) for trace, at, jobs in TITAN]
    return found


def write_instance(name: str, path: Path) -> bool:
    """Write a snapshot; False where the shared data are absent."""
    kind, _, rest = name.partition("/")
    if kind != "titan":
        jobs, _, gpus = kind.partition("x")
        path.write_text(dump_json(synthetic_snapshot(int(jobs), int(gpus), int(rest))), encoding="utf-8")
        return True
    root = Path(os.environ.get("YMIR_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"
    trace, _, at = rest.partition("@")
    found = root / "titan" / "workloads" / trace / "workload-0.csv"
    if not found.exists():
        return False
    arguments = [
        sys.executable,
        "-m",
        "ymir_opt",
        "import",
        "titan",
        str(found),
        "--profiles",
        str(root / "titan"),
    ]
    arguments += ["--at", at, "--cluster", "8x4:V100", "-o", str(path)]
    return subprocess.run(arguments, check=False, capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--titan", action="store_true", help="rounds from Titan's traces (shared data)")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each run")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    text = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    done = {(row["instance"], row["method"], row["limit_s"]) for row in rows}
    asked = [
        (name, method)
        for name, jobs in instances(options)
        for method in options.methods.split(",")
        if jobs <= LARGEST.get(method, 10**9) and (name, method, options.limit) not in done
    ]
    with tempfile.TemporaryDirectory() as temporary, Progress() as progress:
        folder = Path(temporary)
        task = progress.add_task("runs", total=len(asked))
        written = ""
        for name, method in asked:
            progress.update(task, description=f"{name} {method}")
            source = folder / "snapshot.json"
            if written != name and not write_instance(name, source):
                progress.console.print(f"{name}: its data are absent")
                progress.advance(task)
                continue
            written = name
            row = {"instance": name, "method": method, "limit_s": options.limit}
            row |= {"calibration_s": round(calibration_s(), 3), "machine": describe()}
            row |= run(method, source, folder, options.limit)
            with options.output.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            progress.advance(task)


if __name__ == "__main__":
    main()
