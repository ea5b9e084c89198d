"""Evaluates candidate groups: completion times, work, memory, admission, cost.

The one place where a group's worth is computed: candidates, the verifier and explanations all ask
here, so that they cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode, Parallelism
from ymir_opt.estimates import Estimates
from ymir_opt.formulation import objective as terms
from ymir_opt.formulation.completion import GroupSpeeds, RateFunction, run_times
from ymir_opt.formulation.instance import Instance, Running
from ymir_opt.formulation.jobs import JobTable
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.rowwise import all_of, any_of, max_of, sum_of
from ymir_opt.formulation.work import Work, WorkModel

__all__ = ["Evaluation", "Evaluator"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SHARED = (Mode.GPU_SHARE, Mode.COLOCATE, Mode.JOINT)
# total of the queueing costs in quanta lies in [1e9, 1e10): fine enough to tell jobs apart, small
# enough for doubles and 64-bit sums
QUANTA = 1e9


_WORK = tuple(part.name for part in fields(Work))


@dataclass(frozen=True)
class Evaluation:
    """What a set of groups is worth; [M, K] arrays pad with NaN.

    Attributes
    ----------
    valid : bool[M]
        Every speed, ratio and memory needed is known, and shared columns are admitted.
    finish_s : float64[M, K]
        Expected seconds to completion, switch, lost work and probe included.
    rate : float64[M, K]
        Samples/s at the start.
    memory : float64[M]
        GiB per GPU; NaN where unknown (allowed for solo only).
    cost : float64[M]
        Cost in units of the objective (before quantisation).
    terms : dict of float64[M]
        The cost by term: progress, deadlines, transfer credit.
    probe_s : float64[M, K]
        Cost of a failed probe, seconds; 0 where nothing must prove itself.
    work : Work
    predicted : bool[M]
        A speed or ratio was predicted.
    """

    valid: BoolArray
    known: BoolArray
    finish_s: FloatArray
    rate: FloatArray
    memory: FloatArray
    cost: FloatArray
    terms: dict[str, FloatArray]
    probe_s: FloatArray
    work: Work
    predicted: BoolArray


@dataclass
class Evaluator:
    """Evaluates groups of one instance."""

    instance: Instance
    estimates: Estimates
    parameters: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        self.jobs = JobTable(self.instance, self.estimates, self.parameters)
        self.works = WorkModel(self.jobs)
        self.speeds = GroupSpeeds(self.jobs)
        self.slack = terms.deadline_slack(self.jobs)

    # -- new groups -----------------------------------------------------------------------------

    def evaluate(
        self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray, start: IntArray, warm: BoolArray
    ) -> Evaluation:
        """Evaluate new (or moved) groups of one mode.

        Parameters
        ----------
        members : int64[M, K]
            Job rows, -1 pads; in a sequence the order of execution.
        types, gpus : int64[M]
        start : int64[M, K]
            Completed adapter each member starts from, or -1.
        warm : bool[M]
            The group starts on GPUs that hold its foundation model.
        """
        jobs, p = self.jobs, self.parameters
        present = members >= 0
        safe = np.where(present, members, 0)
        column = np.broadcast_to(types[:, None], members.shape)
        work = self.works.work(mode, members, start)
        cold = jobs.cold[safe, column]
        switch = np.where(warm[:, None], jobs.warm[safe, column], cold)
        begin = switch + self.lost_s[safe]
        if mode is Mode.SEQUENCE:
            return self._sequence(members, types, gpus, work, begin, cold)
        rates = self.speeds.rate_function(mode, members, types, gpus)
        first = rates(present, None)
        known = work.known & all_of(~present | np.isfinite(first))
        run = self._expected_run(mode, members, types, gpus, work, rates, first)
        probe = np.where(work.transferred & present, terms.probe_cost_s(run, cold, p), 0.0)
        if not p.probes:
            probe = np.zeros_like(probe)
        # where no speed is known the run is endless, and 0 x inf says nothing; `known` drops it below
        with np.errstate(over="ignore", invalid="ignore"):
            finish = begin + run + (1 - work.p_benefit) * probe
        memory, memory_known, predicted = self._memory(mode, members, types, gpus)
        known &= memory_known
        valid = known.copy()
        if mode in SHARED:
            alone_rate = self.speeds.alone_or_largest(members, types, gpus)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                alone = terms.expected(work.alone / alone_rate, work.alone_high / alone_rate, p)
            valid &= all_of(~present | np.isfinite(alone))
            valid &= terms.admitted(jobs.weight[safe], finish, alone, begin, present)
        return self._priced(members, finish, first, memory, probe, work, valid, known, predicted)

    def _expected_run(
        self,
        mode: Mode,
        members: IntArray,
        types: IntArray,
        gpus: IntArray,
        work: Work,
        rates: RateFunction,
        first: FloatArray,
    ) -> FloatArray:
        """Return the expected seconds of running, [M, K]; pessimistic work counts only where it differs."""
        present = members >= 0
        point = run_times(work.point, present, rates, first)
        rows = np.flatnonzero(any_of(work.planning_high != work.point))
        high = point
        if len(rows) == len(members):
            high = run_times(work.planning_high, present, rates, first)
        elif len(rows):
            some = self.speeds.rate_function(mode, members[rows], types[rows], gpus[rows])
            high = point.copy()
            high[rows] = run_times(work.planning_high[rows], present[rows], some, first[rows])
        return terms.expected(point, high, self.parameters)

    def evaluate_placed(
        self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray, start: IntArray, held: BoolArray
    ) -> Evaluation:
        """Evaluate new groups on the GPUs that they got.

        ``held`` bool[M]: every GPU holds the group's foundation model, so that the start is warm. A
        shared group that pays only because it spares its members their cold starts counts as cold: the
        column table has it with a cold start, and GPUs that suit it better do not forbid it.
        """
        result = self.evaluate(mode, members, types, gpus, start, held)
        cold = held & ~result.valid
        return self.evaluate(mode, members, types, gpus, start, held & ~cold) if cold.any() else result

    def _sequence(
        self,
        members: IntArray,
        types: IntArray,
        gpus: IntArray,
        work: Work,
        begin: FloatArray,
        cold: FloatArray,
        first_begin: FloatArray | None = None,
    ) -> Evaluation:
        jobs, p = self.jobs, self.parameters
        present = members >= 0
        safe = np.where(present, members, 0)
        rate = self.speeds.alone(members, types, gpus)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            run = terms.expected(work.point / rate, work.planning_high / rate, p)
            plain = terms.expected(jobs.rest[safe] / rate, jobs.rest_high[safe] / rate, p)
        warm_s = jobs.warm[safe, np.broadcast_to(types[:, None], members.shape)]
        probe = np.where(work.transferred & present & p.probes, terms.probe_cost_s(run, cold, p), 0.0)
        gate = (1 - work.p_benefit) * probe
        finish = np.full(members.shape, np.nan)
        without = np.full(members.shape, np.nan)
        lead = begin[:, 0] if first_begin is None else first_begin
        finish[:, 0] = lead + run[:, 0] + gate[:, 0]
        for k in range(1, members.shape[1]):
            before = finish[:, k - 1] + warm_s[:, k]
            finish[:, k] = before + run[:, k] + gate[:, k]
            without[:, k] = before + plain[:, k]
        later = present.copy()
        later[:, 0] = False
        known = work.known & all_of(~present | np.isfinite(finish))
        # a transfer that does not save work is no reason to wait for it
        saves = all_of(~later | (work.point < jobs.rest[safe]))
        memory, memory_known, predicted = self._memory(Mode.SEQUENCE, members, types, gpus)
        known &= memory_known
        return self._priced(
            members, finish, rate, memory, probe, work, known & saves, known, predicted, without=without
        )

    def _priced(
        self,
        members: IntArray,
        finish: FloatArray,
        rate: FloatArray,
        memory: FloatArray,
        probe: FloatArray,
        work: Work,
        valid: BoolArray,
        known: BoolArray,
        predicted: BoolArray,
        *,
        without: FloatArray | None = None,
        keep: bool = False,
    ) -> Evaluation:
        jobs, p = self.jobs, self.parameters
        present = members >= 0
        safe = np.where(present, members, 0)
        holding = present.copy()
        if without is not None:
            holding[:, 1:] = False
        importance = jobs.importance[safe]
        progress = np.where(holding, terms.progress_value(importance, finish, keep, p), 0.0)
        late = np.where(
            holding,
            terms.deadline_penalty(importance, finish, self.slack[safe], self.instance.snapshot.round_s, p),
            0.0,
        )
        waiting = present & ~holding
        queued = np.where(waiting, self.queued_cost[safe], 0.0)
        credit = np.zeros_like(queued)
        if without is not None:
            credit = np.where(waiting, terms.transfer_credit(importance, finish, without, p), 0.0)
        parts = {
            "progress": sum_of(progress),
            "deadlines": sum_of(late),
            "queued": sum_of(queued),
            "transfer_credit": -sum_of(credit),
        }
        known = known & all_of(~present | ~np.isnan(finish))
        return Evaluation(
            valid=valid & known,
            known=known,
            finish_s=np.where(present, finish, np.nan),
            rate=np.where(present, rate, np.nan),
            memory=memory,
            cost=sum(parts.values(), np.zeros(len(members))),
            terms=parts,
            probe_s=np.where(present, probe, 0.0),
            work=work,
            predicted=predicted | any_of(work.predicted),
        )

    def _memory(
        self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray
    ) -> tuple[FloatArray, BoolArray, BoolArray]:
        """Return GiB per GPU [M], whether it may be used [M], whether a speed was predicted [M].

        solo its row; sequence the largest member; gpu_share the members' sum; colocate the row, else
        the sum less (K-1) backbones; joint the row at the summed batch. Unknown memory is no
        candidate for sharing.
        """
        present = members >= 0
        each = self.speeds.alone_memory(members, types, gpus)
        total = sum_of(np.where(present, each, 0.0))
        safe = np.where(present, members, 0)
        shape = members.shape
        predicted = (
            np.where(
                present.reshape(-1),
                self.jobs.predicted_rate(
                    safe.reshape(-1), np.repeat(types, shape[1]), np.repeat(gpus, shape[1])
                ),
                False,
            )
            .reshape(shape)
            .any(axis=1)
        )
        if mode is Mode.SOLO:
            return total, np.ones(len(members), np.bool_), np.asarray(predicted)
        if mode is Mode.SEQUENCE:
            top = max_of(np.where(present, each, 0.0))
            return top, np.asarray(np.isfinite(top)), np.asarray(predicted)
        if mode is Mode.GPU_SHARE:
            flag = self.speeds.shared(mode, members, types, gpus, present)[2]
            return total, np.asarray(np.isfinite(total)), np.asarray(predicted | flag)
        if mode is Mode.COLOCATE:
            _, row, flag = self.speeds.shared(mode, members, types, gpus, present)
            spare = (present.sum(axis=1) - 1) * self.speeds.backbone[self.jobs.fm[safe[:, 0]]]
            memory = np.where(np.isfinite(row), row, total - spare)
            return np.asarray(memory), np.asarray(np.isfinite(memory)), np.asarray(predicted | flag)
        _, row, flag = self.speeds.joint(members, types, gpus, present)
        return row, np.asarray(np.isfinite(row)), flag

    # -- running groups -------------------------------------------------------------------------

    def _evaluate_kept(self, groups: list[Running]) -> Evaluation:
        """Evaluate running groups of one mode with equally many members and holders, as they are."""
        jobs, p = self.jobs, self.parameters
        mode, count = groups[0].mode, len(groups)
        members, types, gpus = self._arrays(groups)
        present = members >= 0
        start = np.full(members.shape, -1, dtype=np.int64)
        if mode is Mode.SEQUENCE:
            work = self.works.work(Mode.SEQUENCE, members, start)
            point, high, low = work.point.copy(), work.planning_high.copy(), work.low.copy()
        else:
            work = self.works.work(Mode.SOLO, members, start)
            point, high, low = (np.zeros(members.shape) for _ in range(3))
        holders = len(groups[0].holders)
        rows = members[:, :holders]
        point[:, :holders] = jobs.keep_work[rows]
        high[:, :holders] = jobs.keep_work_high[rows]
        low[:, :holders] = jobs.keep_work_low[rows]
        work = Work(
            point=point,
            low=low,
            high=np.maximum(high, work.high * (mode is Mode.SEQUENCE)),
            planning_high=high,
            alone=work.alone,
            alone_high=work.alone_high,
            ratio=work.ratio,
            p_benefit=work.p_benefit,
            transferred=work.transferred,
            predicted=work.predicted,
            known=work.known,
        )
        zero = np.zeros(members.shape)
        if mode is Mode.SEQUENCE:
            cold = jobs.cold[members, types[:, None]]
            result = self._sequence(members, types, gpus, work, zero, cold)
            # what runs is not gated again: only the waiting members must still prove themselves
            return self._kept_sequence(members, types, gpus, work, result)
        rates = self._kept_rates(mode, members, types, gpus)
        first = rates(present, None)
        run = terms.expected(
            run_times(work.point, present, rates), run_times(work.planning_high, present, rates), p
        )
        known = all_of(np.isfinite(first))
        memory = np.full(count, np.nan)
        never = np.zeros(count, np.bool_)
        return self._priced(
            members, run, first, memory, zero, work, np.ones(count, np.bool_), known, never, keep=True
        )

    def _kept_sequence(
        self, members: IntArray, types: IntArray, gpus: IntArray, work: Work, result: Evaluation
    ) -> Evaluation:
        importance = self.jobs.importance[members[:, 0]]
        lead = result.finish_s[:, 0]
        kept = terms.progress_value(importance, lead, True, self.parameters)
        parts = {**result.terms, "progress": kept}
        return Evaluation(
            valid=np.ones(len(members), np.bool_),
            known=result.known,
            finish_s=result.finish_s,
            rate=result.rate,
            memory=result.memory,
            cost=sum(parts.values(), np.zeros(len(members))),
            terms=parts,
            probe_s=result.probe_s,
            work=work,
            predicted=result.predicted,
        )

    def _kept_rates(self, mode: Mode, members: IntArray, types: IntArray, gpus: IntArray) -> RateFunction:
        """Rates of running groups; where the rows say nothing, what was realised since their start."""
        by_rows = self.speeds.rate_function(mode, members, types, gpus)
        realised = np.array([[self._realised(j) for j in row] for row in members.tolist()])

        def rates(active: BoolArray, previous: FloatArray | None) -> FloatArray:
            now = by_rows(active, previous)
            return np.where(np.isnan(now) & active, realised, now)

        return rates

    def _realised(self, j: int) -> float:
        job = self.instance.jobs[j]
        if self.jobs.rigid[j]:
            return 1.0
        if job.samples_at_last_start is None or job.last_start_s is None:
            return float("nan")
        seconds = self.instance.snapshot.taken_at_s - job.last_start_s
        samples = job.done_samples - job.samples_at_last_start
        return samples / seconds if seconds > 0 and samples > 0 else float("nan")

    @cached_property
    def pinned(self) -> BoolArray:
        """Jobs that must go on as they run, bool[J].

        Those that may not be moved or are within their minimum run time, and groups of unknown
        speed: nobody can compute what stopping them would gain.
        """
        out = self.jobs.protected.copy()
        for group, kept in zip(self.instance.running, self.keeps, strict=True):
            if group.keepable and not kept.known[0]:
                out[list(group.holders)] = True
        return out

    def profile_gpus(self, j: int) -> int:
        """Return the GPUs of a profile action of a job."""
        pipeline = self.instance.jobs[j].parallelism is Parallelism.PIPELINE
        return self.parameters.profile_gpus_pipeline if pipeline else self.parameters.profile_gpus

    @cached_property
    def keeps(self) -> tuple[Evaluation, ...]:
        """Evaluations of all running groups as they are."""
        found: dict[int, Evaluation] = {}
        for rows in self._alike:
            together = self._evaluate_kept([self.instance.running[r] for r in rows])
            found |= {r: _row(together, i) for i, r in enumerate(rows)}
        return tuple(found[r] for r in range(len(self.instance.running)))

    # -- leaving a job out ----------------------------------------------------------------------

    @cached_property
    def lost_s(self) -> FloatArray:
        """Seconds of work since the last checkpoint that a stop throws away, float64[J] (0 if unknown).

        Also where the node is gone: whoever restarts the job has that work to do again.
        """
        lost = np.zeros(self.jobs.count)
        for rows in self._alike:
            groups = [self.instance.running[r] for r in rows]
            members, types, gpus = self._arrays(groups)
            active = np.zeros(members.shape, np.bool_)
            active[:, : len(groups[0].holders)] = True
            rates = self._kept_rates(groups[0].mode, members, types, gpus)(active, None)
            for group, rate in zip(groups, rates.tolist(), strict=True):
                for k, j in enumerate(group.holders):
                    saved = self.instance.jobs[j].last_checkpoint_samples
                    if saved is not None and math.isfinite(rate[k]) and rate[k] > 0:
                        lost[j] = (self.instance.jobs[j].done_samples - saved) / rate[k]
        return lost

    @cached_property
    def _alike(self) -> tuple[list[int], ...]:
        """Rows of the running groups, together those of one mode and equally many members and holders."""
        alike: dict[tuple[Mode, int, int], list[int]] = {}
        for r, group in enumerate(self.instance.running):
            alike.setdefault((group.mode, len(group.members), len(group.holders)), []).append(r)
        return tuple(alike.values())

    @staticmethod
    def _arrays(groups: list[Running]) -> tuple[IntArray, IntArray, IntArray]:
        """Return members [M, K], types [M] and GPU counts [M] of running groups that are alike."""
        return (
            np.array([group.members for group in groups], dtype=np.int64),
            np.array([group.type for group in groups], dtype=np.int64),
            np.array([len(group.gpus) for group in groups], dtype=np.int64),
        )

    @cached_property
    def preemption(self) -> FloatArray:
        """Preemption term of each job's queueing cost, float64[J]."""
        out = np.zeros(self.jobs.count)
        for alike in self._alike:
            groups = [group for r in alike if (group := self.instance.running[r]).keepable]
            if not groups:
                continue
            members, types, gpus = self._arrays(groups)
            rows = members[:, : len(groups[0].holders)]
            value = terms.preemption_penalty(
                self.jobs.importance[rows],
                self._keep_finish(groups[0].mode, rows, types, gpus),
                self.jobs.cold[rows, types[:, None]],
                self.lost_s[rows],
                self.parameters,
            )
            out[rows] = np.where(np.isfinite(value), value, 0.0)
        return out

    def _keep_finish(self, mode: Mode, holders: IntArray, types: IntArray, gpus: IntArray) -> FloatArray:
        """Return F(keep) of the holders, [M, K] (without any cost, which would need this)."""
        present = holders >= 0
        rates = self._kept_rates(Mode.SOLO if mode is Mode.SEQUENCE else mode, holders, types, gpus)
        work, high = self.jobs.keep_work[holders], self.jobs.keep_work_high[holders]
        return terms.expected(
            run_times(work, present, rates), run_times(high, present, rates), self.parameters
        )

    @cached_property
    def queued_cost(self) -> FloatArray:
        """Cost of leaving each job out, in units of the objective, float64[J]."""
        return terms.queued_value(
            self.jobs.importance, np.isfinite(self.slack), self.preemption, self.parameters
        )

    # -- quanta ---------------------------------------------------------------------------------

    @cached_property
    def quantum(self) -> float:
        """Value of one quantum: a power of ten that puts the total queueing cost in [1e9, 1e10) quanta."""
        total = float(self.queued_cost.sum())
        if not np.isfinite(total) or total <= 0:
            return 1e-6
        return float(10.0 ** (np.floor(np.log10(total)) - np.log10(QUANTA)))

    def quanta(self, cost: FloatArray) -> IntArray:
        """Return costs as integers."""
        return np.rint(np.asarray(cost) / self.quantum).astype(np.int64)

    @cached_property
    def queued_quanta(self) -> IntArray:
        """Cost of leaving each job out, in quanta, int64[J].

        Stopping what could go on is a change and costs one quantum more: a job whose worth is lost in
        the rounding is not stopped for nothing.
        """
        out = self.quanta(self.queued_cost)
        for group in self.instance.running:
            if group.keepable:
                out[list(group.holders)] += 1
        return out


def _row(of: Evaluation, i: int) -> Evaluation:
    """Return the evaluation of one group among many (M = 1)."""
    one = slice(i, i + 1)
    work = Work(**{name: getattr(of.work, name)[one] for name in _WORK})
    return Evaluation(
        valid=of.valid[one],
        known=of.known[one],
        finish_s=of.finish_s[one],
        rate=of.rate[one],
        memory=of.memory[one],
        cost=of.cost[one],
        terms={name: values[one] for name, values in of.terms.items()},
        probe_s=of.probe_s[one],
        work=work,
        predicted=of.predicted[one],
    )
