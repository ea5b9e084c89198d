"""Plan one round in this process and write down what is known after how many CPU seconds.

``solver_peers.py`` runs ``python traced_solve.py SNAPSHOT EVENTS METHOD [--budget CPU_S]``. Events are JSON
lines, written as they happen, so that they survive the end of this process when its CPU time is used up: the
limit is the kernel's (``RLIMIT_CPU``), whatever else the machine does. A tiny round is planned before, so
that imports are not counted.

Methods state the same model over the same candidates. The planner runs as it is, with two changes: what a
solver tells on the way is written down, and the peers' deterministic work limit is lifted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import gavel_lp
import numpy as np

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.errors import YmirError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.formulation.linear import LinearModel
from ymir_opt.planner import pipeline
from ymir_opt.planner.search import Round
from ymir_opt.planner.selection import Selection
from ymir_opt.solvers import registry
from ymir_opt.solvers.base import Capabilities, Limits, Progress, SolveResult

PARTS = 4
WORTH = 1e-7
"""A bound is written down when it moved by more than this share of queueing everything."""
APART = 1.02
_CBC_FOUND = re.compile(r"^Cbc0012I Integer solution of (\S+) found .*\((\S+) seconds\)", re.MULTILINE)
_CBC_BOUND = re.compile(r"^Cbc0010I After .* best possible (\S+) \((\S+) seconds\)", re.MULTILINE)


class Trace:
    """Writes events with the CPU time, children included, since planning began."""

    def __init__(self, stream: TextIO | None, parts: int = 1) -> None:
        self.stream = stream
        self.parts = parts
        self.part = -1
        self.quantum = self.queue_all = self.began = 0.0
        self.attempt = 0

    def begin(self) -> None:
        """Begin a round, or the next part of one."""
        self.part, self.attempt, self.began = self.part + 1, 0, _cpu_s()
        self.bound, self.told = -math.inf, 0.0

    def cpu_s(self) -> float:
        return _cpu_s() - self.began

    def write(self, kind: str, **values: Any) -> None:
        event = {"kind": kind, "part": self.part, "parts": self.parts, "cpu_s": round(self.cpu_s(), 4)}
        if self.stream is not None:
            self.stream.write(json.dumps(event | values) + "\n")
            self.stream.flush()

    def pool(self, work: Round) -> None:
        """Tell that the candidates are there."""
        self.quantum = work.table.quantum
        self.queue_all = float(work.table.queued_cost.sum()) * self.quantum
        self.write("pool", columns=len(work.table), queue_all=self.queue_all)

    def progress(self, model: LinearModel) -> Progress:
        """Return what a solver calls with improvements and bounds, in quanta."""

        def told(x: np.ndarray[Any, np.dtype[np.int64]] | None, bound: float | None) -> None:
            if x is not None:
                self.known(model.objective(x), bound)
            elif bound is not None and self._worth(bound * self.quantum):
                self.known(None, bound)

        return told

    def known(self, objective: float | None, bound: float | None, cpu_s: float | None = None) -> None:
        """Tell what a solver found and proved, in quanta."""
        values: dict[str, Any] = {} if cpu_s is None else {"cpu_s": round(cpu_s, 4)}
        if objective is not None:
            values["objective"] = objective * self.quantum
        if bound is not None and math.isfinite(bound):
            values["bound"] = bound * self.quantum
        self.write("point", attempt=self.attempt, **values)

    def _worth(self, bound: float) -> bool:
        now = self.cpu_s()
        if bound <= self.bound + WORTH * self.queue_all or now < APART * self.told:
            return False
        self.bound, self.told = bound, now
        return True


class Traced:
    """A backend that is watched; see `ymir_opt.solvers.base.Backend`."""

    def __init__(self, inner: Any, trace: Trace, unlimited: bool) -> None:
        self.inner, self.trace, self.unlimited = inner, trace, unlimited
        self.name: str = inner.name
        self.capabilities: Capabilities = inner.capabilities

    def solve(self, model: LinearModel, *, limits: Limits, seed: int) -> SolveResult:
        self.trace.attempt += 1
        if self.unlimited:
            limits = replace(limits, work=None)
        telling = _TELLING.get(self.name)
        if telling is not None:
            telling(self.trace, model)
        result: SolveResult = self.inner.solve(
            model, limits=limits, seed=seed, progress=self.trace.progress(model)
        )
        self.trace.known(result.objective, result.bound)
        return result


class WholeHighs:
    """HiGHS on all columns at once; the backend ``highs`` leaves out what the relaxation rules out."""

    name = "highs"
    capabilities = Capabilities(exact=True, deterministic=True, work_limit=True, imports=("highspy",))

    def solve(
        self, model: LinearModel, *, limits: Limits, seed: int, progress: Progress | None
    ) -> SolveResult:
        from ymir_opt.solvers.highs_core import solve_whole

        return solve_whole(model, None, limits, seed, progress)


class Terminal:
    """A terminal that keeps what is written to it; of what CBC writes to a file a kill loses the end."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.name = os.ttyname(self.slave)
        self.pieces: list[bytes] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        # a terminal that nobody holds open any more gives an error, or nothing
        with contextlib.suppress(OSError):
            while piece := os.read(self.master, 1 << 16):
                self.pieces.append(piece)

    def end(self) -> str:
        os.close(self.slave)
        self.reader.join()
        os.close(self.master)
        return b"".join(self.pieces).decode(errors="replace").replace("\r\n", "\n")


def _cbc_tells(trace: Trace, model: LinearModel) -> None:
    """Read from CBC's log what it found when.

    Its own limit is not used: it counts wall clock in the root relaxation, whatever its mode of time is.
    """
    import pulp

    class Cbc(_command(pulp)):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options | {"timeMode": "cpu"})
            self.began = 0.0

        def getOptions(self) -> list[str]:  # noqa: N802 -- PuLP's name
            # asked for once the model is written, just before CBC starts
            self.began = trace.cpu_s()
            options: list[str] = super().getOptions()
            return options

        def solve_CBC(self, lp: Any, use_mps: bool = True) -> Any:  # noqa: N802 -- PuLP's name
            log, terminal = Path(self.optionsDict["logPath"]), Terminal()
            self.optionsDict["logPath"] = terminal.name
            try:
                return super().solve_CBC(lp, use_mps)
            finally:
                text = terminal.end()
                log.write_text(text, encoding="utf-8")
                for when, objective, bound in cbc_log(text):
                    points = [None if v is None else v + model.offset for v in (objective, bound)]
                    trace.known(points[0], points[1], self.began + when)

    pulp.COIN_CMD = Cbc


def _command(pulp: Any) -> Any:
    from pulp.apis import coin_api

    return coin_api.COIN_CMD


def cbc_log(text: str) -> list[tuple[float, float | None, float | None]]:
    """Return (CPU s, objective, bound) of what CBC reports, in order of time."""
    found = [(float(s), float(o), None) for o, s in _CBC_FOUND.findall(text)]
    proved = [(float(s), None, float(b)) for b, s in _CBC_BOUND.findall(text) if abs(float(b)) < 1e40]
    return sorted([*found, *proved], key=lambda line: line[0])


_TELLING: dict[str, Callable[[Trace, LinearModel], None]] = {"cbc": _cbc_tells}


_ORIGINAL: dict[str, Callable[..., Any]] = {"carried": vars(pipeline)["carried"], "get": registry.get}


def watch(trace: Trace, *, unlimited: bool, whole: bool = False) -> None:
    """Have the planner's pool, carried-over plan and solver traced."""

    def carried(work: Round, **options: Any) -> Selection:
        trace.pool(work)
        selection: Selection = _ORIGINAL["carried"](work, **options)
        trace.write("carried", objective=selection.objective * work.table.quantum)
        return selection

    def get(name: str) -> Any:
        return Traced(WholeHighs() if whole else _ORIGINAL["get"](name), trace, unlimited)

    vars(pipeline)["carried"] = carried
    registry.get = get


def plan(
    trace: Trace, snapshot: Snapshot, backend: str, *, unlimited: bool = False, whole: bool = False
) -> None:
    """Plan a round with one of our backends."""
    watch(trace, unlimited=unlimited, whole=whole)
    trace.begin()
    _told(trace, pipeline.plan_round(snapshot, backend=backend))


def pop(trace: Trace, snapshot: Snapshot) -> None:
    """Plan random parts one after the other."""
    watch(trace, unlimited=False)
    trace.parts = PARTS
    for part in split(snapshot, PARTS, seed=0):
        trace.begin()
        _told(trace, pipeline.plan_round(part))


def policy(trace: Trace, snapshot: Snapshot, name: str) -> None:
    """Let another system's policy decide."""
    from ymir_opt import api

    trace.begin()
    _told(trace, api.solve(snapshot, policy=name))


def fractional(trace: Trace, snapshot: Snapshot) -> None:
    """Solve Gavel's linear program alone."""
    trace.begin()
    began = time.perf_counter()
    gavel_lp.shares(snapshot)
    trace.write("plan", wall_s=round(time.perf_counter() - began, 4))


def _told(trace: Trace, found: Plan) -> None:
    solver = found.solver
    trace.write(
        "plan",
        wall_s=round(solver.wall_s, 4),
        objective=solver.objective,
        bound=solver.bound,
        value_gap=solver.value_gap,
        gap_scope=solver.gap_scope.value,
        stopped_by=solver.stopped_by.value,
        columns=solver.candidates.columns,
    )


METHODS: dict[str, Callable[[Trace, Snapshot], None]] = {
    "auto": partial(plan, backend="auto"),
    "decompose": partial(plan, backend="decompose"),
    "greedy": partial(plan, backend="greedy"),
    "matching": partial(plan, backend="matching"),
    "highs": partial(plan, backend="highs", unlimited=True),
    "highs-whole": partial(plan, backend="highs", unlimited=True, whole=True),
    "pulp-highs": partial(plan, backend="pulp-highs", unlimited=True),
    "cpsat": partial(plan, backend="cpsat", unlimited=True),
    "cbc": partial(plan, backend="cbc", unlimited=True),
    "pop-4": pop,
    "gavel": partial(policy, name="gavel"),
    "titan": partial(policy, name="titan"),
    "gavel-lp": fractional,
}


def split(snapshot: Snapshot, parts: int, seed: int) -> list[Snapshot]:
    """Return rounds of random shares of nodes and jobs; a running job stays with its node."""
    rng = np.random.default_rng(seed)
    if len(snapshot.cluster.nodes) < parts:
        raise SystemExit(f"{len(snapshot.cluster.nodes)} nodes are fewer than {parts} parts")
    dealt = rng.permutation(np.arange(len(snapshot.cluster.nodes)) % parts)
    node_part = {n.id: int(p) for n, p in zip(snapshot.cluster.nodes, dealt, strict=True)}
    job_part = {}
    dealt = rng.permutation(np.arange(len(snapshot.jobs)) % parts)
    for job, p in zip(snapshot.jobs, dealt, strict=True):
        job_part[job.id] = node_part[next(iter(job.allocation))] if job.allocation else int(p)
    out = []
    for part in range(parts):
        nodes = tuple(n for n in snapshot.cluster.nodes if node_part[n.id] == part)
        jobs = tuple(j for j in snapshot.jobs if job_part[j.id] == part)
        cluster = snapshot.cluster.model_copy(update={"nodes": nodes})
        out.append(snapshot.model_copy(update={"cluster": cluster, "jobs": jobs}))
    return out


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _warm(method: str) -> None:
    """Plan a tiny round: everything that is loaded on first use is there then."""
    tiny = synthetic_snapshot(12, 64)
    METHODS[method](Trace(None), tiny)
    if method in ("auto", "pop-4"):
        METHODS["decompose"](Trace(None), tiny)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--budget", type=float, default=math.inf, help="CPU seconds of planning")
    options = parser.parse_args()
    snapshot = parse_snapshot(options.snapshot.read_bytes(), str(options.snapshot))
    _warm(options.method)
    if math.isfinite(options.budget):
        # whole seconds; what is found past the budget is cut off when the events are read
        whole = math.ceil(time.process_time() + options.budget)
        resource.setrlimit(resource.RLIMIT_CPU, (whole, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    with options.events.open("w", encoding="utf-8") as stream:
        trace = Trace(stream)
        try:
            METHODS[options.method](trace, snapshot)
        except YmirError as error:
            trace.write("failed")
            sys.exit(str(error).replace("\n", " "))


if __name__ == "__main__":
    main()
