from __future__ import annotations

import json

import pytest

from ymir_opt.cli.main import run
from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Mode, Sharing
from ymir_opt.importers.gavel import import_gavel
from ymir_opt.importers.gavel_tables import read_table

A, B = "('LM (batch size 20)', 1)", "('A3C', 1)"
WIDE = "('LM (batch size 20)', 2)"
TABLE = {
    "v100": {
        A: {"null": 10.0, A: [4.0, 4.0], B: [6.0, 3.0]},
        B: {"null": 4.0, A: [3.0, 6.0], B: [0.0, 0.0]},
        WIDE: {"null": 18.0, WIDE: [0.0, 0.0]},
    },
    "k80": {A: {"null": 2.0, A: [0.0, 0.0]}, B: {"null": 0.0}, WIDE: {"null": 3.0}},
    "v100_unconsolidated": {A: {"null": 10.0}},
}
GENERATED = [
    "LM (batch size 20)\tcd x && python main.py\t--steps\t1\t1000\t5.0\t1",
    "A3C\tpython main.py\t--max-steps\t1\t300\t7.5\t1",
    "LM (batch size 20)\tpython main.py\t--steps\t1\t500\t9\t2",
]
PHYSICAL = ["LM (batch size 20)\tpython main.py\tlm\t--steps\t1\t1000\t1\t2\t-1.000000\t0"]


def written(tmp_path, lines=GENERATED, table=TABLE):
    path = tmp_path / "traces" / "x.trace"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(table))
    return str(path)


def test_jobs_keep_their_count_and_work(tmp_path):
    snapshot = import_gavel(written(tmp_path), cluster="1x4:V100,1x4:K80").document
    assert snapshot.taken_at_s == 9.0
    assert [(j.id, j.submitted_at_s, j.remaining_samples) for j in snapshot.jobs] == [
        ("job-00001", 5.0, 20_000.0),
        ("job-00002", 7.5, 300.0),
        ("job-00003", 9.0, 10_000.0),
    ]
    assert [(j.min_gpus, j.max_gpus) for j in snapshot.jobs] == [(1, 1), (1, 1), (2, 2)]
    assert {j.sharing for j in snapshot.jobs} == {Sharing.BACKBONE}


def test_physical_traces_have_weights_and_other_columns(tmp_path):
    (job,) = import_gavel(written(tmp_path, PHYSICAL), cluster="1x4:V100").document.jobs
    assert (job.weight, job.submitted_at_s, job.remaining_samples) == (2.0, 0.0, 20_000.0)


def test_jobs_that_arrive_later_are_left_out(tmp_path):
    snapshot = import_gavel(written(tmp_path), at=7.5, cluster="1x4:V100").document
    assert [job.id for job in snapshot.jobs] == ["job-00001", "job-00002"]
    empty = import_gavel(written(tmp_path), at=0.0, cluster="1x4:V100")
    assert empty.document.jobs == ()
    assert "no job has arrived by then" in empty.notes


def test_rates_are_steps_times_batch_on_each_type(tmp_path):
    snapshot = import_gavel(written(tmp_path), cluster="1x4:V100,1x4:K80").document
    rows = {(r.gpu_type, r.foundation_model, r.gpus): r for r in snapshot.profiles.throughput}
    assert rows["V100", "LM", 1].samples_per_s == 200
    assert rows["V100", "LM", 2].samples_per_s == 360
    assert rows["K80", "LM", 1].samples_per_s == 40
    assert rows["V100", "A3C", 1].samples_per_s == 4
    # 0 steps/s means that it does not run there
    assert ("K80", "A3C", 1) not in rows


def test_measured_pairs_are_gpu_share_rows_and_zeros_are_not(tmp_path):
    snapshot = import_gavel(written(tmp_path), cluster="1x4:V100,1x4:K80").document
    rows = {(r.gpu_type, *(m.foundation_model for m in r.members)): r for r in snapshot.profiles.colocation}
    assert set(rows) == {("V100", "A3C", "LM"), ("V100", "LM", "LM")}
    assert rows["V100", "A3C", "LM"].speed_ratio == (3 / 4, 6 / 10)
    assert rows["V100", "LM", "LM"].speed_ratio == (0.4, 0.4)
    assert all(r.mode is Mode.GPU_SHARE and r.gpus == 1 for r in rows.values())


def test_exactly_the_measured_pairs_fit_in_memory(tmp_path):
    snapshot = import_gavel(written(tmp_path), cluster="1x4:V100,1x4:K80").document
    memory = {(r.gpu_type, r.foundation_model, r.gpus): r.memory_gib for r in snapshot.profiles.throughput}
    assert memory["V100", "LM", 1] + memory["V100", "A3C", 1] == 16.0
    assert memory["K80", "LM", 1] is None  # never measured sharing there
    assert {n.gpu_type: n.gpu_memory_gib for n in snapshot.cluster.nodes} == {"V100": 16.0, "K80": 12.0}


def test_a_job_without_a_measurement_is_kept_and_said(tmp_path):
    found = import_gavel(written(tmp_path, [GENERATED[1]]), cluster="1x4:K80")
    assert len(found.document.jobs) == 1
    assert any("not measured" in note and "job-00001" in note for note in found.notes)


def test_a_job_larger_than_any_type_is_said(tmp_path):
    found = import_gavel(written(tmp_path, [GENERATED[2]]), cluster="1x1:V100,1x1:K80")
    assert any("more GPUs than any type has" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("LM (batch size 20)\tx\t1", "line 2: has 3 columns"),
        ("LM (batch size 21)\tx\t-n\t1\t5\t0\t1", "line 2, column job_type: 'LM (batch size 21)'"),
        ("A3C\tx\t-n\t1\tmany\t0\t1", "line 2, column total_steps: 'many'"),
        ("A3C\tx\t-n\t1\t5\tinf\t1", "line 2, column arrival_time: 'inf'"),
        ("A3C\tx\t-n\t1\t5\t0\t0", "line 2, column scale_factor: '0'"),
        ("A3C\tx\t-n\t1\t5\t0\t1.5", "line 2, column scale_factor: '1.5'"),
    ],
)
def test_a_wrong_line_names_its_place(tmp_path, line, place):
    with pytest.raises(InputError) as error:
        import_gavel(written(tmp_path, [GENERATED[0], line]), cluster="1x4:V100")
    assert place in error.value.one_line()


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ([], "is not an object"),
        ({"v100": []}, "is not an object"),
        ({"v100": {A: 3}}, "is not an object"),
        ({"v100": {A: {"null": "fast"}}}, "null: 'fast' is not a rate"),
        ({"v100": {A: {"null": -1}}}, "null: -1 is not a rate"),
        ({"v100": {A: {B: [1]}}}, "is no pair of rates"),
        ({"v100": {"('A3C', 'two')": {"null": 1}}}, "is not a job type"),
        ({"v100": {"(__import__('os'), 1)": {"null": 1}}}, "is not a job type"),
    ],
)
def test_a_wrong_table_names_its_place(tmp_path, table, place):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(table))
    with pytest.raises(InputError) as error:
        read_table(path)
    assert place in error.value.one_line()


def test_nan_and_broken_json_are_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"v100": {"A": {"null": NaN}}}')
    with pytest.raises(InputError, match="contains NaN"):
        read_table(path)
    path.write_text('{"v100": ')
    with pytest.raises(InputError, match="line 1: is not valid JSON"):
        read_table(path)


def test_missing_files_and_types(tmp_path):
    trace = written(tmp_path)
    with pytest.raises(InputError, match="GPU type H100: has no throughputs; known: v100, k80"):
        import_gavel(trace, cluster="1x4:H100")
    with pytest.raises(InputError, match="cannot be read"):
        import_gavel(trace, throughputs=str(tmp_path / "none.json"))
    (tmp_path / "simulation_throughputs.json").unlink()
    with pytest.raises(InputError, match="--throughputs"):
        import_gavel(trace)


def test_the_command_needs_only_the_trace(tmp_path, capsys):
    out = tmp_path / "s.json"
    assert run(["import", "gavel", written(tmp_path), "-o", str(out)]) == 2
    assert "P100: has no throughputs" in capsys.readouterr().err
    assert run(["import", "gavel", written(tmp_path), "--cluster", "1x4:V100", "-o", str(out)]) == 0
    assert len(parse_snapshot(out.read_bytes()).jobs) == 3


@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "jobs"), [("traces_physical/small_test", 20), ("traces_msr/seed0_2869ce", 533)]
)
def test_published_traces(data_dir, trace, jobs):
    snapshot = import_gavel(str(data_dir / "gavel" / f"{trace}.trace")).document
    assert len(snapshot.jobs) == jobs
    gpus = {"V100": 0, "P100": 0, "K80": 0}
    for node in snapshot.cluster.nodes:
        gpus[node.gpu_type] += node.gpus
    assert gpus == {"V100": 8, "P100": 16, "K80": 24}
    assert {row.gpu_type for row in snapshot.profiles.throughput} == set(gpus)


@pytest.mark.data
def test_published_pairs(data_dir, tmp_path):
    """On V100 the combined throughput of a pair over its members' alone is 1.37 in the median."""
    import statistics

    table = read_table(data_dir / "gavel" / "simulation_throughputs.json")
    names = sorted({kind.name for worker, kind in table.alone if worker == "v100" and kind.gpus == 1})
    trace = tmp_path / "all.trace"
    trace.write_text("".join(f"{name}\tx\t-n\t1\t10\t0\t1\n" for name in names))
    found = import_gavel(
        str(trace), throughputs=str(data_dir / "gavel" / "simulation_throughputs.json"), cluster="1x4:V100"
    )
    rows = found.document.profiles.colocation
    # 40 of the 26 x 26 ordered pairs ran out of memory
    ordered = sum(1 if r.members[0] == r.members[1] else 2 for r in rows)
    assert len(names) == 26
    assert ordered == 26 * 26 - 40
    assert statistics.median(sum(r.speed_ratio) for r in rows) == pytest.approx(1.37, abs=0.03)


@pytest.mark.data
def test_a_published_trace_is_planned_with_measured_pairs_only(data_dir):
    from ymir_opt.planner import solve
    from ymir_opt.verify import check

    snapshot = import_gavel(str(data_dir / "gavel" / "traces_physical" / "minimize_makespan.trace")).document
    plan = solve(snapshot)
    assert check(snapshot, plan) == []
    model = {job.id: (job.foundation_model, job.batch_size) for job in snapshot.jobs}
    measured = {
        (row.gpu_type, tuple(sorted((m.foundation_model, m.batch_size) for m in row.members)))
        for row in snapshot.profiles.colocation
    }
    shared = [group for group in plan.groups if group.mode is Mode.GPU_SHARE]
    assert shared
    for group in shared:
        assert (group.gpu_type, tuple(sorted(model[name] for name in group.jobs))) in measured
