"""The event-driven engine: arrivals, completions, node events, probes, and planning rounds.

Order at one instant: events first, then planning. In fixed rounds completions are exact but their GPUs are
handed out at the next round; on events a plan follows every event, at least the minimum spacing apart.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ymir_opt.domain.errors import InputError
from ymir_opt.policies.base import Cadence
from ymir_opt.policies.view import Decision, SnapshotView
from ymir_opt.simulator.adapter import SnapshotAdapter
from ymir_opt.simulator.apply import apply_decision, check_decision
from ymir_opt.simulator.checking import Before, check_round_of
from ymir_opt.simulator.cluster import Cluster, NodeEvent, NodeSpec
from ymir_opt.simulator.estimates import EstimateError, Estimates
from ymir_opt.simulator.observe import view_of
from ymir_opt.simulator.results import JobRecord, Recorder, SimulationResult
from ymir_opt.simulator.state import Options
from ymir_opt.simulator.workload import TraceJob, Workload
from ymir_opt.simulator.world import World

__all__ = ["Engine", "Progress", "simulate"]

STALL_ROUNDS = 2000
FULL_CHECK_ROUNDS = 50


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for a progress bar."""

    now_s: float
    arrived: int
    finished: int
    total: int | None
    rounds: int


class Engine:
    """One simulation.

    Parameters
    ----------
    workload : Workload
    nodes : tuple of NodeSpec
    policy : object
        Columnar (``decide``) or snapshot (``plan``) policy.
    policy_name : str
        Name with variant, for messages and results.
    cadence : Cadence or None
        None: the policy's own.
    node_events : tuple of NodeEvent
    error : EstimateError or None
    options : Options
    seed : int
        Recorded; estimate errors use ``error.seed``.
    recorder : Recorder or None
    """

    def __init__(
        self,
        workload: Workload,
        nodes: tuple[NodeSpec, ...],
        policy: Any,
        *,
        policy_name: str = "",
        cadence: Cadence | None = None,
        node_events: tuple[NodeEvent, ...] = (),
        error: EstimateError | None = None,
        options: Options | None = None,
        seed: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        if not nodes:
            raise InputError("--cluster", "has no nodes", "give at least one node, such as 8x4:V100")
        types = workload.speeds.types
        for node in nodes:
            if node.gpu_type not in types:
                raise InputError(
                    f"node {node.id}",
                    f"GPU type {node.gpu_type!r} has no speeds in this trace",
                    f"known: {', '.join(types)}",
                )
        self.workload = workload
        self.policy = policy
        self.policy_name = policy_name or getattr(policy, "name", type(policy).__name__)
        self.cadence: Cadence = cadence or getattr(policy, "cadence", None) or Cadence.events()
        self.seed = seed
        self.recorder = recorder or Recorder()
        self.estimates = Estimates.build(workload, error, node_gpus=max(node.gpus for node in nodes))
        self.world = World(
            workload, self.estimates, Cluster(nodes, types), self.recorder, options or Options()
        )
        self.gpus = int(self.world.cluster.size.sum())
        self.node_events = sorted(node_events, key=lambda event: event.at_s)
        self._check_node_events()
        self.nodes = nodes
        self.adapter = _adapter(policy, self.policy_name)
        self._wants_places = self.adapter is not None
        self._arrivals: Iterator[TraceJob] = workload.jobs()
        self._next: TraceJob | None = next(self._arrivals, None)
        self.arrived = 0
        self.rounds = 0
        self.events = 0
        self.now = -math.inf
        self.plan_at = math.inf
        self.last_plan = -math.inf
        self.stalled = 0
        self.node_done = 0
        if self.adapter is not None:
            self.adapter.reset()
        elif hasattr(policy, "reset"):
            policy.reset()

    def _check_node_events(self) -> None:
        known = set(self.world.cluster.index) | {e.spec.id for e in self.node_events if e.spec is not None}
        for event in self.node_events:
            if event.node not in known:
                raise InputError(
                    f"node event {event.kind} {event.node!r}",
                    "names no node of the cluster",
                    f"known: {', '.join(sorted(known)[:12])}",
                )

    # ----------------------------------------------------------------- loop

    def run(
        self,
        progress: Callable[[Progress], None] | None = None,
        checkpoint: Path | None = None,
        checkpoint_rounds: int = 200,
        stop_after_rounds: int | None = None,
        until_s: float = math.inf,
    ) -> SimulationResult:
        """Run to the end (or for some rounds, or up to a moment) and return the result.

        Parameters
        ----------
        progress : callable or None
            Called after every round.
        checkpoint : Path or None
            Written (temporary file, then renamed) every `checkpoint_rounds` rounds; removed at the end.
        stop_after_rounds : int or None
            Stop early after this many rounds of this call; the state stays for :meth:`save`.
        until_s : float
            Stop when everything up to this moment has happened; :meth:`view` then shows that moment.
        """
        done = 0
        while self._step(until_s):
            done += 1
            if progress is not None:
                progress(self.progress())
            if checkpoint is not None and self.rounds % checkpoint_rounds == 0:
                self.save(checkpoint)
            if stop_after_rounds is not None and done >= stop_after_rounds:
                return self.result()
        if until_s < math.inf:
            self.now = max(self.now, until_s)
        elif checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return self.result()

    def progress(self) -> Progress:
        """Return where the run stands."""
        finished = self.world.stats["jobs_finished"]
        return Progress(self.now, self.arrived, finished, self.workload.length, self.rounds)

    def _step(self, until_s: float = math.inf) -> bool:
        """Advance to the end of the next planning round; False when nothing is left to happen by then."""
        world = self.world
        while True:
            event_at = self._next_event()
            if event_at == math.inf and world.active == 0:
                return False
            if self.plan_at == math.inf and event_at == math.inf:
                return False
            if min(event_at, self.plan_at) > until_s:
                return False
            if event_at <= self.plan_at:
                self._process(event_at)
                continue
            self.now = self.plan_at
            self.plan_at = math.inf
            if world.active:
                progressed = self._plan()
                self.stalled = 0 if progressed else self.stalled + 1
                self._schedule_next(progressed)
                return self.stalled < STALL_ROUNDS
            # Nothing to plan for: the next arrival wakes the planner.

    def _next_event(self) -> float:
        world = self.world
        heap = world.heap
        while heap and heap[0][4] >= 0 and world.store.truth.version[heap[0][3]] != heap[0][4]:
            heapq.heappop(heap)
        at = heap[0][0] if heap else math.inf
        if self._next is not None:
            at = min(at, self._next.submitted_at_s)
        # Node events after the last job has gone change nothing.
        if self.node_done < len(self.node_events) and (world.active or self._next is not None):
            at = min(at, self.node_events[self.node_done].at_s)
        return at

    def _process(self, at: float) -> None:
        """Handle every event at one instant."""
        world, heap = self.world, self.world.heap
        self.now = at
        while self.node_done < len(self.node_events) and self.node_events[self.node_done].at_s <= at:
            self._node_event(self.node_events[self.node_done])
            self.node_done += 1
        while heap and heap[0][0] <= at:
            _, _, kind, slot, version = heapq.heappop(heap)
            if version >= 0 and world.store.truth.version[slot] != version:
                continue
            self.events += 1
            if kind == "finish":
                world.finish(slot, at)
            elif kind == "fail":
                world.fail_start(slot, at)
            elif kind == "probe":
                world.end_probe(slot, at)
        while self._next is not None and self._next.submitted_at_s <= at:
            job = self.take_next()
            if self._next is not None and self._next.submitted_at_s < job.submitted_at_s:
                raise InputError(
                    f"trace {self.workload.name}",
                    f"job {self._next.id!r} is out of order",
                    "sort by submission",
                )
            world.arrive(job, self.arrived)
            self.arrived += 1
            self.events += 1
        self._wake(at)

    def take_next(self) -> TraceJob:
        """Return the next job of the trace and step past it."""
        job = self._next
        if job is None:
            raise InputError(
                f"trace {self.workload.name}", "has fewer jobs than before", "use the same trace"
            )
        self._next = next(self._arrivals, None)
        return job

    def _wake(self, at: float) -> None:
        """Set the next planning time after an event."""
        step = self.cadence.round_s
        if step is None:
            due = max(at, self.last_plan + self.cadence.min_spacing_s)
        else:
            due = math.ceil(at / step - 1e-12) * step
            if due <= self.last_plan:
                due = self.last_plan + step
        self.plan_at = min(self.plan_at, due)

    def _schedule_next(self, progressed: bool) -> None:
        step = self.cadence.round_s
        if step is not None and self.world.active:
            nothing_comes = not self.world.runs and self._next_event() == math.inf
            if nothing_comes and not progressed and not hasattr(self.policy, "state"):
                self.stalled = STALL_ROUNDS
            self.plan_at = (round(self.now / step) + 1) * step

    def _node_event(self, event: NodeEvent) -> None:
        cluster = self.world.cluster
        if event.kind == "add" and event.spec is not None:
            if event.spec.id not in cluster.index:
                cluster.add((event.spec,))
        elif event.kind == "down":
            if cluster.ready[cluster.index[event.node]]:
                self.world.node_down(cluster.index[event.node], event.at_s)
        elif event.kind == "up":
            if not cluster.ready[cluster.index[event.node]]:
                cluster.set_ready(cluster.index[event.node], True)
        else:
            raise InputError(
                f"node event of {event.node!r}", f"unknown kind {event.kind!r}", "use down, up or add"
            )

    # ------------------------------------------------------------- planning

    def view(self, *, places: bool = False) -> SnapshotView:
        """Return what the policy sees now: observations and estimates, progress brought up to date.

        With `places` it says where everything runs, also to a policy that does not ask.
        """
        return view_of(self.world, self.now, places=places or self._wants_places)

    def _plan(self) -> bool:
        world = self.world
        view = self.view()
        begin = time.perf_counter()
        decision: Decision = (self.adapter or self.policy).decide(view)
        wall = time.perf_counter() - begin
        self.last_plan = self.now
        self.rounds += 1
        check_decision(view, decision, self.policy_name)
        before = Before.of(world, self.now)
        changed, begun = apply_decision(world, view, decision, self.now, self.policy_name)
        everything = self.rounds % FULL_CHECK_ROUNDS == 0
        check_round_of(world, before, begun, decision, self.policy_name, all_runs=everything)
        free, ready = world.cluster.free, world.cluster.ready
        running = len(world.run_of) - sum(len(run.slots) - len(run.holders) for run in world.shared.values())
        total = int(world.cluster.size[ready].sum())
        self.recorder.round(
            self.now,
            total - int(free[ready].sum()),
            total,
            len(view) - running,
            running,
            int(free.max()) if len(free) else 0,
            wall,
            math.nan if decision.value_gap is None else decision.value_gap,
        )
        return changed or bool(world.runs)

    # --------------------------------------------------------------- results

    def result(self) -> SimulationResult:
        """Return what there is so far."""
        world = self.world
        stats = dict(world.stats)
        names = world.store.columns.ids
        unfinished = tuple(names[slot] for slot in world.store.active_slots().tolist())
        return SimulationResult(
            trace=self.workload.name,
            policy=self.policy_name,
            seed=self.seed,
            gpus=self.gpus,
            jobs=self.recorder.jobs,
            unfinished=unfinished,
            series={name: np.array(values) for name, values in self.recorder.series.items()},
            segments=self.recorder.segments,
            jct_sum_s=world.jct_sum_s,
            makespan_s=max(0.0, world.last_completion_s - world.store.first_submission_s),
            rounds=self.rounds,
            events=self.events,
            **stats,
        )

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        from ymir_opt.simulator.checkpoint import save

        save(self, path)

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint of the same workload, cluster and policy."""
        from ymir_opt.simulator.checkpoint import restore

        restore(self, path)


def _adapter(policy: Any, name: str) -> SnapshotAdapter | None:
    """Return the columnar face of a snapshot policy; None for a columnar one."""
    if hasattr(policy, "decide"):
        return None
    if hasattr(policy, "plan"):
        return SnapshotAdapter(policy, name)
    raise InputError(f"policy {name}", "has neither decide() nor plan()", "give an object with one of them")


def simulate(
    workload: Workload,
    nodes: tuple[NodeSpec, ...],
    policy: Any,
    *,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: Path | None = None,
    sink: Callable[[JobRecord], None] | None = None,
    segments: bool = False,
    series: bool = True,
    **options: Any,
) -> SimulationResult:
    """Run one simulation; see :class:`Engine` for the options.

    Parameters
    ----------
    checkpoint : Path or None
        If the file exists, the run continues from it.
    sink : callable or None
        Takes every finished job's record (then the result holds none, and memory stays in proportion to
        the active jobs).
    segments, series : bool
        Whether to record GPU segments and per-round series.
    """
    engine = Engine(workload, nodes, policy, recorder=Recorder(sink, segments, series), **options)
    if checkpoint is not None and checkpoint.exists():
        engine.restore(checkpoint)
    return engine.run(progress, checkpoint)


def added_nodes(specs: tuple[NodeSpec, ...], at_s: float) -> tuple[NodeEvent, ...]:
    """Return events that add nodes at a time."""
    return tuple(NodeEvent(at_s, "add", spec.id, replace(spec)) for spec in specs)
