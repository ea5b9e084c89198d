"""The same run gives the same result, and a run that was cut off goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sim_kit import elastic, linear_workload, titan

from ymir_opt.domain.errors import InputError
from ymir_opt.policies.base import load_policy
from ymir_opt.simulator.cluster import NodeEvent, NodeSpec, parse_cluster
from ymir_opt.simulator.engine import Engine, added_nodes
from ymir_opt.simulator.estimates import EstimateError
from ymir_opt.simulator.results import Recorder, SimulationResult
from ymir_opt.simulator.workload import TransferTruth

POLICIES = ("fifo", "srtf", "tiresias", "themis", "optimus", "gavel", "pollux", "titan:merge", "sia", "ymir")


def trace(number: int = 24):
    rng = np.random.default_rng(4)
    kinds = [("x", 0), ("y", 1), ("z", 2)]
    ratio = np.array([[np.nan, 0.6, 1.4], [0.7, np.nan, 0.5], [0.4, 1.2, np.nan]])
    truth = TransferTruth(("m",) * 3, ("x", "y", "z"), (8,) * 3, ratio, ratio, ratio, np.ones((3, 3)))
    jobs = []
    for i in range(number):
        task, kind = kinds[int(rng.integers(3))]
        jobs.append(
            elastic(
                f"j{i}",
                float(np.round(rng.uniform(0, 900.0), 3)),
                float(rng.lognormal(6.0, 1.0)),
                most=8,
                task=task,
                kind=kind,
                epoch_samples=20.0,
                requested_gpus=int(rng.integers(1, 5)),
                failing_starts=1 if i % 7 == 3 else 0,
            )
        )
    return linear_workload(jobs, truth, power=0.8, cold=20.0, warm=4.0)


def engine(policy: str) -> Engine:
    # our planner takes its time over every round
    number = 6 if policy.startswith("ymir") else 24
    events = (NodeEvent(400.0, "down", "n1"), *added_nodes((NodeSpec("x", "V100", 4),), 700.0))
    return Engine(
        trace(number),
        parse_cluster("2x4:V100"),
        load_policy(policy),
        policy_name=policy,
        node_events=events,
        error=EstimateError(work=0.3, speed=0.1, transfer=0.2, seed=9),
        recorder=Recorder(segments=True),
    )


def essence(result: SimulationResult) -> tuple[object, ...]:
    series = {name: values.tolist() for name, values in result.series.items() if name != "plan_wall_s"}
    numbers = (
        result.starts,
        result.preemptions,
        result.merges_kept,
        result.merges_rolled_back,
        result.rounds,
    )
    return result.jobs, result.segments, repr(series), numbers, result.unfinished, result.makespan_s


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_that_is_saved_and_continued_equals_one_that_is_not(policy: str, tmp_path: Path):
    whole = engine(policy).run()
    assert whole.unfinished == ()
    assert essence(engine(policy).run()) == essence(whole), "the same run twice"
    path = tmp_path / "run.json"
    for cut in (2, max(3, whole.rounds // 2)):
        first = engine(policy)
        first.run(stop_after_rounds=cut)
        first.save(path)
        second = engine(policy)
        second.restore(path)
        assert essence(second.run(checkpoint=path)) == essence(whole)
        assert not path.exists(), "a finished run leaves no checkpoint behind"


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "run.json"
    first = engine("tiresias")
    first.run(stop_after_rounds=2)
    first.save(path)
    with pytest.raises(InputError, match=r"saved for another policy .tiresias."):
        engine("fifo").restore(path)
    path.write_text("{}")
    with pytest.raises(InputError, match="no checkpoint of this version"):
        engine("tiresias").restore(path)
    path.write_text("nonsense")
    with pytest.raises(InputError, match="is no checkpoint"):
        engine("tiresias").restore(path)


@pytest.mark.data
@pytest.mark.slow
def test_a_real_trace_is_continued_bit_for_bit(data_dir: Path, tmp_path: Path):
    def fresh():
        return Engine(titan(data_dir, "FM-1-roberta-large"), parse_cluster("8x4:V100"), load_policy("themis"))

    whole = fresh().run()
    first = fresh()
    first.run(stop_after_rounds=300)
    first.save(tmp_path / "run.json")
    second = fresh()
    second.restore(tmp_path / "run.json")
    assert essence(second.run()) == essence(whole)


def test_simulate_reads_its_trace_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import json

    from ymir_opt.cli.commands.simulate import simulate as command
    from ymir_opt.simulator import experiment

    path = tmp_path / "t.json"
    jobs = [{"id": f"j{i}", "submitted_at_s": 9.0 * i, "gpus": 1, "run_s": 50.0} for i in range(4)]
    path.write_text(json.dumps({"schema": "ymir.trace/1", "jobs": jobs}))
    read = []
    load = experiment.load_trace
    monkeypatch.setattr(experiment, "load_trace", lambda *given: read.append(given) or load(*given))
    command(str(path), "1x2:V100", policy="fifo", as_json=True)
    assert len(read) == 1
