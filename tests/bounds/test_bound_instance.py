"""From a workload and a cluster to what the bounds need, and the values on the real traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ymir_opt.jobmodel import JobModel
from ymir_opt.simulator.bounds import SlotOptions, bound_instance, lower_bound
from ymir_opt.simulator.cluster import NodeEvent, NodeSpec, parse_cluster
from ymir_opt.simulator.workload import RigidSpeeds, TraceJob, Workload, titan_workload


class TwoTypes:
    """A100 twice as fast as V100; warm starts are cheap; a gang split 3 + 1 is faster than 2 + 2."""

    types = ("V100", "A100")

    def rate(self, model: str, batch: int, placement: tuple[int, ...], gpu_type: str) -> float:
        if sum(placement) > 4:
            return 0.0
        base = 10.0 * sum(placement) ** 0.5 * (2.0 if gpu_type == "A100" else 1.0)
        return base * (1.5 if placement == (1, 3) else 1.0)

    def predicted(self, model: str, batch: int, gpus: int, gpu_type: str) -> float:
        return 1.0

    def start_s(self, model: str, gpu_type: str, warm: bool) -> float:
        return 2.0 if warm else 30.0


def job(name: str, at: float, **fields: object) -> TraceJob:
    return TraceJob(name, at, 1000.0, model="m", task="t", batch_size=8, max_gpus=4, **fields)  # type: ignore[arg-type]


def test_times_are_the_best_over_types_placements_and_starts() -> None:
    workload = Workload.of(
        "w",
        [
            job("any", 5.0),
            job("v", 0.0, gpu_types=("V100",)),
            job("big", 7.0, requested_gpus=8),
            TraceJob("never", 1.0, 10.0, 6, 6, 6, model="m", batch_size=8),
        ],
        TwoTypes(),
    )
    nodes = (*parse_cluster("2x3:V100"), *parse_cluster("1x2:A100", prefix="a"))
    found = bound_instance(workload, nodes)
    assert found.ids == ("v", "any", "big")
    assert found.never == ("never",)
    assert found.counts.tolist() == [1, 2, 3, 4, 6, 8]
    assert found.gpus.tolist() == [[6.0, 2.0]]
    by = dict(zip(found.ids, found.time_s, strict=True))
    assert by["any"][0, 0] == pytest.approx(2 + 1000 / 10)
    assert by["any"][1, 0] == pytest.approx(2 + 1000 / 20)
    assert by["any"][1, 1] == pytest.approx(2 + 1000 / (20 * 2**0.5))
    # three and four GPUs exist as V100 only; four are fastest as 1 + 3
    assert np.isinf(by["any"][1, 2])
    assert by["any"][0, 2] == pytest.approx(2 + 1000 / (10 * 3**0.5))
    assert by["any"][0, 3] == pytest.approx(2 + 1000 / (10 * 2.0 * 1.5))
    assert by["v"][0, 0] == pytest.approx(2 + 1000 / 10)
    assert np.isinf(by["v"][1]).all()
    assert np.isinf(by["big"][:, 5]).all()


def test_node_events_change_the_capacity() -> None:
    workload = Workload.of("w", [TraceJob("a", 0.0, 10.0)], RigidSpeeds(("V100",)))
    nodes = parse_cluster("2x4:V100")
    events = (
        NodeEvent(20.0, "down", "n0"),
        NodeEvent(30.0, "add", "x0", NodeSpec("x0", "V100", 8)),
        NodeEvent(30.0, "up", "n0"),
        NodeEvent(40.0, "down", "n1"),
    )
    found = bound_instance(workload, nodes, events)
    assert found.changes_s.tolist() == [-np.inf, 20.0, 30.0, 40.0]
    assert found.gpus.tolist() == [[8.0], [4.0], [16.0], [12.0]]
    assert found.capacity(25.0, 2).tolist() == [[8 * 20 + 4 * 5, 4 * 5 + 16 * 10 + 12 * 10]]


def test_rigid_jobs_run_on_their_count_only() -> None:
    workload = Workload.of(
        "w",
        [TraceJob("a", 0.0, 60.0, 4, 4, 4), TraceJob("b", 0.0, 60.0, 1)],
        RigidSpeeds(("V100",), restart_s=5.0),
    )
    found = bound_instance(workload, parse_cluster("1x4:V100"))
    assert found.counts.tolist() == [1, 4]
    assert found.time_s.tolist() == [[[np.inf, 65.0]], [[65.0, np.inf]]]
    # one of them waits for the other: shortest-first on one machine says 16.25 and 81.25 s
    bound = lower_bound(found, SlotOptions(slot_s=5.0))
    assert bound.shortest_first_s == pytest.approx((65 / 4 + 65 * 5 / 4) / 2)
    assert bound.slot_prices_s is not None
    assert 65.0 <= bound.mean_s <= (65.0 + 130.0) / 2


# The reference's bounds (its own method and accuracy), and what a schedule has reached on 32 GPUs, hours.
PUBLISHED = {
    "FM-1-roberta-base": (0.115, 0.133),
    "FM-1-roberta-large": (0.120, 0.140),
    "FM-1-vit": (0.259, 0.315),
    "FM-1-vit-large": (0.269, 0.308),
    "FM-2-roberta-base": (0.197, 0.283),
    "FM-2-vit": (0.653, 0.803),
}


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith("FM-1-roberta") else pytest.param(name, marks=pytest.mark.slow)
        for name in PUBLISHED
    ],
)
def test_the_bounds_on_titans_traces(name: str, data_dir: Path) -> None:
    titan = data_dir / "titan"
    workload = titan_workload(titan / "workloads" / name / "workload-0.csv", JobModel(titan))
    bound = lower_bound(bound_instance(workload, parse_cluster("8x4:V100")))
    reference, reached = PUBLISHED[name]
    assert 0.995 * reference <= bound.mean_s / 3600 <= 0.95 * reached
    assert bound.slot_prices_s == bound.mean_s
