from __future__ import annotations

import json

import pytest
from titan_files import HEADER, ROWS, write_profiles, write_workload

from ymir_opt.cli.main import run
from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import JobState, TransferMode
from ymir_opt.importers.nodes import gpu_memory, product
from ymir_opt.importers.titan import import_titan
from ymir_opt.importers.titan_rows import switch_rows
from ymir_opt.jobmodel import JobModel


@pytest.fixture
def files(tmp_path):
    return write_workload(tmp_path / "workload.csv"), write_profiles(tmp_path / "profiles")


def imported(files, at=100.0, cluster="2x4:V100", **options):
    return import_titan(str(files[0]), profiles=str(files[1]), at=at, cluster=cluster, **options)


def snapshot_of(files, **options):
    return imported(files, **options).document


def test_only_jobs_submitted_by_the_time_are_pending_without_progress(files):
    assert [job.id for job in snapshot_of(files, at=20.0).jobs] == ["a", "b"]
    for job in snapshot_of(files).jobs:
        assert job.state is JobState.PENDING
        assert job.done_samples == 0
        assert job.allocation is None


def test_work_is_epochs_to_target_times_samples_per_epoch(files):
    jobs = {job.id: job for job in snapshot_of(files).jobs}
    assert jobs["a"].remaining_samples == 4 * 623
    assert jobs["b"].remaining_samples == 5 * 917
    assert (jobs["a"].target.metric, jobs["a"].target.value) == ("eval_accuracy", 0.6)
    assert jobs["a"].target.max_samples == 10 * 623


def test_a_curve_that_misses_its_target_is_censored_and_said(files):
    found = imported(files)
    job = found.document.jobs[2]
    assert job.remaining_samples == job.target.max_samples == 10 * 159
    assert job.labels["target_reached"] is False
    assert any("never reach their target" in note and "c" in note for note in found.notes)
    assert "target_reached" not in found.document.jobs[0].labels


def test_gpu_counts_follow_the_smallest_local_batch(files):
    jobs = {job.id: job for job in snapshot_of(files).jobs}
    assert (jobs["a"].min_gpus, jobs["a"].max_gpus) == (1, 4)  # batch 8, at least 2 a GPU
    assert (jobs["b"].requested_gpus, jobs["b"].max_gpus) == (2, 2)


def test_a_request_beyond_the_batch_is_lowered_and_said(tmp_path):
    rows = ("big,0,tiny@rte,16,8,1e-3,1,0.6\n",)
    files = write_workload(tmp_path / "w.csv", rows), write_profiles(tmp_path / "p")
    found = imported(files)
    assert found.document.jobs[0].requested_gpus == 4
    assert any("requests lowered: big" in note for note in found.notes)


def test_throughput_rows_are_the_tables_steps(files):
    rows = {(row.batch_size, row.gpus): row for row in snapshot_of(files).profiles.throughput}
    assert rows[8, 1].samples_per_s == pytest.approx(8 / (0.8 + 1e-8))
    assert rows[8, 2].samples_per_s == pytest.approx(8 / 0.5)
    assert rows[8, 4].samples_per_s == pytest.approx(8 / 0.3)
    assert (8, 5) not in rows
    # a joint group of a and b trains 12 samples a step, of four a's 32
    assert {12, 16, 20, 24, 32} <= {batch for batch, _ in rows}
    assert all(row.nodes is None for row in rows.values())


def test_memory_below_the_smallest_measured_batch_is_bounded_by_it(files):
    rows = {(row.batch_size, row.gpus): row for row in snapshot_of(files).profiles.throughput}
    assert rows[8, 1].memory_gib == 18
    assert rows[8, 2].memory_gib == 10
    assert rows[8, 4].memory_gib == 10  # local batch 2 was not measured; 4 needs no less


def test_switch_cost_is_restart_and_context_switch(files):
    (row,) = snapshot_of(files).profiles.switch_s
    assert (row.cold_s, row.warm_s) == (35.5, 35.5)
    (row,) = snapshot_of(files, warm_s=3.0).profiles.switch_s
    assert (row.cold_s, row.warm_s) == (35.5, 3.0)


def ratios(snapshot, mode, source, target):
    return [
        row.work_ratio
        for row in snapshot.profiles.transfer
        if row.mode is mode
        and row.target == target
        and source in ((row.source,) if isinstance(row.source, str) else row.source)
    ]


def test_transfer_ratios_against_both_single_task_runs(files):
    snapshot = snapshot_of(files)
    # rte alone: epoch 4 with its own setting, epoch 2 with the best one
    assert ratios(snapshot, TransferMode.WARM_START, "mrpc", "rte") == [1 / 2, 1 / 4]
    assert ratios(snapshot, TransferMode.JOINT, "mrpc", "rte") == [3 / 2, 3 / 4]
    # mrpc has one setting only: one row
    assert ratios(snapshot, TransferMode.JOINT, "rte", "mrpc") == [2 / 5]
    other = snapshot_of(files, against="trace")
    assert ratios(other, TransferMode.JOINT, "mrpc", "rte") == [3 / 4, 3 / 2]


def test_the_planner_uses_the_row_against_the_best_single_setting(files):
    from ymir_opt.domain.outcome import joint_ratio
    from ymir_opt.estimates import Estimates

    for against, wanted in (("best-single", 3 / 2), ("trace", 3 / 4)):
        snapshot = snapshot_of(files, against=against)
        assert Estimates(snapshot).transfer.joint("tiny", ["mrpc"], "rte").ratio == wanted
        assert joint_ratio(snapshot, "a", ("b",)) == wanted


def test_no_row_claims_matched_hyperparameters(files):
    rows = snapshot_of(files).profiles.transfer
    assert rows
    assert all(row.matched_hyperparameters is False for row in rows)


def test_a_transfer_that_misses_the_target_has_no_row_and_is_listed(files):
    found = imported(files)
    assert ratios(found.document, TransferMode.WARM_START, "rte", "mrpc") == []
    listed = found.document.labels["censored_transfers"]
    assert [(each["mode"], each["source"], each["target"]) for each in listed] == [
        ("warm_start", "rte", "mrpc")
    ]
    assert listed[0]["at_least"] == 10 / 5
    assert any("warm-start" in note and "rte -> mrpc" in note for note in found.notes)


def test_settings_that_differ_within_a_task_share_a_row_with_limits(tmp_path):
    rows = (*ROWS[:2], "d,40,tiny@rte,1,8,1e-2,1,0.6\n")
    files = write_workload(tmp_path / "w.csv", rows), write_profiles(tmp_path / "p")
    found = imported(files, against="trace")
    row = next(
        row
        for row in found.document.profiles.transfer
        if row.mode is TransferMode.JOINT and row.target == "rte"
    )
    # 3/4 for the job at 1e-3 and 3/2 for the one at 1e-2
    assert row.work_ratio == pytest.approx((3 / 4 * 3 / 2) ** 0.5)
    assert (row.low, row.high) == (3 / 4, 3 / 2)
    assert any("tiny@rte" in note for note in found.notes)


def test_measured_pairs_become_gpu_share_rows(files):
    (row,) = snapshot_of(files).profiles.colocation
    assert [member.batch_size for member in row.members] == [4, 8]
    assert row.speed_ratio == pytest.approx((0.4 / 0.5, 0.8 / 1.0))
    assert row.memory_gib == 28
    assert (row.gpus, row.gpu_type) == (1, "V100")


def test_larger_nodes_use_rows_of_more_nodes_and_say_so(files):
    found = imported(files, cluster="1x8:V100")
    rows = {(row.batch_size, row.gpus): row for row in found.document.profiles.throughput}
    assert rows[16, 4].nodes is None
    assert rows[16, 8].nodes == 2
    assert any("measured on nodes of 4 GPUs" in note for note in found.notes)


def test_an_empty_snapshot_before_the_first_arrival_is_valid(files):
    found = imported(files, at=-5.0)
    assert found.document.jobs == ()
    assert found.document.profiles.throughput
    assert any("first is submitted at 10 s" in note for note in found.notes)


def test_memory_is_the_smallest_variant_that_the_tables_prove(files):
    assert {node.gpu_memory_gib for node in snapshot_of(files).cluster.nodes} == {32.0}  # 18 GiB measured
    given = snapshot_of(files, gpu_memory=("V100=20",))
    assert {node.gpu_memory_gib for node in given.cluster.nodes} == {20.0}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("nvidia_a100-sxm4-80gb", "A100"), ("V100", "V100"), ("gh200", "GH200"), ("a1000", None), ("", None)],
)
def test_products_are_recognised_as_whole_words(name, wanted):
    assert product(name) == wanted


def test_an_unknown_type_needs_a_figure():
    with pytest.raises(InputError, match="--gpu-memory Z9=GIB"):
        gpu_memory("Z9", {})
    assert gpu_memory("Z9", {"Z9": 7.0}) == 7.0


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        (("a,10,tiny@rte,1,8,1e-3,1,x\n",), "line 2, column target_metric: 'x' is not a number"),
        (("a,10,tiny@rte,1,8,1e-3,1,nan\n",), "line 2, column target_metric"),
        ((ROWS[0], "b,20,tiny,1,8,1e-3,1,0.6\n"), "line 3, column application: 'tiny' is not model@task"),
        ((ROWS[0], ROWS[0]), "line 3, column name: 'a' is already on line 2"),
        (("a,10,tiny@rte,0,8,1e-3,1,0.6\n",), "line 2, column num_gpus"),
        (("a,10\n",), "line 2, column application: is missing"),
        (
            ("a,10,huge@rte,1,8,1e-3,1,0.6\n",),
            "job 'a' (huge@rte): huge on V100: has no step times; known: tiny",
        ),
        (("a,10,tiny@rte,1,8,5e-3,1,0.6\n",), "no curve of tiny@rte at lr 5e-3"),
        (("a,10,tiny@unheard,1,8,1e-3,1,0.6\n",), "tiny@unheard"),
    ],
)
def test_a_wrong_row_names_its_place(tmp_path, rows, place):
    files = write_workload(tmp_path / "w.csv", rows), write_profiles(tmp_path / "p")
    with pytest.raises(InputError) as error:
        imported(files)
    assert place in error.value.one_line()


def test_a_missing_column_is_named(tmp_path):
    header = HEADER.replace(",target_lr", "")
    files = write_workload(tmp_path / "w.csv", (), header), write_profiles(tmp_path / "p")
    with pytest.raises(InputError, match="column target_lr is missing"):
        imported(files)


@pytest.mark.parametrize("name", ["placements", "context_switch"])
def test_a_missing_profile_file_is_named(files, name):
    (files[1] / "lut" / "V100" / f"tiny_{name}.csv").unlink()
    with pytest.raises(InputError) as error:
        imported(files)
    assert "tiny" in error.value.one_line()


def test_missing_curves_are_named(files):
    (files[1] / "curves" / "normal_hpo_curves.csv").unlink()
    with pytest.raises(InputError, match="normal_hpo_curves"):
        imported(files)


@pytest.mark.parametrize("name", ["memory", "sharing"])
def test_optional_tables_may_be_absent(files, name):
    (files[1] / "lut" / "V100" / f"tiny_{name}.csv").unlink()
    profiles = snapshot_of(files).profiles
    assert profiles.throughput
    assert not (profiles.colocation if name == "sharing" else profiles.throughput[0].memory_gib)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"at": float("nan")}, "--at"),
        ({"against": "x"}, "--against"),
        ({"active": "running"}, "--active"),
        ({"active": "policy:"}, "--active"),
        ({"warm_s": -1.0}, "--warm-s"),
        ({"cluster": "8y4"}, "--cluster"),
        ({"cluster": "1x4:H100"}, "tiny on H100"),
        ({"gpu_memory": ("V100",)}, "--gpu-memory"),
        ({"gpu_memory": ("A100=40",)}, "--gpu-memory"),
    ],
)
def test_a_wrong_option_is_named(files, options, place):
    with pytest.raises(InputError) as error:
        imported(files, **options)
    assert error.value.place == place


def test_the_command_writes_a_valid_snapshot(files, tmp_path, capsys):
    out = tmp_path / "s.json"
    arguments = ["import", "titan", str(files[0]), "--profiles", str(files[1]), "--at", "100"]
    assert run([*arguments, "--cluster", "1x4:V100", "--gpu-memory", "V100=32", "-o", str(out)]) == 0
    assert len(parse_snapshot(out.read_bytes()).jobs) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "3 of 3 jobs" in captured.err
    assert run([*arguments, "--cluster", "1x4:V100", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "ymir.snapshot/1"


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "titen", "x"],
        ["import", "titan", "/nowhere.csv", "--profiles", "/nowhere", "--at", "0", "--cluster", "1x1:V100"],
        ["import", "titan"],
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, tmp_path, capsys):
    assert run([*arguments, "-o", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


@pytest.mark.data
@pytest.mark.parametrize(
    ("workload", "at", "jobs"),
    [("FM-2-vit", 7200, 63), ("FM-1-roberta-base", 28800, 120), ("FM-2-vit", 25200, 500)],
)
def test_published_workloads(data_dir, workload, at, jobs):
    folder = data_dir / "titan"
    found = import_titan(
        str(folder / "workloads" / workload / "workload-0.csv"),
        profiles=str(folder),
        at=float(at),
        cluster="8x4:V100",
    )
    snapshot = found.document
    assert len(snapshot.jobs) == jobs
    assert max(job.submitted_at_s for job in snapshot.jobs) <= at
    assert sum(node.gpus for node in snapshot.cluster.nodes) == 32
    known = {(row.batch_size, row.gpus) for row in snapshot.profiles.throughput}
    for job in snapshot.jobs:
        assert {(job.batch_size, gpus) for gpus in range(1, job.max_gpus + 1)} <= known
    tasks = {job.task for job in snapshot.jobs}
    listed = {(e["mode"], e["source"], e["target"]) for e in snapshot.labels["censored_transfers"]}
    rows = {
        (r.mode.value, r.source if isinstance(r.source, str) else r.source[0], r.target)
        for r in snapshot.profiles.transfer
    }
    assert not listed & rows
    # every ordered pair of tasks was measured jointly
    joint = {(s, t) for mode, s, t in listed | rows if mode == "joint"}
    assert {(s, t) for s in tasks for t in tasks if s != t} <= joint


@pytest.mark.data
def test_published_switch_costs(data_dir):
    wanted = {"roberta-base": 30.4, "roberta-large": 19.35, "vit": 4.16, "vit-large": 14.14}
    rows = switch_rows(JobModel(data_dir / "titan"), wanted, ["V100"], None)
    assert [row.cold_s - 30 for row in rows] == pytest.approx(list(wanted.values()), abs=0.01)


# -- the state that a policy leaves ----------------------------------------------------------------


def test_a_policy_leaves_progress_allocations_and_history(files):
    pending = {job.id: job for job in snapshot_of(files, at=300.0).jobs}
    snapshot = snapshot_of(files, at=300.0, active="policy:fifo")
    jobs = {job.id: job for job in snapshot.jobs}
    assert jobs
    held = [
        (node, gpu) for job in jobs.values() for node, gpus in (job.allocation or {}).items() for gpu in gpus
    ]
    assert len(held) == len(set(held))
    running = [job for job in jobs.values() if job.state is JobState.RUNNING]
    assert running
    rates = {(r.batch_size, r.gpus): r.samples_per_s for r in snapshot.profiles.throughput}
    for job in running:
        assert job.done_samples + job.remaining_samples == pytest.approx(pending[job.id].remaining_samples)
        gpus = sum(map(len, job.allocation.values()))
        assert job.done_samples == pytest.approx(rates[job.batch_size, gpus] * job.running_s)
        assert job.running_s == pytest.approx(300.0 - job.last_start_s - 35.5)
    assert snapshot.labels["policy"] == "fifo"


def test_completed_jobs_are_gone_and_leave_their_weights(files):
    snapshot = snapshot_of(files, at=1e6, active="policy:srtf")
    assert snapshot.jobs == ()
    assert {adapter.task for adapter in snapshot.adapters} == {"rte", "mrpc", "wnli"}
    assert snapshot.profiles == snapshot_of(files, at=1e6).profiles


def test_nothing_has_happened_before_the_first_arrival(files):
    snapshot = snapshot_of(files, at=5.0, active="policy:tiresias")
    assert (snapshot.jobs, snapshot.adapters) == ((), ())


def test_an_unknown_policy_is_named(files):
    with pytest.raises(InputError, match="nobody"):
        snapshot_of(files, active="policy:nobody")


@pytest.mark.data
def test_a_published_workload_in_the_middle_of_a_run_can_be_planned(data_dir):
    from ymir_opt.planner import solve
    from ymir_opt.verify import check

    folder = data_dir / "titan"
    snapshot = import_titan(
        str(folder / "workloads" / "FM-2-vit" / "workload-0.csv"),
        profiles=str(folder),
        at=7200.0,
        active="policy:tiresias",
        cluster="8x4:V100",
    ).document
    assert len(snapshot.jobs) < 63
    used = sum(len(gpus) for job in snapshot.jobs for gpus in (job.allocation or {}).values())
    assert 0 < used <= 32
    assert check(snapshot, solve(snapshot, policy="ymir-no-merge")) == []
