"""Our planner and its peers on the same rounds: quality over CPU time, memory, bounds and gaps.

Run ``python solver_runs/solver_peers.py -o FILE.jsonl`` (a quarter of an hour), or with ``--quick`` (two
minutes). Every run is a process of its own (``traced_solve.py``). First ``auto`` plans a round without any
limit; then every peer gets ``--times`` as much CPU time for planning, candidates included and imports
not, enforced by the kernel: what else the machine does starves nobody. What was known when is recorded, so
that one run tells what a method has at the CPU time of ``auto`` and at any later one.

Rows are appended as JSON lines as they come. A run that the file has already, of the same ``ymir_opt``
sources, is skipped: an interrupted measurement goes on where it stopped. Methods:

* ``auto``: prices first from 200 jobs on, else HiGHS;
* ``highs``: HiGHS on what its relaxation's reduced costs leave over (exact); ``highs-whole``, ``cpsat``,
  ``cbc``: one model of the whole pool; ``greedy``, ``matching``, ``decompose``, ``pulp-highs``: as in
  ``ymir-plan solve``;
* ``pop-4``: jobs and nodes split at random into four rounds that ``auto`` plans alone (D. Narayanan et al.,
  *Solving large-scale granular resource allocation problems efficiently with POP*, SOSP 2021);
* ``gavel``, ``titan``: these systems' decisions, by their own objectives, so that only times compare;
* ``gavel-lp``: Gavel's fractional max-sum-throughput program alone, through cvxpy.

``calibration_s`` is the CPU time of a fixed piece of work just before the run: machines and loads differ,
and the quotient of a CPU time by it does so less.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from run_rows import OURS, Row, append_row, code_version, key, profile_of, read_rows

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json

PER_MIB = 1 << 20 if sys.platform == "darwin" else 1 << 10
TITAN = (("FM-2-vit", 7200, 63), ("FM-1-roberta-base", 28800, 120), ("FM-2-vit", 25200, 500))
UNLIMITED = ("auto", "decompose", "greedy")
"""Methods that end by themselves; they get no limit."""
TURN_S, SAMPLED = 0.01, 10
STARTING_S = 60.0
SLOWEST = 10
"""A run is given up where it has had no more than one CPU second in so many of wall clock."""


@dataclass(frozen=True)
class Preset:
    """What is run where nothing else is asked for.

    Attributes
    ----------
    sizes : str
    seeds, seeds_to : int
        Seeds of ``auto``, up to so many jobs; one seed above.
    methods : str
    alone : str
        Sizes that ``auto`` plans alone: too large for any peer in this time.
    times, most_cpu_s : float
        Peers get so many times the CPU time of ``auto``, at most so many seconds, at least as much as it.
    """

    sizes: str
    seeds: int
    seeds_to: int
    methods: str
    alone: str
    times: float
    most_cpu_s: float


USUAL = Preset(
    sizes="100x32,300x240,1000x240,1000x1024,3000x1024,10000x1024,10000x10000",
    seeds=3,
    seeds_to=3000,
    methods="auto,greedy,highs,highs-whole,cpsat,cbc,pop-4,gavel,titan,gavel-lp",
    alone="10000x10000",
    times=10.0,
    most_cpu_s=60.0,
)
QUICK = Preset(
    sizes="100x32,300x240",
    seeds=1,
    seeds_to=3000,
    methods="auto,greedy,highs,highs-whole,cpsat,cbc,pop-4",
    alone="10000x10000",
    times=10.0,
    most_cpu_s=20.0,
)


@dataclass(frozen=True)
class Round:
    """A round to plan: ``JOBSxGPUS/SEED``, or ``titan/TRACE@SECOND``."""

    name: str
    jobs: int
    seed: int


def calibration_s() -> float:
    """Return the CPU seconds of a fixed piece of interpreted and vectorised work."""
    begun = time.process_time()
    sum(i * i % 7 for i in range(1_000_000))
    values = np.arange(2_000_000) % 1013
    for _ in range(4):
        np.argsort(values, kind="stable")
    return time.process_time() - begun


def run(method: str, source: Path, folder: Path, budget_s: float | None) -> Row:
    """Run one method on one snapshot; return what a row says of the run."""
    events = folder / "events.jsonl"
    events.unlink(missing_ok=True)
    script = Path(__file__).with_name("traced_solve.py")
    arguments = [sys.executable, str(script), str(source), str(events), method]
    if budget_s is not None:
        arguments += ["--budget", str(budget_s)]
    guard = math.inf if budget_s is None else STARTING_S + SLOWEST * budget_s
    row, code, last = _watched(arguments, folder, guard)
    return row | told(read_rows(events), code, last, budget_s)


def _watched(arguments: list[str], folder: Path, guard_s: float) -> tuple[Row, int | None, str]:
    """Run a command in a group of its own; its exit code is None where the guard struck."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    log = folder / "errors.txt"
    begun = time.perf_counter()
    with log.open("wb") as errors:
        child = subprocess.Popen(
            arguments,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        code: int | None = None
        peak = turns = 0
        try:
            while True:
                if turns % SAMPLED == 0:
                    peak = max(peak, _memory(child.pid))
                turns += 1
                done, status, usage = os.wait4(child.pid, os.WNOHANG)
                if done:
                    code = os.waitstatus_to_exitcode(status)
                    break
                if time.perf_counter() - begun > guard_s:
                    os.killpg(child.pid, signal.SIGKILL)
                    _, status, usage = os.wait4(child.pid, 0)
                    break
                time.sleep(TURN_S)
        finally:
            child.returncode = code if code is not None else -signal.SIGKILL
            # what the process started (CBC is a program of its own) ends with it, also on an interrupt
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    row = {
        "process_wall_s": round(time.perf_counter() - begun, 3),
        "process_cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_rss_mib": round(peak / 1024 if peak else usage.ru_maxrss / PER_MIB, 1),
    }
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return row, code, lines[-1][:200] if lines else ""


def _memory(process: int) -> int:
    """Return the memory of a process in KiB, 0 if not known.

    Its largest resident size so far, or what it and its children hold now, pages that they share once,
    if that is more. (``ru_maxrss`` of a process that was started from a larger one is the larger one's.)
    """
    folder = Path("/proc")
    try:
        largest = _kib(folder / str(process) / "status", "VmHWM:")
        children = (folder / str(process) / "task" / str(process) / "children").read_text().split()
        held = (str(process), *children) if children else ()
        together = sum(_kib(folder / one / "smaps_rollup", "Pss:") for one in held)
    except OSError:
        return 0
    return max(largest, together)


def _kib(path: Path, name: str) -> int:
    return sum(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))


def told(events: list[Row], code: int | None, last: str, budget_s: float | None) -> Row:
    """Return what the events of a run say, cut off at the budget.

    Parameters
    ----------
    events : list of dict
    code : int or None
        Exit code; None: given up after too long a wall-clock time.
    last : str
        The last line on standard error.
    budget_s : float or None
    """
    profile = profile_of(events)
    within = [line for line in profile if budget_s is None or float(line[0] or 0) <= budget_s]
    pool = next((event for event in events if event["kind"] == "pool"), {})
    carried = next((event for event in events if event["kind"] == "carried"), {})
    plans = [event for event in events if event["kind"] == "plan"]
    ended = bool(plans) and len(plans) == plans[0]["parts"] and code == 0
    cpu_s = sum(event["cpu_s"] for event in plans) if ended else None
    in_time = cpu_s is not None and (budget_s is None or cpu_s <= budget_s)
    row: Row = {
        "planning_cpu_s": cpu_s if in_time else None,
        "planning_wall_s": round(sum(event["wall_s"] for event in plans), 4) if in_time else None,
        "pool_cpu_s": pool.get("cpu_s"),
        "columns": pool.get("columns"),
        "queue_all": pool.get("queue_all"),
        "carried": carried.get("objective"),
        "objective": within[-1][1] if within else None,
        "bound": within[-1][2] if within else None,
        "profile": within,
        "failed": None,
    }
    if plans and plans[0]["parts"] > 1:
        # these are one part's
        row |= {"columns": None, "queue_all": None, "carried": None}
    if in_time:
        single = plans[0] if plans[0]["parts"] == 1 else {}
        row |= {name: single.get(name) for name in ("value_gap", "gap_scope")}
        row["ended"] = single.get("stopped_by") or "done"
    elif code is None:
        row["ended"] = "wall clock"
    elif code == -signal.SIGXCPU or cpu_s is not None or _spent(events, budget_s):
        row["ended"] = "CPU budget"
    else:
        row |= {"ended": "failed", "failed": last or f"exit code {code}"}
    return row


def _spent(events: list[Row], budget_s: float | None) -> bool:
    """Say whether a solver ended for want of CPU time (CBC is a process of its own, and may be stopped)."""
    return budget_s is not None and bool(events) and events[-1]["cpu_s"] >= 0.95 * budget_s


def rounds(sizes: str, seeds: int, seeds_to: int, titan: bool) -> Iterator[Round]:
    """Yield the rounds asked for."""
    for size in sizes.split(",") if sizes else []:
        jobs = int(size.partition("x")[0])
        for seed in range(seeds if jobs <= seeds_to else 1):
            yield Round(f"{size}/{seed}", jobs, seed)
    if titan:
        for trace, at, jobs in TITAN:
            yield Round(f"titan/{trace}@{at}", jobs, 0)


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
    arguments = [sys.executable, "-m", "ymir_opt", "import", "titan", str(found)]
    arguments += ["--profiles", str(root / "titan"), "--at", at, "--cluster", "8x4:V100", "-o", str(path)]
    return subprocess.run(arguments, check=False, capture_output=True).returncode == 0


def asked(options: argparse.Namespace) -> list[tuple[Round, str]]:
    """Return the runs: of each round ``auto`` first, then its peers where it has any."""
    methods = [method for method in options.methods.split(",") if method != OURS]
    out = []
    for found in rounds(options.sizes, options.seeds, options.seeds_to, options.titan):
        out.append((found, OURS))
        if found.seed < options.peer_seeds and found.name.partition("/")[0] not in options.alone.split(","):
            out += [(found, method) for method in methods]
    return out


def measure(options: argparse.Namespace, progress: Progress) -> None:
    """Run what is not in the file yet."""
    code = code_version()
    rows = {key(row): row for row in read_rows(options.output)}
    runs = asked(options)
    task = progress.add_task("", total=len(runs))
    written = ""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = folder / "snapshot.json"
        for found, method in runs:
            head: Row = {"instance": found.name, "jobs": found.jobs, "seed": found.seed, "method": method}
            free = method in UNLIMITED
            head |= {"times": None if free else options.times, "code": code}
            head |= {"most_cpu_s": None if free else options.most_cpu_s}
            progress.update(task, description=f"{found.name} {method}")
            if key(head) not in rows:
                if written != found.name and not write_instance(found.name, source):
                    progress.console.print(f"{found.name}: its data are absent")
                    progress.advance(task)
                    continue
                written = found.name
                ours = rows.get(key(head | {"method": OURS, "times": None, "most_cpu_s": None}))
                budget = None if free else budget_s(ours, options.times, options.most_cpu_s)
                head |= {"budget_cpu_s": budget, "calibration_s": round(calibration_s(), 3)}
                row = head | {"machine": describe()} | run(method, source, folder, budget)
                if code_version() != code:
                    raise SystemExit("the sources of ymir_opt changed meanwhile; run this again")
                append_row(options.output, row)
                rows[key(row)] = row
                progress.console.print(line_of(row), soft_wrap=True, highlight=False)
            progress.advance(task)


def budget_s(ours: Row | None, times: float, most_cpu_s: float) -> float:
    """Return the CPU seconds of a peer: a multiple of ours, capped, and never less than ours."""
    cpu_s = None if ours is None else ours["planning_cpu_s"]
    return most_cpu_s if cpu_s is None else round(max(min(times * cpu_s, most_cpu_s), cpu_s), 3)


def line_of(row: Row) -> str:
    """Return a row in short."""

    def shown(value: Any, text: str) -> str:
        return "-" if value is None else format(value, text)

    return (
        f"{row['instance']:>28} {row['method']:<12} {shown(row['planning_cpu_s'], '.2f'):>7} CPU s"
        f"{shown(row['objective'], '.4f'):>13}  {row['failed'] or row['ended']}"
    )


def main() -> None:
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--quick", action="store_true", help="two sizes, one seed; about two minutes")
    preset = QUICK if first.parse_known_args()[0].quick else USUAL
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], parents=[first])
    parser.add_argument("--sizes", default=preset.sizes)
    parser.add_argument("--seeds", type=int, default=preset.seeds, help="seeds of auto")
    parser.add_argument("--seeds-to", type=int, default=preset.seeds_to, help="jobs; above, one seed")
    parser.add_argument("--peer-seeds", type=int, default=1, help="seeds of the peers")
    parser.add_argument("--alone", default=preset.alone, help="sizes without peers")
    parser.add_argument("--titan", action="store_true", help="rounds from Titan's traces too (shared data)")
    parser.add_argument("--methods", default=preset.methods)
    parser.add_argument("--times", type=float, default=preset.times, help="CPU time of peers over auto's")
    parser.add_argument("--most", dest="most_cpu_s", type=float, default=preset.most_cpu_s, help="CPU s")
    parser.add_argument("-o", "--output", type=Path, required=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Progress(*columns) as progress:
        try:
            measure(options, progress)
        except KeyboardInterrupt:
            raise SystemExit("stopped; the same command goes on from here") from None


if __name__ == "__main__":
    main()
