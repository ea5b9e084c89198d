"""What an alternative loses: exactly what trying every plan with it finds, and never less than its bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from brute import brute_force
from oracle_generate import small_snapshot
from oracle_options import Option as Tried

from ymir_opt.domain.plan import DeltaKind, Reason
from ymir_opt.domain.snapshot import Mode
from ymir_opt.explain.alternatives import Alternatives
from ymir_opt.explain.options import Kind, Option
from ymir_opt.formulation.columns import MODES
from ymir_opt.planner import solve
from ymir_opt.whatif.forced import ExactAlternatives, force

QUICK = (0, 2, 3, 7, 12)
SEEDS = 30


def done_by(asked: Alternatives, option: Option) -> Callable[[Tried | None], bool]:
    """Return which of the oracle's groups do what an option says."""
    table, instance = asked.table, asked.instance
    c = option.columns[0] if option.columns else -1

    def does(tried: Tried | None) -> bool:
        if tried is None or option.kind is Kind.WAIT:
            return tried is None and option.kind is Kind.WAIT
        if option.kind is Kind.KEEP or tried.run >= 0:
            return option.kind is Kind.KEEP and tried.run >= 0
        if tried.mode is not MODES[table.mode[c]]:
            return False
        if option.kind is Kind.MERGE:
            if option.partner not in tried.members:
                return False
            if tried.mode is not Mode.SEQUENCE:
                return True
            return (tried.members.index(option.partner) < tried.members.index(option.job)) == option.after
        if (tried.gpu_type, tried.gpus) != (instance.types[table.type[c]], table.gpus[c]):
            return False
        start = int(table.start[c, 0])
        source = instance.snapshot.adapters[start].id if start >= 0 else None
        return option.kind is Kind.SOLO or tried.starts[0] == source

    return does


def examine(seed: int, seen: Counter[str]) -> None:
    snapshot = small_snapshot(seed)
    plan = solve(snapshot, gap=0.0)
    best = brute_force(snapshot)
    exact = ExactAlternatives(snapshot, plan)
    slack = max(1e-6 * abs(best.objective), 1e-8 * best.queueing)
    objective: Any = plan.solver.objective
    for job in snapshot.jobs:
        asked, offers = exact.offers(job.id)
        for offer in offers:
            if offer.option is None:
                if offer.alternative.reason is Reason.EXCEEDS_MAX_QUOTA:
                    seen["ruled out by quota"] += 1
                continue
            tried = brute_force(snapshot, offer.option.job, done_by(asked, offer.option)).objective
            forced = force(asked.extended, offer.option)
            seen[offer.option.kind.name] += 1
            place = (seed, job.id, offer.alternative.option)
            if not forced.possible:
                seen["impossible"] += 1
                assert tried == math.inf, place
                continue
            assert forced.proven, place
            assert forced.selection is not None
            found = forced.selection.objective * asked.table.quantum
            assert abs(found - tried) <= slack, (*place, found, tried)
            loss = offer.alternative.objective_delta
            if loss is not None:
                assert loss.kind is DeltaKind.LOWER_BOUND
                assert -1e-12 <= loss.value <= tried - objective + slack, place
                seen["bound above 0"] += loss.value > slack
        told = {a.option: a for a in exact.of(job.id).alternatives}
        for offer in offers:
            delta = told[offer.alternative.option].objective_delta
            seen["exact"] += delta is not None and delta.kind is DeltaKind.EXACT


@pytest.mark.parametrize("seed", QUICK)
def test_an_exact_loss_is_what_trying_everything_finds(seed: int) -> None:
    examine(seed, Counter())


@pytest.mark.slow
def test_exact_losses_over_many_rounds() -> None:
    seen: Counter[str] = Counter()
    for seed in sorted(set(range(SEEDS)) - set(QUICK)):
        examine(seed, seen)
    wanted = [kind.name for kind in Kind] + ["impossible", "exact", "bound above 0"]
    assert not [name for name in wanted if not seen[name]], seen
