"""Gavel's real traces with their measured throughputs, as workloads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ymir_opt.domain.errors import InputError
from ymir_opt.importers.gavel_trace import import_gavel_trace
from ymir_opt.importers.traces import TraceDocument, workload_of
from ymir_opt.policies.base import load_policy
from ymir_opt.simulator.bounds import bound_instance, lower_bound
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.traces import TraceOptions, load_trace

TABLE = {
    "v100": {
        "('LM (batch size 20)', 1)": {"null": 10.0, "('LM (batch size 20)', 1)": [4.0, 5.0]},
        "('LM (batch size 20)', 2)": {"null": 18.0},
    },
    "v100_unconsolidated": {"('LM (batch size 20)', 2)": {"null": 9.0}},
    "k80": {"('LM (batch size 20)', 1)": {"null": 2.0}},
}
LINES = [
    "LM (batch size 20)\tpython main.py\t--steps\t1\t1000\t50.0\t1",
    "LM (batch size 20)\tpython main.py\t--steps\t1\t1800\t9\t2",
]


def files(tmp_path: Path, lines: list[str]) -> str:
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(TABLE))
    path = tmp_path / "small.trace"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_steps_become_samples_at_measured_speeds(tmp_path: Path) -> None:
    found = import_gavel_trace(files(tmp_path, LINES), gpu_types=("V100", "K80"))
    document = found.document
    assert isinstance(document, TraceDocument)
    assert [(j.id, j.submitted_at_s, j.gpus, j.samples) for j in document.jobs] == [
        ("job-00002", 9.0, 2, 36_000.0),
        ("job-00001", 50.0, 1, 20_000.0),
    ]
    speeds = {(r.gpu_type, r.gpus): (r.samples_per_s, r.spread_samples_per_s) for r in document.speeds}
    assert speeds == {("V100", 1): (200.0, None), ("V100", 2): (360.0, 180.0), ("K80", 1): (40.0, None)}
    assert [(p.gpu_type, p.speed_ratio) for p in document.pairs] == [("V100", (0.4, 0.5))]
    result = simulate(
        workload_of(document, ("V100",)), parse_cluster("2x2:V100"), load_policy("fifo"), segments=True
    )
    assert {job.id: job.jct_s for job in result.jobs} == {"job-00002": 100.0, "job-00001": 100.0}


def test_wrong_rows_name_line_and_column(tmp_path: Path) -> None:
    for line, message in (
        (LINES[0].replace("1000", "x"), "line 2, column total_steps"),
        (LINES[0].replace("LM", "ML"), "line 2, column job_type"),
        ("a\tb", "line 2: has 2 columns"),
    ):
        path = files(tmp_path, [LINES[1], line])
        with pytest.raises(InputError) as error:
            import_gavel_trace(path, gpu_types=("V100",))
        assert message in str(error.value)
        assert str(error.value).startswith(path)
    with pytest.raises(InputError, match="has no throughputs"):
        import_gavel_trace(files(tmp_path, LINES), gpu_types=("H100",))


@pytest.mark.data
def test_every_real_trace_is_read(data_dir: Path) -> None:
    gavel = data_dir / "gavel"
    table = str(gavel / "simulation_throughputs.json")
    number = {}
    for path in sorted((*gavel.glob("traces_msr/*.trace"), *gavel.glob("traces_physical/*.trace"))):
        document = import_gavel_trace(str(path), throughputs=table).document
        assert isinstance(document, TraceDocument)
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert len(document.jobs) == len(lines)
        times = np.array([job.submitted_at_s for job in document.jobs])
        assert (np.diff(times) >= 0).all()
        number[path.stem] = len(lines)
    assert len(number) == 23


@pytest.mark.data
@pytest.mark.parametrize("name", ["traces_msr/seed0_23dbec.trace", "traces_physical/small_test.trace"])
def test_real_traces_run_on_several_types_above_their_bound(data_dir: Path, name: str) -> None:
    nodes = parse_cluster("2x4:V100,2x4:P100,2x4:K80")
    options = TraceOptions(
        profiles=str(data_dir / "gavel" / "simulation_throughputs.json"), gpu_types=("V100", "P100", "K80")
    )
    workload = load_trace(data_dir / "gavel" / name, options)
    bound = lower_bound(bound_instance(workload, nodes), quick=True)
    result = simulate(workload, nodes, load_policy("fifo"))
    assert result.jobs_finished + len(result.unfinished) == workload.length
    assert result.jobs_finished == bound.jobs
    assert result.mean_jct_s >= bound.mean_s * (1 - 1e-9)
