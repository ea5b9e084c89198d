"""Why a job waits: per GPU type the first constraint that it meets, with needed and available numbers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.plan import Reason
from ymir_opt.domain.snapshot import JobState, NodeState
from ymir_opt.formulation.priority import group_class
from ymir_opt.formulation.shapes import Shape
from ymir_opt.placement.fewest import fewest_nodes
from ymir_opt.placement.pack import place

if TYPE_CHECKING:
    from ymir_opt.planner.profiling import Reservation
    from ymir_opt.planner.search import Round
    from ymir_opt.planner.selection import Selection

__all__ = ["WaitingReasons"]

# of several types' reasons the one nearest to a start names the job's
_NEAREST = (
    Reason.SWITCH_COST_EXCEEDS_GAIN,
    Reason.TOPOLOGY_PLACEMENT_FAILED,
    Reason.LOWER_PRIORITY,
    Reason.INSUFFICIENT_GPUS,
    Reason.EXCEEDS_MAX_QUOTA,
    Reason.NODE_UNAVAILABLE,
    Reason.MEMORY_EXCEEDS_GPU,
    Reason.NO_FEASIBLE_GPU_TYPE,
)


class WaitingReasons:
    """Answers why jobs wait in one plan."""

    def __init__(self, work: Round, selection: Selection, reservation: Reservation) -> None:
        self.work = work
        self.selection = selection
        self.reservation = reservation
        instance = work.evaluator.instance
        self.used = np.zeros(len(instance.gpu_node), dtype=np.bool_)
        for rows in (*selection.gpus, *reservation.gpus.values()):
            self.used[rows] = True
        self.free = instance.gpu_ready & ~self.used
        self._cache: dict[tuple[object, ...], tuple[Reason, str]] = {}

    def why(self, j: int) -> tuple[Reason, str]:
        """Return the reason and message of a waiting job."""
        evaluator, job = self.work.evaluator, self.work.evaluator.instance.jobs[j]
        now = evaluator.instance.snapshot.taken_at_s
        if evaluator.jobs.backed_off[j] and job.not_before_s is not None:
            return (
                Reason.BACK_OFF,
                f"not before {job.not_before_s:.6g} s (in {job.not_before_s - now:.6g} s), "
                f"after {job.failed_starts} failed starts",
            )
        if not evaluator.jobs.known[j] and not evaluator.jobs.rigid[j]:
            return self._unknown(j)
        types = evaluator.instance.types
        if not types:
            return Reason.NO_FEASIBLE_GPU_TYPE, "the cluster has no nodes"
        found = [(t, *self._on_type(j, t)) for t in range(len(types))]
        reason = min((r for _, r, _ in found), key=_NEAREST.index)
        return reason, "; ".join(f"{types[t]}: {message}" for t, _, message in found)

    def preempted(self, j: int) -> tuple[Reason, str]:
        """Return the reason and message of a job that is stopped."""
        instance = self.work.evaluator.instance
        group = instance.running[instance.running_of[j]]
        if not group.keepable:
            gone = sorted(
                {instance.nodes[instance.gpu_node[u]].id for u in group.gpus if not instance.gpu_exists[u]}
            )
            return Reason.NODE_UNAVAILABLE, f"GPUs that it held left with {', '.join(gone)}"
        taken = self._takers(group.gpus)
        gain = f"; {len(group.gpus)} {instance.types[group.type]} are released"
        if taken:
            names = ", ".join(taken[:4]) + (f" and {len(taken) - 4} more" if len(taken) > 4 else "")
            return Reason.LOWER_PRIORITY, f"its GPUs go to {names}, which gain more from them{gain}"
        return Reason.LOWER_PRIORITY, f"its quota goes to jobs that gain more from it{gain}"

    def _takers(self, gpus: NDArray[np.int64]) -> list[str]:
        table, instance = self.work.table, self.work.evaluator.instance
        return [
            instance.jobs[j].id
            for c, rows in zip(self.selection.columns, self.selection.gpus, strict=True)
            if table.keep[c] < 0 and np.isin(rows, gpus).any()
            for j in table.jobs[c]
            if j >= 0
        ]

    def _unknown(self, j: int) -> tuple[Reason, str]:
        taken = sum(len(rows) for rows in self.reservation.gpus.values())
        return (
            Reason.UNKNOWN_THROUGHPUT,
            f"no throughput or work is known; {taken} GPUs profile other jobs this round and none is left "
            "for this one",
        )

    # -- one type -------------------------------------------------------------------------------

    def _on_type(self, j: int, t: int) -> tuple[Reason, str]:
        evaluator = self.work.evaluator
        job = evaluator.instance.jobs[j]
        key = (
            t,
            int(evaluator.jobs.profile[j]),
            int(evaluator.jobs.min[j]),
            int(evaluator.jobs.max[j]),
            job.gpu_counts,
            job.gpu_types,
            tuple(sorted(job.node_selector.items())),
            job.workers,
            job.queue,
            int(evaluator.instance.job_class[j]),
            job.memory_gib,
            job.cpus_per_gpu,
            job.host_memory_gib,
            job.parallelism,
            job.state is JobState.RUNNING,
        )
        if key not in self._cache:
            self._cache[key] = self._examine(j, t)
        return self._cache[key]

    def _examine(self, j: int, t: int) -> tuple[Reason, str]:
        evaluator, quotas = self.work.evaluator, self.work.quotas
        instance, jobs = evaluator.instance, evaluator.jobs
        job = instance.jobs[j]
        if not jobs.allowed_types[j][t]:
            return Reason.NO_FEASIBLE_GPU_TYPE, "the job does not allow it"
        row = int(quotas.row_of[quotas.queue_of[j], t])
        if row == -1:
            return Reason.EXCEEDS_MAX_QUOTA, f"queue {job.queue} has no quota of it"
        counts = jobs.counts(j, t)
        if not len(counts):
            return Reason.NO_FEASIBLE_GPU_TYPE, "no throughput is known at an allowed count"
        least = int(counts.min())
        total = int((instance.gpu_exists & (instance.gpu_type == t)).sum())
        shape = self._shape(j, t, least)
        if shape is None:
            memory = float(jobs.memory(np.array([j]), np.array([t]), np.array([least]))[0])
            most = float(instance.levels[t].max()) if len(instance.levels[t]) else 0.0
            return (
                Reason.MEMORY_EXCEEDS_GPU,
                f"needs {memory:.6g} GiB per GPU, the largest has {most:.6g} GiB",
            )
        if fewest_nodes(instance, shape) <= 0:
            return self._no_node(j, t, least, total, shape)
        if row >= 0 and (blocked := self._quota(j, t, row, least)):
            return Reason.EXCEEDS_MAX_QUOTA, blocked
        eligible = instance.eligible_nodes(shape.selector)[instance.gpu_node]
        usable = self.free & (instance.gpu_type == t) & eligible & (instance.gpu_level >= shape.level)
        free = int(usable.sum())
        if free < least:
            holders = self._higher(j, t)
            text = f"needs {least}, {free} of {total} are free after this plan"
            if holders:
                return Reason.LOWER_PRIORITY, f"{text}; {holders} are held by higher priority classes"
            return Reason.INSUFFICIENT_GPUS, text
        if not place(instance, self.free, [], [shape]).ok:
            per_node = np.bincount(instance.gpu_node[usable], minlength=len(instance.nodes))
            return (
                Reason.TOPOLOGY_PLACEMENT_FAILED,
                f"needs {least} on {fewest_nodes(instance, shape)} node(s), {free} are free "
                f"but at most {int(per_node.max())} on one node",
            )
        return Reason.SWITCH_COST_EXCEEDS_GAIN, f"{free} are free, but starting gains less than it costs"

    def _shape(self, j: int, t: int, gpus: int) -> Shape | None:
        """Return what the job alone asks of the nodes; None if no GPU has the memory."""
        instance, jobs = self.work.evaluator.instance, self.work.evaluator.jobs
        job = instance.jobs[j]
        memory = float(jobs.memory(np.array([j]), np.array([t]), np.array([gpus]))[0])
        level = instance.level_for(t, None if np.isnan(memory) else memory)
        if level < 0 and len(instance.levels[t]):
            return None
        return Shape(
            type=t,
            gpus=gpus,
            level=max(level, 0),
            selector=tuple(sorted(job.node_selector.items())),
            worker=job.workers.gpus_each if job.workers is not None else 0,
            whole=instance.pipeline((j,)),
            cpus_per_gpu=job.cpus_per_gpu or 0.0,
            host_gib_per_gpu=(job.host_memory_gib or 0.0) / gpus,
        )

    def _no_node(self, j: int, t: int, least: int, total: int, shape: Shape) -> tuple[Reason, str]:
        instance = self.work.evaluator.instance
        away = [
            node.id
            for n, node in enumerate(instance.nodes)
            if instance.node_type[n] == t and node.state is not NodeState.READY
        ]
        if shape.selector and not (instance.eligible_nodes(shape.selector) & (instance.node_type == t)).any():
            labels = ", ".join(f"{key}={value}" for key, value in shape.selector)
            return Reason.NO_FEASIBLE_GPU_TYPE, f"no node matches {labels}"
        if away:
            return (
                Reason.NODE_UNAVAILABLE,
                f"needs {least} of {total}; {', '.join(away[:4])} not ready",
            )
        return (
            Reason.TOPOLOGY_PLACEMENT_FAILED,
            f"needs {least} of {total}; no set of nodes could hold it even if all were empty",
        )

    @cached_property
    def _use(self) -> NDArray[np.int64]:
        """Use of every quota row after the plan, in units."""
        quotas = self.work.quotas
        charges = quotas.charges(self.work.table.take(self.selection.columns))
        use = self.work.profiled.copy()
        np.add.at(use, charges.row, charges.value)
        return use

    def _quota(self, j: int, t: int, row: int, least: int) -> str:
        """Return what the queue or its cohort lacks, or an empty text."""
        quotas = self.work.quotas
        rule, unit = quotas.rows[row], quotas.unit
        need = least * unit
        use = int(self._use[row])
        if rule.limit is not None and use + need > rule.limit:
            return (
                f"needs {least}, queue {rule.queue} uses {use / unit:.6g} of at most {rule.limit / unit:.6g}"
            )
        for pool in quotas.pools():
            if row in pool.rows:
                rows = [quotas.rows[r] for r in pool.rows]
                limit = sum(r.nominal for r in rows)
                total = int(self._use[list(pool.rows)].sum())
                if total + need > limit:
                    return (
                        f"needs {least}, cohort {rule.cohort} uses {total / unit:.6g} of {limit / unit:.6g}"
                    )
        return ""

    def _higher(self, j: int, t: int) -> int:
        """Return the GPUs of a type held, after the plan, by groups of a higher class."""
        instance, table = self.work.evaluator.instance, self.work.table
        mine = int(instance.job_class[j])
        total = 0
        for c, rows in zip(self.selection.columns, self.selection.gpus, strict=True):
            if table.type[c] != t:
                continue
            keep = int(table.keep[c])
            members = [int(i) for i in table.jobs[c] if i >= 0]
            top = (
                group_class(instance, instance.running[keep])
                if keep >= 0
                else int(instance.job_class[members].max())
            )
            if top > mine:
                total += len(rows)
        return total
