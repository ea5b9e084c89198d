"""Published workloads, imported and planned: the exact backends agree and the plans are proven."""

from __future__ import annotations

import pytest

from ymir_opt.importers.titan import import_titan
from ymir_opt.planner import solve
from ymir_opt.verify import check

pytestmark = [pytest.mark.data, pytest.mark.slow]


def planned(data_dir, workload, at, backends):
    folder = data_dir / "titan"
    snapshot = import_titan(
        str(folder / "workloads" / workload / "workload-0.csv"),
        profiles=str(folder),
        at=float(at),
        cluster="8x4:V100",
    ).document
    return snapshot, [solve(snapshot, backend=backend, gap=0.0) for backend in backends]


@pytest.mark.parametrize(
    ("workload", "at", "jobs", "backends"),
    [
        ("FM-2-vit", 7200, 63, ("highs", "pulp-highs", "cbc", "cpsat")),
        ("FM-1-roberta-base", 28800, 120, ("highs", "pulp-highs", "cbc", "cpsat")),
        ("FM-2-vit", 25200, 500, ("highs", "pulp-highs")),
    ],
)
def test_exact_backends_agree_on_published_workloads(data_dir, workload, at, jobs, backends):
    snapshot, plans = planned(data_dir, workload, at, backends)
    assert len(snapshot.jobs) == jobs
    for backend, plan in zip(backends, plans, strict=True):
        assert plan.solver.backend == backend
        assert check(snapshot, plan) == []
        assert plan.solver.bound is not None
        assert plan.solver.value_gap == pytest.approx(0.0, abs=1e-6)
        assert plan.solver.objective == pytest.approx(plans[0].solver.objective, rel=1e-6)
    assert plans[0].metrics.gpus_used == 32
