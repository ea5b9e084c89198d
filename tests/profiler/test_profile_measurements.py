"""Measurements on a tiny model: what is stored, resumed, censored, failed; exports and commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from profiler_kit import tiny_recipe
from ymir_profiler.analysis.transfer import transfers
from ymir_profiler.measure import speed
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.plan import measurements
from ymir_profiler.measure.runs import SoloRun, WarmRun
from ymir_profiler.measure.speed import Throughput
from ymir_profiler.measure.steps import PEFT_TYPES, make_stepper
from ymir_profiler.measure.timing import interval, time_steps
from ymir_profiler.ordering import ActiveOrder, pair_of
from ymir_profiler.recipe import Recipe
from ymir_profiler.runner import as_planned, parse_budget, pending, run
from ymir_profiler.store.exports import flat_rows, import_profiles, profiles_of, to_csv
from ymir_profiler.store.store import Store

from ymir_opt.cli.main import run as command_line
from ymir_opt.domain.documents import parse_snapshot, rounded
from ymir_opt.domain.errors import InputError

torch.set_num_threads(1)


def _store(folder: Path) -> Store:
    return Store(f"sqlite:///{folder / 'p.db'}")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recipe]:
    """Measure everything that the tiny recipe asks for, once."""
    folder = tmp_path_factory.mktemp("measured")
    recipe = tiny_recipe(folder)
    with _store(folder) as store:
        bench = Bench(recipe, store.artifacts)
        for kind in ("throughput", "convergence", "colocation"):
            assert run(measurements(kind, recipe), bench, store, 600).left == 0
        todo = measurements("transfer", recipe)
        report = run(todo, bench, store, 600, order=ActiveOrder(bench, store))
        # the solo runs were there already
        assert (report.skipped, report.left) == (6, 0)
    return folder, recipe


def test_measuring_again_adds_nothing(measured: tuple[Path, Recipe]) -> None:
    folder, recipe = measured
    with _store(folder) as store:
        before = {record.key: record.finished_at_s for record in store.records()}
        bench = Bench(recipe, store.artifacts)
        for kind in ("throughput", "convergence", "transfer", "colocation"):
            assert pending(measurements(kind, recipe), bench, store) == []
            assert run(measurements(kind, recipe), bench, store, 600).measured == 0
        assert {record.key: record.finished_at_s for record in store.records()} == before


def test_runs_are_reproducible_and_paired(measured: tuple[Path, Recipe], tmp_path: Path) -> None:
    folder, recipe = measured
    bench = Bench(recipe, tmp_path)
    again = WarmRun("things-a", "things-b", 1).measure(bench)
    with _store(folder) as store:
        (kept,) = (
            r for r in store.records("run")
            if r.subject["mode"] == "warm_start" and r.subject["seed"] == 1
            and r.subject["source"]["task"] == "things-a"
        )  # fmt: skip
    # the source was trained anew here, since its adapter was not kept in this folder
    assert rounded(again.value) == kept.value
    curve = kept.value["curves"]["things-b"]
    assert [point["samples"] for point in curve["points"]] == [8, 16, 32]
    assert curve["points"][-1]["metric"] == curve["correct"].count("1") / len(curve["correct"])


def test_every_pair_is_analysed_and_exported(measured: tuple[Path, Recipe], tmp_path: Path) -> None:
    folder, _ = measured
    with _store(folder) as store:
        records = store.records()
    found = {(t.mode, t.source, t.target): t for t in transfers(records)}
    assert set(found) == {
        ("warm_start", "things-a", "things-b"),
        ("warm_start", "places", "things-b"),
        ("joint", "things-a", "things-b"),
        ("joint", "things-b", "things-a"),
    }
    assert all(t.seeds == 2 for t in found.values())
    profiles = profiles_of(records)
    assert {row.batch_size for row in profiles.throughput} == {1, 4}
    assert profiles.backbone_gib[0].foundation_model == "bert-h32-L2-random"
    (together,) = profiles.colocation
    assert len(together.members) == len(together.speed_ratio) == 2
    assert 0.4 < sum(together.speed_ratio) < 2.5
    known = [t for t in found.values() if t.work_ratio is not None]
    assert len(profiles.transfer) == len(known)
    table = to_csv(flat_rows(records))
    assert len(table.splitlines()) == len(records) + 1
    output = tmp_path / "all.parquet"
    assert (
        command_line(["profile", "export", "--store", f"sqlite:///{folder / 'p.db'}", "-o", str(output)]) == 0
    )
    from pyarrow import parquet

    assert parquet.read_table(output).num_rows == len(records)


def test_exported_profiles_are_a_snapshots_and_come_back(
    measured: tuple[Path, Recipe], tmp_path: Path
) -> None:
    folder, _ = measured
    output = tmp_path / "profiles.json"
    url = f"sqlite:///{folder / 'p.db'}"
    assert command_line(["profile", "export", "--store", url, "-o", str(output)]) == 0
    document = json.loads(output.read_text())
    snapshot = {"schema": "ymir.snapshot/1", "taken_at_s": 0, "profiles": document}
    profiles = parse_snapshot(json.dumps(snapshot)).profiles
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as store:
        added = import_profiles(store, output.read_bytes(), "profiles.json", "a colleague")
        assert added == sum(len(getattr(profiles, name)) for name in type(profiles).model_fields)
        assert import_profiles(store, output.read_bytes(), "profiles.json", "a colleague") == 0
        back = profiles_of(store.records())
    assert set(back.throughput) == set(profiles.throughput)
    assert set(back.transfer) == set(profiles.transfer)
    assert set(back.colocation) == set(profiles.colocation)


def test_pairs_that_were_started_are_finished_first(measured: tuple[Path, Recipe], tmp_path: Path) -> None:
    _, recipe = measured
    with _store(tmp_path) as store:
        bench = Bench(recipe, store.artifacts)
        todo = [m for m in measurements("transfer", recipe) if isinstance(m, WarmRun)]
        items = pending(todo, bench, store)
        # one seed of the last pair is done
        left = [i for i in items if not (pair_of(i) == ("places", "things-b") and i.measurement.seed == 0)]  # type: ignore[attr-defined]
        assert pair_of(ActiveOrder(bench, store)(left)) == ("places", "things-b")


def test_a_budget_stops_before_what_would_not_fit(measured: tuple[Path, Recipe], tmp_path: Path) -> None:
    _, recipe = measured
    with _store(tmp_path) as store:
        bench = Bench(recipe, store.artifacts)
        todo = measurements("convergence", recipe)
        report = run(todo, bench, store, 1e-3)
        assert (report.measured, report.left) == (1, len(todo) - 1)
        assert run(todo, bench, store, 600, order=as_planned).skipped == 1


def test_a_loss_that_is_not_finite_is_recorded_as_such(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, adapter={"learning_rate": 1e17})
    with _store(tmp_path) as store:
        bench = Bench(recipe, store.artifacts)
        report = run([SoloRun("places", 0)], bench, store, 60)
        assert report.failed == 1
        (record,) = store.records("run")
        assert record.status == "non-finite"
        assert transfers([record]) == []
        assert run([SoloRun("places", 0)], bench, store, 60).measured == 0


def test_out_of_memory_halves_the_batch_and_says_so(
    measured: tuple[Path, Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, recipe = measured
    tried = []

    def stepper(bench: Bench, peft_type: str, rows: int, length: int) -> Any:
        tried.append(rows)
        if rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return make_stepper(bench, peft_type, rows, length)

    monkeypatch.setattr(speed, "make_stepper", stepper)
    outcome = Throughput("LORA", 8, 8, 1).measure(Bench(recipe))
    assert tried == [8, 4, 2]
    assert (outcome.status, outcome.value["measured_batch_size"]) == ("out-of-memory", 2)

    def broken(*_: object) -> Any:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(speed, "make_stepper", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        Throughput("LORA", 8, 8, 1).measure(Bench(recipe))


@pytest.mark.parametrize("peft_type", PEFT_TYPES)
def test_every_peft_type_takes_steps(measured: tuple[Path, Recipe], peft_type: str) -> None:
    _, recipe = measured
    step = make_stepper(Bench(recipe), peft_type, 2, 8)
    step()
    step()


def test_the_interval_covers_and_repetition_stops_when_it_is_narrow() -> None:
    rng = np.random.default_rng(0)
    for count in (6, 9, 25):
        covered = 0
        for _ in range(400):
            _, low, high = interval(rng.exponential(size=count))
            covered += low <= np.log(2) <= high
        assert 0.93 <= covered / 400 <= 1.0
    steady = {"device": "cpu", "clock": "wall", "warmup": 1, "most": 30}
    calls: list[int] = []
    times = time_steps(lambda: calls.append(1), relative_width=1e9, **steady)  # type: ignore[arg-type]
    assert (len(times.wall_s), len(calls)) == (6, 7)
    assert len(time_steps(lambda: None, relative_width=1e-12, **steady).wall_s) == 30  # type: ignore[arg-type]


RECIPE = """
name = "tiny"
[model]
name_or_path = "random:bert"
width = 32
[adapter]
r = 4
learning_rate = 0.01
[training]
batch_size = 8
max_length = 12
train_rows = 60
test_rows = 30
eval_at = [8, 480]
seeds = [0, 1, 2, 3]
[[tasks]]
name = "things"
file = "things.csv"
[[tasks]]
name = "places"
file = "places.csv"
"""


def test_a_killed_run_goes_on_and_loses_at_most_the_measurement_under_way(tmp_path: Path) -> None:
    tiny_recipe(tmp_path)
    (tmp_path / "r.toml").write_text(RECIPE)
    url = f"sqlite:///{tmp_path / 'p.db'}"
    command = [
        "profile",
        "convergence",
        str(tmp_path / "r.toml"),
        "--store",
        url,
        "--budget",
        "10m",
        "--json",
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "ymir_opt", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + 240
    with Store(url) as store:
        while len(store.keys()) < 2:
            assert time.monotonic() < end
            assert child.poll() is None
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        kept = {record.key: record.finished_at_s for record in store.records()}
    assert 2 <= len(kept) < 8
    assert command_line([*command[:2], str(tmp_path / "r.toml"), "--store", url, "--dry-run", "--json"]) == 0
    assert command_line(command) == 0
    with Store(url) as store:
        after = {record.key: record.finished_at_s for record in store.records()}
        assert len(after) == 8
        assert kept.items() <= after.items()
        assert all(record.status == "ok" for record in store.records())


def test_commands_answer_in_json_and_refuse_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_recipe(tmp_path)
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE)
    url = f"sqlite:///{tmp_path / 'p.db'}"
    assert command_line(["profile", "transfer", str(recipe), "--store", url, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["left"], answer["in_store"]) == (16, 0)
    assert answer["cpu_s"] > 0
    bad: list[tuple[list[str], str]] = [
        (["throughput", "none.toml"], "no such file"),
        (["throughput", str(recipe), "--budget", "soon"], "no duration"),
        (["throughput", str(recipe), "--store", "mysql://x"], "SQLite"),
        (["export", "-o", str(tmp_path / "no" / "x.json")], "does not exist"),
        (["import", str(recipe)], "not valid JSON"),
    ]
    for arguments, message in bad:
        stores = [] if "--store" in arguments else ["--store", url]
        assert command_line(["profile", *arguments, *stores]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    recipe.write_text(RECIPE.replace("random:bert", "./nowhere"))
    assert command_line(["profile", "throughput", str(recipe), "--store", url]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    with pytest.raises(InputError, match="duration"):
        parse_budget("0s")
    assert [parse_budget(t) for t in ("90", "60s", "10m", "1.5h")] == [90, 60, 600, 5400]


def test_the_report_page_shows_every_table(measured: tuple[Path, Recipe], tmp_path: Path) -> None:
    folder, _ = measured
    page = tmp_path / "page.html"
    assert (
        command_line(["profile", "report", "--store", f"sqlite:///{folder / 'p.db'}", "-o", str(page)]) == 0
    )
    text = page.read_text()
    for heading in (
        "Throughput",
        "Co-location",
        "Transfer by a warm start",
        "training jointly",
        "Skill of scores",
    ):
        assert heading in text
    assert "http" not in text.replace("http-equiv", "")
    assert "nan" not in text.lower().replace("finance", "")


@pytest.mark.data
@pytest.mark.parametrize("origin", ["titan", "gavel"])
def test_titans_and_gavels_tables_come_in_through_their_importers(
    origin: str, tmp_path: Path, data_dir: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'p.db'}"
    snapshot = tmp_path / "snapshot.json"
    folder = data_dir / origin
    if origin == "titan":
        workload = min((folder / "workloads").glob("*/workload-*.csv"))
        arguments = [str(workload), "--profiles", str(folder), "--at", "900", "--cluster", "2x4:V100"]
    else:
        arguments = [str(folder / "traces_physical" / "small_test.trace")]
    assert command_line(["import", origin, *arguments, "-o", str(snapshot)]) == 0
    assert command_line(["profile", "import", str(snapshot), "--store", url, "--origin", origin]) == 0
    with Store(url) as store:
        records = store.records()
        assert all(record.subject["origin"] == origin for record in records)
        found = profiles_of(records)
    wanted = parse_snapshot(snapshot.read_bytes()).profiles
    assert len(wanted.throughput) > 0 < len(wanted.colocation)
    for table in type(wanted).model_fields:
        assert set(getattr(found, table)) == set(getattr(wanted, table))


def test_a_record_that_failed_is_not_exported(measured: tuple[Path, Recipe]) -> None:
    folder, _ = measured
    with _store(folder) as store:
        records = store.records("colocation")
    failed = [replace(record, value={"members": 2}, status="out-of-memory") for record in records]
    assert profiles_of(failed).colocation == ()
