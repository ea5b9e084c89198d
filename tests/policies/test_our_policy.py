"""Our planner as a policy: which constants it plans with, and how to choose others."""

from __future__ import annotations

import pytest
from test_plan_by import job, node, snapshot

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.planner import solve
from ymir_opt.policies.base import load_policy
from ymir_opt.policies.ymir import NO_MERGE_EXPONENT


def exponent(plan):
    return plan.planner.objective.parameters["age_exponent"]


@pytest.mark.parametrize(("name", "own"), [("ymir", 0.25), ("ymir-no-merge", NO_MERGE_EXPONENT)])
def test_the_plan_says_which_ageing_exponent_it_was_made_with(name: str, own: float):
    made = snapshot([node("n0", 4)], [job("a", 2), job("b", 4)])
    assert exponent(load_policy(name).plan(made)) == own
    assert exponent(load_policy(f"{name}:r=0.5").plan(made)) == 0.5
    assert exponent(load_policy(f"{name}:greedy:r=0").plan(made)) == 0.0
    assert exponent(solve(made, policy=name)) == Parameters().age_exponent == 0.25


def test_variants_combine_and_keep_their_name():
    policy = load_policy("ymir-no-merge:r=0.25:greedy")
    assert policy.name == "ymir-no-merge:r=0.25:greedy"
    made = snapshot([node("n0", 4)], [job("a", 2)])
    plan = policy.plan(made)
    assert plan.solver.backend == "greedy"
    assert plan.planner.policy == "ymir-no-merge"


@pytest.mark.parametrize("text", ["r=", "r=x", "r=-1", "r=nan", "r=inf", "r=5", "r=0.1:r=0.2"])
def test_exponents_that_are_none_are_refused(text: str):
    with pytest.raises(InputError, match="ageing exponent"):
        load_policy(f"ymir:{text}")
    with pytest.raises(NotFoundError):
        load_policy("ymir:quick")
