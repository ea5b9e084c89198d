"""Step times, accumulation, work and transfer from measured tables, against figures worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.jobmodel import (
    JobModel,
    StepTable,
    accumulation,
    first_epoch,
    normal_placement,
    packed,
    read_workload,
    reference_target,
)
from ymir_opt.jobmodel.workload import WorkloadJob

HEADER = "name,submission_time,application,num_gpus,target_batch_size,target_lr,target_gradient_steps"
HEADER += ",target_metric\n"


@pytest.mark.parametrize(
    ("batch", "gpus", "local", "steps"),
    [
        (16, 1, 16, 0),
        (128, 1, 42, 2),  # three passes of at most floor(128/3)
        (128, 8, 16, 0),
        (192, 2, 48, 1),
        (53, 1, 26, 1),  # one GPU that cannot hold the batch accumulates at least once
        (16, 12, 2, 0),  # never below the smallest measured local batch
    ],
)
def test_accumulation_of_roberta_base(batch: int, gpus: int, local: int, steps: int):
    assert accumulation(batch, gpus, 2, 52) == (local, steps)


@given(batch=st.integers(1, 2000), gpus=st.integers(1, 64), largest=st.integers(4, 300))
def test_accumulation_holds_the_batch_within_the_measured_local_batches(batch: int, gpus: int, largest: int):
    local, steps = accumulation(batch, gpus, 2, largest)
    assert 2 <= local <= max(2, largest)
    assert steps >= 0
    if batch >= 2 * gpus * (steps + 1):
        assert gpus * local * (steps + 1) <= batch, "the batch is not exceeded where it can be split"


@given(gpus=st.integers(1, 200), node=st.integers(1, 16))
def test_packed_uses_the_fewest_nodes(gpus: int, node: int):
    found = packed(gpus, node)
    assert sum(found) == gpus
    assert len(found) == math.ceil(gpus / node)
    assert max(found) <= node


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any))
def test_rotations_and_empty_nodes_do_not_matter(placement: list[int]):
    rotated = placement[1:] + placement[:1]
    assert normal_placement(tuple(placement)) == normal_placement((*rotated, 0))
    assert sum(normal_placement(tuple(placement))) == sum(placement)


def table(folder: Path, rows: str, scalability: str | None = None) -> StepTable:
    path = folder / "m_placements.csv"
    path.write_text("placement,local_bsz,step_time,sync_time\n" + rows)
    other = folder / "m_scalability.csv"
    if scalability is not None:
        other.write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n" + scalability)
    return StepTable(path, other)


def test_step_times_are_linear_in_the_local_batch_and_accumulation_repeats_the_computation(tmp_path: Path):
    steps = table(tmp_path, "1,4,0.2,0.05\n1,8,0.4,0.05\n2,4,0.3,0.1\n2,8,0.5,0.1\n")
    assert steps.step_sync((1,), 6) == pytest.approx((0.3, 0.05))
    found = steps.iteration((2,), 32)
    assert found is not None
    # two passes of 8 on two GPUs: step + (step - sync)
    assert (found.local_batch, found.accumulation, found.samples) == (8, 1, 32)
    assert found.seconds == pytest.approx(0.5 + 0.4)
    assert found.predicted_seconds == pytest.approx(0.5 + 2 * 0.4)
    assert found.samples_per_s == pytest.approx(32 / 0.9)


def test_unmeasured_placements_are_interpolated_and_never_extrapolated(tmp_path: Path):
    steps = table(tmp_path, "1,4,1.0,0.1\n4,4,2.0,0.1\n44,4,4.0,0.2\n", "4,16,4,8.0,0.4\n1,2,4,1.25,0.1\n")
    # twelve GPUs on three nodes lie halfway between eight on two and sixteen on four
    assert steps.step_sync((4, 4, 4), 4) == pytest.approx((6.0, 0.3))
    assert steps.step_sync((3,), 4) == pytest.approx((1.625, 0.1))
    assert steps.step_sync((4,) * 5, 4) is None
    assert steps.iteration((4,) * 5, 80) is None


def test_a_target_that_is_never_reached_is_censored_not_dropped():
    curve = ((1.0, 0.5), (2.0, 0.7), (3.0, 0.6), (11.0, 0.99))
    assert (first_epoch(curve, 0.6).epochs, first_epoch(curve, 0.6).reached) == (2.0, True)
    assert (first_epoch(curve, 0.8).epochs, first_epoch(curve, 0.8).reached) == (10.0, False)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("a,1,m@t,1,8,1e-3,1,x\n", "column target_metric: 'x' is not a number"),
        ("a,1,m@t,0,8,1e-3,1,0.5\n", "column num_gpus: '0' is not a positive whole number"),
        ("a,1,m,1,8,1e-3,1,0.5\n", "column application: 'm' is not model@task"),
        ("a,1,m@t,1,8,1e-3\n", "column target_gradient_steps: is missing"),
        ("a,inf,m@t,1,8,1e-3,1,0.5\n", "column submission_time: 'inf' is not a finite number"),
        ("a,1,m@t,1,8,1e-3,1,0.5\na,2,m@t,1,8,1e-3,1,0.5\n", "line 3, column name: 'a' is already on line 2"),
    ],
)
def test_a_wrong_row_names_file_line_and_column(tmp_path: Path, row: str, place: str):
    path = tmp_path / "w.csv"
    path.write_text(HEADER + row)
    with pytest.raises(InputError) as caught:
        read_workload(path)
    line = caught.value.one_line()
    assert place in line
    assert f"{path}: line " in line


def test_missing_files_columns_and_names_are_said(tmp_path: Path):
    with pytest.raises(NotFoundError, match="cannot be read"):
        read_workload(tmp_path / "absent.csv")
    path = tmp_path / "w.csv"
    path.write_text("name\n")
    with pytest.raises(InputError, match="line 1: column submission_time is missing"):
        read_workload(path)
    with pytest.raises(NotFoundError, match="has no folder 'lut'"):
        JobModel(tmp_path)


def test_rows_are_sorted_by_submission_and_learning_rates_stay_text(tmp_path: Path):
    path = tmp_path / "w.csv"
    path.write_text(HEADER + "b,9,m@t,1,8,1e-3,1,0.5\na,-4,m@t,2.0,8,4e-4,8,0.25\n")
    jobs = read_workload(path)
    assert [job.name for job in jobs] == ["a", "b"]
    assert jobs[0].setting == ("4e-4", 8)
    assert jobs[0].requested_gpus == 2


def test_the_references_reader_rounds_digits_beyond_two_to_the_53rd():
    """0.9031667581914699 has the digits 9031667581914699 > 2^53, which become ...700: one unit too high."""
    assert reference_target("0.9031667581914699") == np.nextafter(0.9031667581914699, 1)
    assert reference_target("0.8713194090677534") == 0.8713194090677534
    assert reference_target("0.9655963302752294") == 0.9655963302752294, "even digits above 2^53 survive"
    assert reference_target("1e-3") == 1e-3
    assert reference_target("-0.25") == -0.25
    with pytest.raises(ValueError, match="finite"):
        reference_target("nan")


@pytest.fixture(scope="module")
def model(data_dir: Path) -> JobModel:
    return JobModel(data_dir / "titan")


@pytest.mark.data
class TestTitanTables:
    """The public tables of Titan's simulator."""

    def test_limits_switches_and_counts_are_those_of_the_tables(self, model: JobModel):
        assert model.models() == ("roberta-base", "roberta-large", "vit", "vit-large")
        limits = {name: model.batch_limits(name) for name in model.models()}
        assert limits == {
            "roberta-base": (2, 52), "roberta-large": (2, 20), "vit": (4, 256), "vit-large": (4, 256)
        }  # fmt: skip
        cold = {name: round(model.cold_start_s(name), 1) for name in model.models()}
        assert cold == {"roberta-base": 60.4, "roberta-large": 49.3, "vit": 34.2, "vit-large": 44.1}
        assert model.max_gpus("vit", 48) == 12
        assert model.max_gpus("vit", 576) == 32

    def test_more_gpus_are_faster_overall_and_never_twice_as_fast_for_double(self, model: JobModel):
        for name, batch in (("vit", 576), ("vit-large", 384), ("roberta-base", 128), ("roberta-large", 128)):
            rates = {n: model.samples_per_s(name, batch, n) for n in (1, 2, 4, 8, 16, 32)}
            assert all(rate is not None for rate in rates.values())
            for n in (1, 2, 4, 8, 16):
                assert rates[2 * n] > 0.85 * rates[n], (name, n)
                assert rates[2 * n] < 2.1 * rates[n], (name, n)

    def test_every_job_of_the_shared_traces_has_work_and_speed(self, model: JobModel, data_dir: Path):
        for path in sorted((data_dir / "titan" / "workloads").glob("*/workload-0.csv")):
            for job in read_workload(path, reference_target):
                work = model.work(job)
                assert 0 < work.epochs <= model.max_epochs()
                assert work.samples == work.epochs * model.samples_per_epoch(job.task)
                most = model.max_gpus(job.model, job.batch_size)
                assert all(model.samples_per_s(job.model, job.batch_size, n) for n in (1, most))

    def test_work_as_the_reference_counts_it(self, model: JobModel, data_dir: Path):
        """max_progress of the committed runs: qnli and mrpc on roberta-base run to ten epochs there."""
        path = data_dir / "titan" / "workloads" / "FM-1-roberta-base" / "workload-0.csv"
        expected = {"mrpc": 9170, "qnli": 261860, "sst2": 168380, "stsb": 12942, "rte": 4984, "wnli": 159,
                    "mnli": 883584, "qqp": 909620, "snli": 1373440}  # fmt: skip
        as_reference = {job.task: model.work(job) for job in read_workload(path, reference_target)}
        assert {task: work.samples for task, work in as_reference.items()} == expected
        exact = {job.task: model.work(job) for job in read_workload(path)}
        assert not as_reference["qnli"].reached
        assert (exact["qnli"].epochs, exact["qnli"].reached) == (9.0, True)
        assert exact["mnli"] == as_reference["mnli"]

    def test_transfer_ratios_compare_with_the_trace_or_with_the_best_single_setting(self, model: JobModel):
        job = WorkloadJob("j", 0.0, "vit", "cifar100", 1, 576, "1e-3", 12, 0.7871)
        trace = model.joint_ratio(job, "mnist", "trace")
        best = model.joint_ratio(job, "mnist", "best_single")
        assert trace is not None
        assert best is not None
        assert best.alone.epochs <= trace.alone.epochs
        assert best.ratio >= trace.ratio
        assert not trace.matched_hyperparameters
        assert model.joint_ratio(job, "nonsense") is None

    def test_shared_gpus_slow_both_and_memory_grows_with_the_batch(self, model: JobModel):
        shared = model.shared_speed("roberta-base", (2, 2)) or model.shared_speed("roberta-base", (4, 4))
        if shared is not None:
            assert all(0 < ratio <= 1.05 for ratio in shared)
        table = model.memory_table("vit")
        assert table is not None
        assert (np.diff(table.gib) > 0).all()
        assert table.at(float(table.batch[-1]) * 2) is None

    def test_unknown_models_and_tasks_are_named(self, model: JobModel):
        with pytest.raises(NotFoundError, match="gpt on V100: has no step times; known: roberta-base"):
            model.step_table("gpt")
        with pytest.raises(NotFoundError, match="is not a table's name"):
            model.step_table("../x")
        with pytest.raises(NotFoundError, match="task 'x': has no samples per epoch"):
            model.samples_per_epoch("x")
        job = WorkloadJob("j", 0.0, "vit", "mnist", 1, 48, "9e9", 1, 0.5)
        with pytest.raises(InputError, match=r"no curve of vit@mnist at lr 9e9, 1 steps"):
            model.work(job)
