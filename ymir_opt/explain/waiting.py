"""Why a job waits: per GPU type the first constraint that it meets, with needed and available numbers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.plan import Reason
from ymir_opt.domain.snapshot import JobState, Mode, NodeState
from ymir_opt.explain.words import count_of, gpus_of, names
from ymir_opt.formulation.columns import MODES
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
        self._told: dict[tuple[object, ...], tuple[int, list[tuple[int, str, int]], str]] = {}
        self._holders = _holders(work, selection, reservation)

    def why(self, j: int) -> tuple[Reason, str]:
        """Return the reason and message of a waiting job."""
        evaluator, job = self.work.evaluator, self.work.evaluator.instance.jobs[j]
        if evaluator.jobs.backed_off[j] and job.not_before_s is not None:
            return self.backed_off(j)
        if not evaluator.jobs.known[j] and not evaluator.jobs.rigid[j]:
            return self._unknown(j)
        types = evaluator.instance.types
        if not types:
            return Reason.NO_FEASIBLE_GPU_TYPE, "the cluster has no nodes"
        found = [(t, *self.on_type(j, t)) for t in range(len(types))]
        reason = min((r for _, r, _ in found), key=_NEAREST.index)
        return reason, "; ".join(f"{types[t]}: {message}" for t, _, message in found)

    def backed_off(self, j: int) -> tuple[Reason, str]:
        """Return why a job may not start yet."""
        job = self.work.evaluator.instance.jobs[j]
        assert job.not_before_s is not None
        left = job.not_before_s - self.work.evaluator.instance.snapshot.taken_at_s
        text = f"not before second {job.not_before_s:.6g} (in {left:.6g} s)"
        if job.failed_starts:
            text += f", after {count_of(job.failed_starts, 'failed start')}"
        return Reason.BACK_OFF, text

    def protected(self, j: int) -> str:
        """Say why a job must go on as it runs."""
        evaluator = self.work.evaluator
        job = evaluator.instance.jobs[j]
        if not job.movable:
            return "it may not be moved"
        if evaluator.jobs.protected[j]:
            assert job.last_start_s is not None
            ends = job.last_start_s + job.min_runtime_s
            return f"its minimum run time is not over before second {ends:.6g}"
        return "its speed is not known, so that nobody can say what stopping it would gain"

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
            gains = "which gain" if len(taken) > 1 else "which gains"
            return (
                Reason.LOWER_PRIORITY,
                f"its GPUs go to {names(taken, 4, 'job')}, {gains} more from them{gain}",
            )
        return Reason.LOWER_PRIORITY, f"its quota goes to jobs that gain more from it{gain}"

    def _takers(self, gpus: NDArray[np.int64]) -> list[str]:
        table, instance = self.work.table, self.work.evaluator.instance
        at = np.unique(self._new_holder[gpus])
        return [
            instance.jobs[j].id
            for c in self.selection.columns[at[at >= 0]]
            for j in table.jobs[c].tolist()
            if j >= 0
        ]

    @cached_property
    def _new_holder(self) -> NDArray[np.int64]:
        """Position in the selection of the new group that gets each GPU, int64[U], or -1."""
        out = np.full(len(self.used), -1, dtype=np.int64)
        for i, (c, rows) in enumerate(zip(self.selection.columns, self.selection.gpus, strict=True)):
            if self.work.table.keep[c] < 0:
                out[rows] = i
        return out

    @cached_property
    def _holder(self) -> NDArray[np.int64]:
        """Position in `_holders` of who holds each GPU after the plan, int64[U]; the last: nobody."""
        out = np.full(len(self.used), len(self._holders), dtype=np.int64)
        for i, (rows, _, _) in enumerate(self._holders):
            out[rows] = i
        return out

    def _unknown(self, j: int) -> tuple[Reason, str]:
        taken = sum(len(rows) for rows in self.reservation.gpus.values())
        left = self.reservation.left
        text = "no throughput or work is known"
        if not self.work.evaluator.jobs.startable[j]:
            return Reason.UNKNOWN_THROUGHPUT, text
        wanted = self.work.evaluator.profile_gpus(j)
        text += f"; measuring it takes {gpus_of(wanted)}"
        if wanted > left:
            text += f", and {taken} of at most {taken + left} a round measure other jobs"
        else:
            text += " of one node, and none has them free for it within its quota"
        return Reason.UNKNOWN_THROUGHPUT, text

    # -- one type -------------------------------------------------------------------------------

    def on_type(self, j: int, t: int) -> tuple[Reason, str]:
        """Return the first constraint that a job alone would meet on a GPU type, beside this plan."""
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
        counts = [int(g) for g in jobs.counts(j, t)]
        if not counts:
            return Reason.NO_FEASIBLE_GPU_TYPE, "no throughput is known at an allowed count"
        total = int((instance.gpu_exists & (instance.gpu_type == t)).sum())
        least, shape = self._smallest(j, t, counts)
        if shape is None:
            memory = float(jobs.memory(np.array([j]), np.array([t]), np.array([counts[-1]]))[0])
            most = float(instance.levels[t].max()) if len(instance.levels[t]) else 0.0
            return (
                Reason.MEMORY_EXCEEDS_GPU,
                f"needs {memory:.6g} GiB a GPU, the largest has {most:.6g} GiB",
            )
        if fewest_nodes(instance, shape) <= 0:
            return self._no_node(j, t, least, total, shape)
        needs = self._needs(j, least)
        if row >= 0 and (blocked := self._quota(row, least)):
            return Reason.EXCEEDS_MAX_QUOTA, f"{needs}, {blocked}"
        usable = self.free & self._domain(shape)
        free = int(usable.sum())
        if free < least:
            text = f"{needs}, {free} of {gpus_of(total)} are free after this plan"
            return self._blocked(j, shape, text)
        if not place(instance, self.free, [], [shape]).ok:
            per_node = np.bincount(instance.gpu_node[usable], minlength=len(instance.nodes))
            top = int(per_node.argmax())
            where = f"at most {int(per_node[top])} on one node ({instance.nodes[top].id})"
            nodes = "whole nodes" if shape.whole else count_of(fewest_nodes(instance, shape), "node")
            if shape.worker:
                nodes = f"nodes with {shape.worker} each"
            text = f"{needs} on {nodes}; {gpus_of(free)} are free, but {where}"
            if shape.cpus_per_gpu or shape.host_gib_per_gpu:
                text += ", or without the CPUs and host memory"
            return Reason.TOPOLOGY_PLACEMENT_FAILED, text
        return (
            Reason.SWITCH_COST_EXCEEDS_GAIN,
            f"{needs}, {gpus_of(free)} are free, but a start gains less than a change of the plan must",
        )

    def _smallest(self, j: int, t: int, counts: list[int]) -> tuple[int, Shape | None]:
        """Return the smallest count that nodes could hold, else that memory allows, else (0, None)."""
        first: tuple[int, Shape | None] = (0, None)
        for gpus in counts:
            shape = self._shape(j, t, gpus)
            if shape is None:
                continue
            if fewest_nodes(self.work.evaluator.instance, shape) > 0:
                return gpus, shape
            first = first if first[1] is not None else (gpus, shape)
        return first

    def _needs(self, j: int, least: int) -> str:
        """Say how many GPUs a job needs, and how many it asks for."""
        asked = int(self.work.evaluator.jobs.requested[j])
        return f"needs {gpus_of(least)}" + (f" (asks for {asked})" if asked > least else "")

    def _domain(self, shape: Shape) -> NDArray[np.bool_]:
        """Return the GPUs that could hold a shape."""
        instance = self.work.evaluator.instance
        eligible = instance.eligible_nodes(shape.selector)[instance.gpu_node]
        of_type = instance.gpu_exists & (instance.gpu_type == shape.type)
        return np.asarray(of_type & eligible & (instance.gpu_level >= shape.level))

    def _blocked(self, j: int, shape: Shape, text: str) -> tuple[Reason, str]:
        """Name the groups that hold the GPUs which a job could use."""
        mine = int(self.work.evaluator.instance.job_class[j])
        total, held, told = self._held(shape)
        if told:
            text += f"; held by {told}"
        above = sum(n for n, _, top in held if top > mine)
        if above and total - above < shape.gpus:
            return Reason.LOWER_PRIORITY, f"{text}; {gpus_of(above)} are held by higher priority classes"
        return Reason.INSUFFICIENT_GPUS, text

    def _held(self, shape: Shape) -> tuple[int, list[tuple[int, str, int]], str]:
        """Return how many GPUs a shape could use, who holds how many of them, and that in words."""
        key = (shape.type, shape.level, shape.selector)
        if key not in self._told:
            domain = self._domain(shape)
            count = np.bincount(self._holder[domain], minlength=len(self._holders) + 1)[:-1]
            order = np.argsort(-count, kind="stable")
            held = [(int(count[i]), *self._holders[i][1:]) for i in order[count[order] > 0]]
            told = names([f"{name} ({gpus_of(n)})" for n, name, _ in held], 4, "group") if held else ""
            self._told[key] = (int(domain.sum()), held, told)
        return self._told[key]

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
        needs = f"{self._needs(j, least)} of {total}"
        away = [
            node.id
            for n, node in enumerate(instance.nodes)
            if instance.node_type[n] == t and node.state is not NodeState.READY
        ]
        if shape.selector and not (instance.eligible_nodes(shape.selector) & (instance.node_type == t)).any():
            labels = ", ".join(f"{key}={value}" for key, value in shape.selector)
            return Reason.NO_FEASIBLE_GPU_TYPE, f"no node matches {labels}"
        if away:
            verb = "is" if len(away) == 1 else "are"
            return Reason.NODE_UNAVAILABLE, f"{needs}; {names(away, 4, 'node')} {verb} not ready"
        return (
            Reason.TOPOLOGY_PLACEMENT_FAILED,
            f"{needs}; no set of nodes could hold it even if all were empty",
        )

    @cached_property
    def _use(self) -> NDArray[np.int64]:
        """Use of every quota row after the plan, in units."""
        quotas = self.work.quotas
        charges = quotas.charges(self.work.table.take(self.selection.columns))
        use = self.work.profiled.copy()
        np.add.at(use, charges.row, charges.value)
        return use

    def _quota(self, row: int, least: int) -> str:
        """Return what the queue or its cohort lacks, or an empty text."""
        quotas = self.work.quotas
        rule, unit = quotas.rows[row], quotas.unit
        need = least * unit
        use = int(self._use[row])
        if rule.limit is not None and use + need > rule.limit:
            return _left(f"queue {rule.queue}", use / unit, rule.limit / unit)
        for pool in quotas.pools():
            if row in pool.rows:
                rows = [quotas.rows[r] for r in pool.rows]
                limit = sum(r.nominal for r in rows)
                total = int(self._use[list(pool.rows)].sum())
                if total + need > limit:
                    return _left(f"cohort {rule.cohort}", total / unit, limit / unit)
        return ""


def _left(owner: str, used: float, limit: float) -> str:
    left = max(0.0, limit - used)
    return f"the quota of {owner} leaves {left:.6g} ({used:.6g} of {gpus_of(limit)} in use)"


def _holders(
    work: Round, selection: Selection, reservation: Reservation
) -> list[tuple[NDArray[np.int64], str, int]]:
    """Return who holds GPUs after the plan: their rows, the jobs' names, the priority class.

    In an order that depends on the jobs alone, so that the same groups read the same in every round.
    """
    instance, table = work.evaluator.instance, work.table
    out = []
    for c, rows in zip(selection.columns, selection.gpus, strict=True):
        members = [int(j) for j in table.jobs[c] if j >= 0]
        if MODES[table.mode[c]] is Mode.SEQUENCE:
            members = members[:1]
        keep = int(table.keep[c])
        top = group_class(instance, instance.running[keep]) if keep >= 0 else None
        out.append((rows, members, top if top is not None else int(instance.job_class[members].max())))
    out += [(rows, [j], int(instance.job_class[j])) for j, rows in reservation.gpus.items()]
    jobs = instance.jobs
    out.sort(key=lambda item: min((jobs[j].submitted_at_s, jobs[j].id) for j in item[1]))
    return [(rows, " + ".join(jobs[j].id for j in members), top) for rows, members, top in out]
