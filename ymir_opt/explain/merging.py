"""Why two jobs cannot form a group: the first rule, figure or limit that forbids it, by mode."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.rules import Rules
from ymir_opt.domain.plan import Reason
from ymir_opt.domain.snapshot import Mode, RejectedMerge, Sharing
from ymir_opt.estimates import WorkRatio
from ymir_opt.explain.pairs import PairFigures
from ymir_opt.explain.words import amount, percentage, seconds

if TYPE_CHECKING:
    from ymir_opt.planner.search import Round

__all__ = ["MergeReasons", "RuledOut", "telling"]

IntArray = NDArray[np.int64]
RuledOut = tuple[Reason | None, str]

# what a reader most wants to know of a pair, when several modes are ruled out
_TELLING = (
    Reason.REJECTED_MERGE,
    Reason.NEGATIVE_TRANSFER,
    Reason.UNCERTAIN_TRANSFER,
    Reason.MEMORY_EXCEEDS_GPU,
    Reason.SHARING_DISABLED,
)


def telling(found: RuledOut) -> int:
    """Return the rank of a reason among those of one pair, the most telling first."""
    return _TELLING.index(found[0]) if found[0] in _TELLING else len(_TELLING)


class MergeReasons:
    """Answers for pairs of one round.

    Parameters
    ----------
    work : Round
    only : int, optional
        Pairs with this job are all that will be asked about.
    """

    def __init__(self, work: Round, only: int | None = None) -> None:
        self.work = work
        self.evaluator = work.evaluator
        self.instance = work.evaluator.instance
        self.rules = Rules(self.evaluator)
        expander = Expander(self.evaluator, self.rules, PoolLimits.of_size(self.evaluator.jobs.count))
        self.figures = PairFigures(work, self.rules, expander, only)
        self._cache: dict[tuple[Mode, int, int], RuledOut | None] = {}

    @cached_property
    def _rejected(self) -> dict[tuple[Mode, frozenset[str]], RejectedMerge]:
        version = self.evaluator.estimates.version
        return {
            (merge.mode, frozenset(merge.jobs)): merge
            for merge in self.instance.snapshot.rejected_merges
            if merge.estimator_version in (None, version)
        }

    def partners(self, j: int) -> list[int]:
        """Return the jobs that a merge with this one was tried with and rejected."""
        name = self.instance.jobs[j].id
        found = {other for _, pair in self._rejected if name in pair and len(pair) == 2 for other in pair}
        return sorted(self.instance.job_row[o] for o in found - {name} if o in self.instance.job_row)

    def why_not(self, mode: Mode, a: int, b: int) -> RuledOut | None:
        """Return why two jobs form no group of a mode; in a sequence ``b`` comes after ``a``.

        None where nothing forbids it, and where nothing is known about the pair in this mode.
        """
        key = (mode, a, b) if mode is Mode.SEQUENCE else (mode, min(a, b), max(a, b))
        if key not in self._cache:
            self._cache[key] = self._why_not(*key)
        return self._cache[key]

    def _why_not(self, mode: Mode, a: int, b: int) -> RuledOut | None:
        jobs = self.evaluator.jobs
        if jobs.rigid[a] or jobs.rigid[b] or jobs.fm[a] < 0 or jobs.fm[b] < 0:
            return None
        if mode is not Mode.GPU_SHARE and jobs.fm[a] != jobs.fm[b]:
            return None
        one, two = self.instance.jobs[a], self.instance.jobs[b]
        merge = self._rejected.get((mode, frozenset((one.id, two.id))))
        if merge is not None:
            when = "" if merge.at_s is None else f" at second {merge.at_s:.6g}"
            gain = "" if merge.realised_gain is None else f" (gain {percentage(merge.realised_gain)})"
            return Reason.REJECTED_MERGE, f"was tried{when} and did not help{gain}"
        if not self._known(mode, a, b):
            return None
        return (
            self._negative(mode, a, b)
            or self._sharing(mode, a, b)
            or self._rule(mode, a, b)
            or self._count(mode, a, b)
        )

    # -- what is known --------------------------------------------------------------------------

    def _known(self, mode: Mode, a: int, b: int) -> bool:
        """Say whether some estimate speaks of the pair."""
        if mode is Mode.SEQUENCE:
            return self._warm(a, b) is not None
        if mode is Mode.JOINT:
            return all(ratio is not None for ratio in self._joint(a, b))
        signature = self.evaluator.jobs.signature
        pair = sorted((int(signature[a]), int(signature[b])))
        return pair[0] >= 0 and (pair[0], pair[1]) in self.figures.together(mode)

    def _warm(self, a: int, b: int) -> WorkRatio | None:
        return self.evaluator.works.warm_pair(a, b)

    def _joint(self, a: int, b: int) -> tuple[WorkRatio | None, WorkRatio | None]:
        works = self.evaluator.works
        if works.task[a] < 0 or works.task[b] < 0:
            return None, None
        (fm, one), (_, two) = works.tasks[works.task[a]], works.tasks[works.task[b]]
        transfer = self.evaluator.estimates.transfer
        return transfer.joint(fm, [two], one), transfer.joint(fm, [one], two)

    def _negative(self, mode: Mode, a: int, b: int) -> RuledOut | None:
        """Return who would need more work together than alone."""
        jobs = self.evaluator.jobs
        if mode is Mode.SEQUENCE:
            ratio = self._warm(a, b)
            assert ratio is not None
            work, rest = ratio.ratio * float(jobs.whole[b]), float(jobs.rest[b])
            if work >= rest:
                name = self.instance.jobs[b].id
                return (
                    Reason.NEGATIVE_TRANSFER,
                    f"{name} would need {amount(work)} samples from these weights, "
                    f"{amount(rest)} samples on its own",
                )
        if mode is Mode.JOINT:
            for j, ratio in zip((a, b), self._joint(a, b), strict=True):
                if ratio is not None and ratio.ratio >= 1:
                    name = self.instance.jobs[j].id
                    return (
                        Reason.NEGATIVE_TRANSFER,
                        f"{name} would need {ratio.ratio:.3g} x the samples (80 % limits "
                        f"{ratio.low:.3g} x and {ratio.high:.3g} x)",
                    )
        return None

    # -- rules ----------------------------------------------------------------------------------

    def _sharing(self, mode: Mode, a: int, b: int) -> RuledOut | None:
        """Return which of the two does not share in this way."""
        one, two = self.instance.jobs[a], self.instance.jobs[b]
        tenants = self.instance.tenant(a), self.instance.tenant(b)
        for job in (one, two):
            if job.sharing is Sharing.NONE:
                return Reason.SHARING_DISABLED, f"{job.id} shares nothing (sharing: none)"
            if mode in (Mode.JOINT, Mode.SEQUENCE):
                if job.sharing is Sharing.BACKBONE:
                    return Reason.SHARING_DISABLED, f"{job.id} shares no weights (sharing: backbone)"
                if tenants[0] != tenants[1] and job.sharing is not Sharing.ALL:
                    return (
                        Reason.SHARING_DISABLED,
                        f"{job.id} shares within its tenant only, not between {tenants[0]} and {tenants[1]}",
                    )
        return None

    def _rule(self, mode: Mode, a: int, b: int) -> RuledOut | None:
        """Return the rule that forbids the pair whatever the figures say."""
        jobs, rules = self.evaluator.jobs, self.rules
        for j in (a, b):
            name = self.instance.jobs[j].id
            if jobs.backed_off[j]:
                return Reason.BACK_OFF, f"{name} may not start yet"
            if self.evaluator.pinned[j]:
                return Reason.MIN_RUNTIME_PROTECTED, f"{name} may not be disturbed"
        if rules.workers[a] != rules.workers[b]:
            return None, "their workers differ"
        if mode is Mode.JOINT:
            if rules.trained[a] != rules.trained[b]:
                return None, "their peft_type or config differ"
            together = rules.joint_now[a] >= 0 and rules.joint_now[a] == rules.joint_now[b]
            if not together and (jobs.done[a] or jobs.done[b]):
                begun = self.instance.jobs[a if jobs.done[a] else b].id
                return None, f"{begun} has begun: only jobs without progress are trained together"
        return None

    # -- figures --------------------------------------------------------------------------------

    def _count(self, mode: Mode, a: int, b: int) -> RuledOut | None:
        """Return what the figures at every GPU type and count say against the pair; None: a candidate."""
        found = self.figures.of(mode, a, b)
        if found is None:
            holders = np.array([a] if mode is Mode.SEQUENCE else [a, b], dtype=np.int64)
            types = range(len(self.instance.types))
            if any((self.work.quotas.job_rows(holders, t) == -1).any() for t in types):
                return Reason.EXCEEDS_MAX_QUOTA, "their queues have no quota of a common GPU type"
            return Reason.NO_FEASIBLE_GPU_TYPE, "no GPU type and count suits both"
        if not found.known:
            return Reason.UNKNOWN_THROUGHPUT, "their speed or memory together is not known at a common count"
        if not found.valid:
            if mode is Mode.JOINT and found.p_benefit < 1:
                return (
                    Reason.UNCERTAIN_TRANSFER,
                    f"helps with {percentage(found.p_benefit)} probability, which does not pay for a failed "
                    f"probe of {seconds(found.probe_s)}",
                )
            return (
                None,
                f"no quicker together than one after the other: on {found.where} "
                f"both would finish in {seconds(found.mean_s)} on average",
            )
        if found.need > found.most:
            return (
                Reason.MEMORY_EXCEEDS_GPU,
                f"need {found.need:.6g} GiB a GPU together, the largest has {found.most:.6g} GiB",
            )
        if self.instance.selector((a, b)) is None:
            return Reason.TOPOLOGY_PLACEMENT_FAILED, "their node selectors contradict each other"
        return None
