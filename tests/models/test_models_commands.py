"""`fit`, `evaluate` and `solve --models`: one clear line for bad input, predicted figures said so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_documents import job_row, snapshot_data
from ymir_models import FITTED
from ymir_models.evaluation import Row, Target, as_json, markdown, replace_block, summary
from ymir_models.predictor import load
from ymir_models.tasks import read_tasks

from ymir_opt.cli.main import run
from ymir_opt.domain.errors import InputError

Answer = Callable[[list[str]], tuple[int, str, str]]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Answer:
    def answer(arguments: list[str]) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return answer


def profiled(rate: float = 100.0) -> list[dict[str, object]]:
    """Return measured rows of a model of which one step takes 0.05 s and 0.01 s a sample on each GPU."""
    return [
        {
            "foundation_model": "bert",
            "peft_type": "LORA",
            "gpu_type": "A100",
            "gpus": n,
            "batch_size": n * b,
            "samples_per_s": n * b / (0.05 + 0.01 * b + (0.005 * n if n > 1 else 0)),
            "memory_gib": 2 + 0.1 * b,
        }
        for n in (1, 2, 4)
        for b in (4, 8, 16, 32)
    ]


def test_own_profiles_are_fitted_and_answer_in_a_plan(ask: Answer, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.json"
    profiles.write_text(json.dumps({"profiles": {"throughput": profiled()}}))
    models = tmp_path / "models"
    code, out, _ = ask(["fit", "throughput", "--profiles", str(profiles), "-o", str(models), "--json"])
    assert code == 0
    assert json.loads(out)["kind"] == "throughput"
    first = (models / "throughput.json").read_bytes()
    assert ask(["fit", "throughput", "--profiles", str(profiles), "-o", str(models)])[0] == 0
    assert (models / "throughput.json").read_bytes() == first
    assert "own measurements" in (models / "throughput.md").read_text()

    snapshot = tmp_path / "snapshot.json"
    data = snapshot_data([job_row("a", max_gpus=2), job_row("b", foundation_model="unknown")], profiles={})
    snapshot.write_text(json.dumps(data))
    code, out, _ = ask(["solve", str(snapshot), "--models", str(models), "--json"])
    plan = json.loads(out)
    assert code == 0
    assert plan["planner"]["estimates"]["name"] == "fitted"
    assert len(plan["planner"]["estimates"]["sha256"]) == 64
    (group,) = [g for g in plan["groups"] if g["jobs"] == ["a"]]
    prediction = group["predicted"]["a"]
    assert prediction["source"] == "predicted"
    b, n = 32 / group["gpus"], group["gpus"]
    truth = 32 / (0.05 + 0.01 * b + (0.005 * n if n > 1 else 0))
    assert prediction["samples_per_s"] == pytest.approx(truth, rel=0.05)
    # the model that nobody measured is profiled, never guessed
    (unknown,) = [a for a in plan["actions"] if a["job"] == "b"]
    assert unknown["action"] == "profile"
    # and with measured figures alone both are
    code, out, _ = ask(["solve", str(snapshot), "--models", str(models), "--measured-only", "--json"])
    assert {a["action"] for a in json.loads(out)["actions"]} <= {"profile", "wait"}


def test_kinds_with_too_little_data_are_skipped_and_named(ask: Answer, tmp_path: Path) -> None:
    rows = profiled()
    pair = {
        "mode": "colocate",
        "gpu_type": "A100",
        "gpus": 1,
        "members": [{k: rows[0][k] for k in ("foundation_model", "peft_type", "config") if k in rows[0]}] * 2,
        "speed_ratio": [0.6, 0.6],
    }
    for member in pair["members"]:
        member["batch_size"] = 4
    profiles = tmp_path / "profiles.json"
    profiles.write_text(json.dumps({"throughput": rows, "colocation": [pair]}))
    folder = str(tmp_path / "models")
    code, out, _ = ask(["fit", "--profiles", str(profiles), "-o", folder, "--json"])
    assert code == 0
    found = {row["kind"]: row for row in map(json.loads, out.splitlines())}
    assert "sha256" in found["throughput"]
    assert "measured pairs" in found["colocation"]["skipped"]
    assert [path.name for path in Path(folder).glob("*.json")] == ["throughput.json"]
    # by name, and where nothing is left, it is an error
    profiles.write_text(json.dumps({"colocation": [pair]}))
    for arguments in (["fit"], ["fit", "colocation"]):
        code, _, message = ask([*arguments, "--profiles", str(profiles), "-o", folder])
        assert code == 2
        assert message.count("\n") == 1
        assert "measured pairs" in message


def test_a_predicted_warm_start_reaches_a_plan_with_its_interval(ask: Answer, tmp_path: Path) -> None:
    rows = [
        {
            "foundation_model": "t5-base",
            "peft_type": "LORA",
            "gpu_type": "A100",
            "gpus": 1,
            "batch_size": 32,
            "samples_per_s": 100.0,
        }
    ]
    jobs = [
        job_row(task, foundation_model="t5-base", task=task, max_gpus=1, tenant="x", remaining_samples=6e4)
        for task in ("boolq", "rte")
    ]
    adapter = {"id": "squad", "foundation_model": "t5-base", "task": "squad_v2", "tenant": "x"}
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps(snapshot_data(jobs, profiles={"throughput": rows}, adapters=[adapter])))
    plan = tmp_path / "plan.json"
    assert ask(["solve", str(snapshot), "--models", str(FITTED), "-o", str(plan)])[0] == 0
    body = json.loads(plan.read_text())
    (group,) = [g for g in body["groups"] if g["jobs"] == ["boolq"]]
    assert group["starts_from"]["boolq"]["adapter"] == "squad"
    prediction = group["predicted"]["boolq"]
    known = load(FITTED).warm_start("t5-base", "squad_v2", "boolq")
    assert known is not None
    assert prediction["source"] == "predicted"
    assert prediction["work_ratio"] == pytest.approx(known.ratio)
    # the limits hold what a gain in accuracy does not say about work: far apart
    assert prediction["high"] / prediction["low"] > 2
    assert ask(["check", str(snapshot), str(plan), "--models", str(FITTED)])[0] == 0
    # without the models nothing is known of the transfer
    assert ask(["solve", str(snapshot), "-o", str(plan)])[0] == 0
    assert all(not g["starts_from"] for g in json.loads(plan.read_text())["groups"])


def test_a_folder_that_was_tampered_with_is_one_line(ask: Answer, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps(snapshot_data()))
    models = tmp_path / "models"
    models.mkdir()
    text = (FITTED / "throughput.json").read_text()
    for broken, message in (
        (text.replace('"most_gpus":64', '"most_gpus":640', 1), "was altered after it was fitted"),
        (text[: len(text) // 2], "is cut off or not JSON"),
        ("[]", "is not a fitted model"),
    ):
        (models / "throughput.json").write_text(broken)
        code, out, err = ask(["solve", str(snapshot), "--models", str(models)])
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "throughputs", "--data", "."], "did you mean 'throughput'?"),
        (["evaluate", "transfer", "--data", "/nowhere/at/all"], "no such folder"),
        (["evaluate", "colocation", "--data", "{tmp}"], "has no simulation_throughputs.json"),
        (["evaluate", "convergence", "--data", "{tmp}"], "has no curves"),
        (["evaluate", "transfer", "--data", "{tmp}"], "has no taskweb_gain_matrix.csv"),
        (["evaluate", "throughput"], "Missing option '--data'"),
        (["fit"], "has no data"),
        (["fit", "--data", "{tmp}"], "holds nothing to fit"),
        (["fit", "transfr", "--data", "{tmp}"], "did you mean 'transfer'?"),
        (["fit", "convergence", "--profiles", "{tmp}/p.json"], "is fitted on learning curves"),
        (["fit", "throughput", "--profiles", "{tmp}/p.json"], "no model has 4 measured throughput rows"),
        (["fit", "colocation", "--profiles", "{tmp}/p.json"], "no set has 10 measured pairs"),
        (["fit", "transfer", "--profiles", "{tmp}/p.json"], "has no transfers to fit from"),
        (["fit", "throughput", "--profiles", "{tmp}/bad.json"], "unknown field 'througput'"),
        (["fit", "throughput", "--profiles", "{tmp}/cut.json"], "is cut off or not JSON"),
        (["fit", "throughput", "--profiles", "{tmp}/absent.json"], "no such file"),
    ],
)
def test_bad_usage_is_one_line(ask: Answer, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "p.json").write_text('{"throughput": []}')
    (tmp_path / "bad.json").write_text('{"profiles": {"througput": []}}')
    (tmp_path / "cut.json").write_text('{"profiles": {"thr')
    filled = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    if filled[0] == "fit":
        filled += ["-o", str(tmp_path / "out")]
    code, out, err = ask(filled)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_broken_table_is_named_with_its_place(ask: Answer, tmp_path: Path) -> None:
    table = tmp_path / "simulation_throughputs.json"
    for text, message in (
        ("{", "is cut off or not JSON"),
        ('{"v100": {"(1": {"null": 1}}}', "is not a job type"),
        ("""{"v100": {"('A', 1)": {"null": "x"}}}""", "is not a number"),
    ):
        table.write_text(text)
        code, _, err = ask(["evaluate", "colocation", "--data", str(tmp_path)])
        assert code == 2
        assert message in err


def test_task_features_are_checked_before_they_are_used(tmp_path: Path) -> None:
    for name in ("transfer.json",):
        (tmp_path / name).write_bytes((FITTED / name).read_bytes())
    sources = load(FITTED).gain.history.sources  # type: ignore[union-attr]
    scores = {"language_model": dict.fromkeys(sources, -5.0), "retrieval": dict.fromkeys(sources, 0.3)}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps({"schema": "ymir.tasks/1", "tasks": {"mine": scores}}))
    predictor = load(tmp_path)
    found = predictor.warm_start("t5-base", "cosmosqa", "mine")
    assert found is not None
    assert found.predicted
    assert found.low < found.ratio < found.high
    assert predictor.version != load(FITTED).version
    assert predictor.warm_start("t5-base", "cosmosqa", "yours") is None
    del scores["retrieval"]["snli"]
    path.write_text(json.dumps({"schema": "ymir.tasks/1", "tasks": {"mine": scores}}))
    with pytest.raises(InputError, match="no score for 1 sources, the first is 'snli'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is cut off"),
        ("{}", "is not a document of schema"),
        ('{"schema": "ymir.tasks/1", "tasks": {"a": 3}}', "is not a group of scores"),
        ('{"schema": "ymir.tasks/1", "tasks": {"a": {"retrival": {}}}}', "did you mean 'retrieval'"),
        ('{"schema": "ymir.tasks/1", "tasks": {"a": {"retrieval": {}}}}', "language_model: is missing"),
        (
            '{"schema": "ymir.tasks/1", "tasks": {"a": {"language_model": {"b": "x"}, "retrieval": {}}}}',
            "is not a number",
        ),
    ],
)
def test_broken_task_features_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_tasks(path)


def test_predicting_loads_neither_scikit_learn_nor_scipy_nor_torch() -> None:
    program = (
        "import sys\n"
        "from ymir_models import FITTED\n"
        "from ymir_models.predictor import load\n"
        "from ymir_opt.estimates.protocols import MemberKey, ThroughputKey\n"
        "import numpy as np\n"
        "p = load(FITTED)\n"
        "p.throughput(ThroughputKey('vit', 'FULL', ''), 'V100', np.array([2]), np.array([256]))\n"
        "m = [MemberKey(ThroughputKey('LM', None, ''), b, None) for b in (10, 20)]\n"
        "assert p.colocation('gpu_share', 'K80', 1, m)\n"
        "assert p.warm_start('roberta-base', 'imdb', 'copa')\n"
        "assert p.remaining([(1, .1), (2, .2), (3, .3)], .5, 10)\n"
        "bad = [n for n in ('sklearn', 'scipy', 'torch', 'pandas', 'typer') if n in sys.modules]\n"
        "sys.exit(str(bad) if bad else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


ROW = Row(
    "throughput",
    "s",
    "all",
    3,
    {"mape": 0.1, "p90": float("nan")},
    {"line": {"mape": 0.3}},
    (Target("mape", 0.05),),
    "Note.",
)


def test_rows_say_what_was_missed_and_what_is_undefined() -> None:
    body = as_json(ROW)
    assert body["metrics"] == {"mape": 0.1, "p90": None}
    assert body["targets"] == [{"metric": "mape", "limit": 0.05, "at_least": False, "reached": False}]
    text = markdown([ROW])
    assert "| all | ours | 3 | 0.1 | - | mape <= 0.05: **missed** |" in text
    assert "| all | line | 3 | 0.3 | - |  |" in text
    assert "Note." in text
    assert Target("p90", 1.0).reached(ROW.metrics) is None


def test_a_summary_keeps_what_stands_for_everything() -> None:
    part, other = (Row("throughput", split, "vit", 1, {}) for split in ("s", "t"))
    assert summary([part, ROW, other]) == [ROW, other]


def test_tables_go_between_their_marks() -> None:
    text = "a\n<!-- begin evaluate transfer -->\nold\n<!-- end evaluate transfer -->\nb\n"
    once = replace_block(text, "transfer", "new", "f.md")
    assert once == "a\n<!-- begin evaluate transfer -->\n\nnew\n<!-- end evaluate transfer -->\nb\n"
    assert replace_block(once, "transfer", "new", "f.md") == once
    with pytest.raises(InputError, match="has no marks for throughput"):
        replace_block(text, "throughput", "new", "f.md")


@pytest.mark.data
def test_evaluate_prints_one_object_for_every_split_and_model(ask: Answer, data_dir: Path) -> None:
    code, out, err = ask(["evaluate", "throughput", "--data", str(data_dir / "titan"), "--quick", "--json"])
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 9
    assert all(
        {"evaluate", "split", "model", "cases", "metrics", "baselines", "targets"} <= set(row) for row in rows
    )


@pytest.mark.data
@pytest.mark.slow
def test_the_shipped_parameters_are_what_the_command_writes(
    ask: Answer, data_dir: Path, tmp_path: Path
) -> None:
    assert ask(["fit", "--data", str(data_dir), "-o", str(tmp_path)])[0] == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in FITTED.iterdir() if path.suffix in (".json", ".md"))
    fresh, shipped = ([(folder / name).read_bytes() for name in names] for folder in (tmp_path, FITTED))
    if fresh != shipped:
        # another build of numpy or scipy may differ in the last digits, but never from itself
        again = tmp_path / "again"
        assert ask(["fit", "--data", str(data_dir), "-o", str(again)])[0] == 0
        assert [(again / name).read_bytes() for name in names] == fresh
    for name in names:
        if name.endswith(".json"):
            one, two = (json.loads((folder / name).read_bytes()) for folder in (tmp_path, FITTED))
            assert one["source"] == two["source"]
