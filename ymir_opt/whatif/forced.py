"""What an alternative loses exactly: the round solved again with the option forced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.errors import NotFoundError
from ymir_opt.domain.plan import Alternative, DeltaKind, Explanation, ObjectiveDelta, Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.estimates.protocols import Predictor
from ymir_opt.explain.alternatives import Alternatives, Offer
from ymir_opt.explain.options import Kind, Option
from ymir_opt.explain.waiting import WaitingReasons
from ymir_opt.explain.words import names
from ymir_opt.formulation.model import RoundModel
from ymir_opt.planner.pipeline import DEFAULT_WORK
from ymir_opt.planner.search import Round, search
from ymir_opt.planner.selection import Selection
from ymir_opt.solvers import registry
from ymir_opt.solvers.base import Limits, SolveResult, Status
from ymir_opt.whatif.rebuild import Rebuilt, rebuild

__all__ = ["ExactAlternatives", "Forced", "force"]

BACKEND = "highs"


@dataclass(frozen=True)
class Forced:
    """The best plan that contains an option.

    Attributes
    ----------
    selection : Selection or None
        None where there is none, or none was found.
    bound : int or None
        Proven lower bound on every such plan, in quanta.
    possible : bool
        False where no plan contains the option.
    """

    selection: Selection | None
    bound: int | None
    possible: bool = True

    @property
    def proven(self) -> bool:
        """The selection is the best one."""
        return (
            self.selection is not None and self.bound is not None and self.bound >= self.selection.objective
        )


def force(work: Round, option: Option, seed: int = 0) -> Forced:
    """Solve a round with one job's option forced.

    Parameters
    ----------
    work : Round
        Extended, with the option's columns.
    option : Option
    seed : int
    """
    own = np.flatnonzero((work.table.jobs == option.job).any(axis=1))
    barred = np.setdiff1d(own, np.array(option.columns, dtype=np.int64))
    backend = registry.get(BACKEND)
    status: list[Status] = []

    def run(stated: RoundModel) -> SolveResult:
        upper = stated.model.upper.copy()
        upper[stated.x[barred]] = 0
        if option.kind is not Kind.WAIT:
            upper[stated.y[option.job]] = 0
        result = backend.solve(
            replace(stated.model, upper=upper), limits=Limits(gap_quanta=0, work=DEFAULT_WORK), seed=seed
        )
        status.append(result.status)
        return result

    found = search(work, run)
    return Forced(found.selection, found.bound, status[-1] is not Status.INFEASIBLE)


class ExactAlternatives:
    """Answers for the jobs of one of our planner's plans.

    Parameters
    ----------
    snapshot : Snapshot
    plan : Plan
    predictor : Predictor, optional

    Raises
    ------
    InputError
        See `rebuild`.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, predictor: Predictor | None = None) -> None:
        self.plan = plan
        self.round: Rebuilt = rebuild(snapshot, plan, predictor)
        self.waiting = WaitingReasons(self.round.work, self.round.selection, self.round.reservation)

    def of(self, name: str) -> Explanation:
        """Return a job's explanation with every alternative, each solved again.

        Raises
        ------
        NotFoundError
            The plan has no such job.
        """
        told = self.plan.explanations.get(name)
        if told is None:
            known = set(self.plan.explanations)
            raise NotFoundError("JOB", f"{short(name)} is not in the plan", nearest(name, known))
        asked = self._ask(self.round.work.evaluator.instance.job_row[name])
        found = [self._exact(asked, offer) for offer in asked.of(asked.only or 0)]
        possible = [a for a in found if a.objective_delta is not None]
        possible.sort(key=lambda a: a.objective_delta.value if a.objective_delta is not None else 0.0)
        rest = [a for a in found if a.objective_delta is None]
        return told.model_copy(update={"alternatives": (*possible, *rest)})

    def all(self) -> Iterator[tuple[str, Explanation]]:
        """Yield the explanation of every job."""
        for name in self.plan.explanations:
            yield name, self.of(name)

    def offers(self, name: str) -> tuple[Alternatives, list[Offer]]:
        """Return what the alternatives of a job are, before they are solved again."""
        asked = self._ask(self.round.work.evaluator.instance.job_row[name])
        return asked, asked.of(asked.only or 0)

    def _ask(self, j: int) -> Alternatives:
        made = self.round
        return Alternatives(
            made.work, made.selection, list(self.plan.groups), self.waiting, made.bound, made.merge, only=j
        )

    def _exact(self, asked: Alternatives, offer: Offer) -> Alternative:
        if offer.option is None:
            return offer.alternative
        forced = force(asked.extended, offer.option, self.plan.planner.seed)
        quantum = asked.table.quantum
        if not forced.possible:
            return offer.alternative.model_copy(
                update={
                    "objective_delta": None,
                    "why_not": "no plan contains it: quotas, nodes or jobs that may not be disturbed leave "
                    "no room",
                }
            )
        if forced.selection is None or not forced.proven:
            return offer.alternative
        loss = forced.selection.objective - self.round.selection.objective
        better = self._better(loss, forced.selection)
        changes = self._changes(asked, offer.option, forced.selection)
        why = "; ".join(part for part in (better, offer.alternative.why_not, changes) if part)
        return offer.alternative.model_copy(
            update={
                "objective_delta": ObjectiveDelta(value=loss * quantum, kind=DeltaKind.EXACT),
                "why_not": why,
                "reason": None if better else offer.alternative.reason,
            }
        )

    def _better(self, loss: int, selection: Selection) -> str:
        """Say why a plan that is better than this one is not it; nothing where it is not."""
        if loss >= 0:
            return ""
        if (selection.columns < len(self.round.work.table)).all():
            return "better, but by less than the plan's gap or than a change must gain"
        return "better than the plan: it was left out of the candidates"

    def _changes(self, asked: Alternatives, option: Option, selection: Selection) -> str:
        """Say which other jobs would lose or get GPUs."""
        before = _holding(self.round.selection, self.round.work)
        after = _holding(selection, asked.extended)
        jobs = asked.instance.jobs
        loses = [jobs[j].id for j in sorted(before - after) if j != option.job]
        gets = [jobs[j].id for j in sorted(after - before) if j != option.job]
        parts = []
        if loses:
            parts.append(f"{names(loses, 4, 'job')} would get no GPUs")
        if gets:
            parts.append(f"{names(gets, 4, 'job')} would get some")
        return "then " + ", ".join(parts) if parts else ""


def _holding(selection: Selection, work: Round) -> set[int]:
    """Return the jobs that hold GPUs."""
    table = work.table.take(selection.columns)
    members = table.jobs[table.holders()]
    return set(members[members >= 0].tolist())
