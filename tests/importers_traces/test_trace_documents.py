"""Traces as documents, and as workloads that run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ymir_opt.domain.documents import dump_json
from ymir_opt.domain.errors import InputError
from ymir_opt.importers.traces import PairRow, SpeedRow, TraceDocument, TraceEntry, parse_trace, workload_of
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.traces import TraceOptions, load_trace


def rigid(name: str, at: float, run: float, gpus: int = 1) -> TraceEntry:
    return TraceEntry(id=name, submitted_at_s=at, run_s=run, gpus=gpus)


def test_a_document_survives_writing_and_reading(tmp_path: Path) -> None:
    document = TraceDocument(
        name="t",
        clock="c",
        jobs=(
            rigid("a", 10.0, 10.0, 2),
            TraceEntry(id="b", submitted_at_s=0.0, foundation_model="LM", batch_size=20, samples=4000.0),
        ),
        speeds=(
            SpeedRow(foundation_model="LM", batch_size=20, gpu_type="V100", gpus=1, samples_per_s=200.0),
        ),
        pairs=(PairRow(gpu_type="V100", members=(("LM", 20), ("LM", 20)), speed_ratio=(0.4, 0.4)),),
    )
    text = dump_json(document, exclude_defaults=True)
    assert json.loads(text)["schema"] == "ymir.trace/1"
    assert parse_trace(text) == document
    path = tmp_path / "t.json"
    path.write_text(text)
    workload = load_trace(path, TraceOptions(gpu_types=("V100",)))
    result = simulate(workload, parse_cluster("1x4:V100"), load_policy("fifo"))
    assert {job.id: job.completed_at_s for job in result.jobs} == {"b": 20.0, "a": 20.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobs": [{"id": "a", "submitted_at_s": 0}]}, r"jobs\[0\]: has not one of run_s and samples"),
        ({"jobs": [{"id": "a", "submitted_at_s": 0, "run_s": 1, "samples": 1}]}, "has not one of"),
        ({"jobs": [{"id": "a", "submitted_at_s": 0, "samples": 1}]}, "no model or batch size"),
        ({"jobs": [{"id": "a", "submitted_at_s": 0, "run_s": 0}]}, r"jobs\[0\].run_s"),
        (
            {"jobs": [{"id": "a", "submitted_at_s": 0, "run_s": 1, "gpu": 1}]},
            "unknown field 'gpu'; did you mean 'gpus'",
        ),
        ({"jobs": [{"id": "a", "submitted_at_s": 0, "run_s": 1}] * 2}, r"jobs\[1\].id: 'a' occurs twice"),
        ({"schema": "ymir.trace/2"}, "schema"),
    ],
)
def test_faults_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_trace(json.dumps({"schema": "ymir.trace/1", **change}), "t.json")


@settings(max_examples=20, deadline=None)
@given(
    offset=st.sampled_from([0.0, 1.5e9, -4e5]),
    gaps=st.lists(st.floats(0.0, 5e4), min_size=1, max_size=8),
    late=st.floats(0.0, 1e6),
    period=st.sampled_from([None, 300.0]),
)
def test_any_offset_empty_rounds_and_a_late_first_arrival(
    offset: float, gaps: list[float], late: float, period: float | None
) -> None:
    """R3: completion times do not depend on where the clock starts, nor on how long nothing happens."""

    def run(shift: float) -> list[float]:
        at, jobs = shift + late, []
        for n, gap in enumerate(gaps):
            at += round(gap)
            jobs.append(rigid(f"j{n}", at, 600.0 + 7 * n, 1 + n % 3))
        workload = workload_of(TraceDocument(jobs=tuple(jobs)), ("V100",))
        cadence = Cadence.events(10.0) if period is None else Cadence.rounds(period)
        result = simulate(workload, parse_cluster("1x4:V100"), load_policy("fifo"), cadence=cadence)
        assert not result.unfinished
        return [job.jct_s for job in sorted(result.jobs, key=lambda job: job.id)]

    # in fixed rounds the phase of the clock matters, so shift by whole rounds
    late = round(late / 300.0) * 300.0
    assert run(offset - offset % 300.0) == pytest.approx(run(0.0), abs=1e-3)


def test_types_speeds_and_nodes_decide_how_fast_a_job_runs() -> None:
    entry = TraceEntry(
        id="a", submitted_at_s=0.0, foundation_model="LM", batch_size=20, samples=1000.0, gpus=2
    )
    speeds = (
        SpeedRow(
            foundation_model="LM",
            batch_size=20,
            gpu_type="V100",
            gpus=2,
            samples_per_s=100.0,
            spread_samples_per_s=25.0,
        ),
        SpeedRow(foundation_model="LM", batch_size=20, gpu_type="K80", gpus=2, samples_per_s=10.0),
    )
    document = TraceDocument(jobs=(entry,), speeds=speeds)

    def took(cluster: str, types: tuple[str, ...]) -> float:
        result = simulate(
            workload_of(document, types, restart_s=5.0), parse_cluster(cluster), load_policy("fifo")
        )
        return result.mean_jct_s

    assert took("1x2:V100", ("V100",)) == pytest.approx(5 + 10)
    assert took("2x1:V100", ("V100",)) == pytest.approx(5 + 40)
    assert took("1x2:K80", ("K80",)) == pytest.approx(5 + 100)


def test_pairs_count_only_where_they_were_measured() -> None:
    jobs = tuple(
        TraceEntry(id=f"{g}", submitted_at_s=0.0, foundation_model="LM", batch_size=20, samples=1.0, gpus=g)
        for g in (1, 2)
    )
    pairs = (PairRow(gpu_type="V100", members=(("LM", 20), ("LM", 20)), speed_ratio=(0.4, 0.4)),)
    one = workload_of(TraceDocument(jobs=jobs, pairs=pairs), ("V100",))
    assert one.transfer.models == ("LM", "LM")
    assert one.transfer.share[0, 0] == 0.4
    assert [bool(v != v) for v in one.transfer.share.ravel()] == [False, True, True, True]
    two = workload_of(TraceDocument(jobs=jobs, pairs=pairs), ("V100", "K80"))
    assert (two.transfer.share != two.transfer.share).all()


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("hello world\n")
    with pytest.raises(InputError, match="no known trace format"):
        load_trace(path, TraceOptions())
