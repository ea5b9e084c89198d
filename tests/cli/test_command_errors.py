"""Bad usage and bad input: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from command_line import StubPlanner, ymir_plan
from small_documents import change, job_row, snapshot_data

from ymir_opt.domain.errors import InvalidPlanError, SolverError

COMMANDS = sorted(entry.name for entry in entry_points(group="ymir_opt.commands"))


def test_the_core_commands_are_there() -> None:
    assert {"solve", "check", "diff", "schema", "bench"} <= set(COMMANDS)


def test_help() -> None:
    general = ymir_plan("--help")
    assert general.code == 0
    assert ymir_plan() == general
    for name in COMMANDS:
        assert name in general.out
    for name in ("solve", "check", "diff", "schema", "bench"):
        answer = ymir_plan(name, "-h")
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith(f"Usage: ymir-plan {name} ")


def test_version() -> None:
    from importlib.metadata import version

    assert ymir_plan("--version").out == f"ymir-plan {version('ymir-opt')}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["solv"], "No such command 'solv'"),
        (["solve"], "Missing argument 'SNAPSHOT'"),
        (["check", "x"], "Missing argument 'PLAN'"),
        (["schema"], "Missing argument 'NAME'"),
        (["schema", "plam"], "did you mean 'plan'?"),
        (["solve", "x", "--bakend", "highs"], "No such option"),
        (["solve", "x", "--seed", "one"], "'--seed'"),
        (["solve", "x", "--time-limit", "soon"], "'--time-limit'"),
        (["solve", "no-such-file.json"], "no-such-file.json: no such file"),
        (["check", "no-such-file.json", "-"], "no-such-file.json: no such file"),
        (["diff", "no-such-file.json", "-"], "no-such-file.json: no such file"),
        (["diff", "-", "-"], "standard input is named twice"),
        (["check", "-", "-"], "standard input is named twice"),
        (["solve", "-", "--previous", "-"], "standard input is named twice"),
        (["solve", ""], "no such file"),
        (["solve", "a\nb"], "no such file"),
        (["solve", "\0"], "cannot be read"),
        (["solve", "."], ".: is a directory"),
        (["bench", "--sizes", "100"], "'100' is not JOBSxGPUS"),
        (["bench", "--sizes", "0x1"], "out of range"),
        (["bench", "--sizes", "1x1,,"], "'' is not JOBSxGPUS"),
        (["bench", "--sizes", "1x1000000"], "out of range"),
        (["bench", "--sizes", "²x1"], "is not JOBSxGPUS"),
    ],
)
def test_bad_usage(arguments: list[str], said: str, planner: StubPlanner) -> None:
    answer = ymir_plan(*arguments)
    assert answer.code == 2
    assert said in answer.one_line()
    assert planner.asked == []


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--time-limit", "0", "a number above 0"),
        ("--time-limit", "nan", "nan is not a number above 0"),
        ("--time-limit", "inf", "inf is not a number above 0"),
        ("--time-limit", "-1", "a number above 0"),
        ("--gap", "-0.1", "a number of 0 or more"),
        ("--gap", "nan", "a number of 0 or more"),
        ("--models", "no-such-folder", "no such folder"),
        ("--previous", "no-such-plan", "no such file"),
        ("-o", "no/such/folder/plan.json", "does not exist"),
        ("-o", ".", "is a directory"),
    ],
)
def test_bad_options(
    option: str, value: str, said: str, snapshot_file: Path, planner: StubPlanner, tmp_path: Path
) -> None:
    before = sorted(os.listdir(tmp_path))
    answer = ymir_plan("solve", snapshot_file, option, value)
    assert answer.code == 2
    assert said in answer.one_line()
    assert planner.asked == []
    assert sorted(os.listdir(tmp_path)) == before


BAD_SNAPSHOTS = {
    "cut off": (json.dumps(snapshot_data())[:-30], "is not valid JSON"),
    "empty": ("", "is not valid JSON"),
    "wrong type": (json.dumps(change(snapshot_data(), "jobs.1.max_gpus", "4")), "jobs[1].max_gpus: '4'"),
    "below": (json.dumps(change(snapshot_data(), "jobs.1.max_gpus", 0)), "jobs[1].max_gpus: 0 is less than"),
    "script": (json.dumps(snapshot_data([job_row("</script>")])), "jobs[0].id: '</script>': contains < or >"),
    "path": (json.dumps(snapshot_data([job_row("../../etc/x")])), "'..' path component"),
    "line break": (json.dumps(snapshot_data([job_row("a\nb")])), "line break"),
    "escape": (json.dumps(snapshot_data([job_row("\x1b[2J")])), "control character"),
    "unknown field": (json.dumps(snapshot_data() | {"gpus": 1}), "unknown field 'gpus'"),
    "infinite": (json.dumps(change(snapshot_data(), "taken_at_s", float("inf"))), "finite number"),
    "plan": ('{"schema": "ymir.plan/1"}', "schema: 'ymir.plan/1': input should be 'ymir.snapshot/1'"),
}


@pytest.mark.parametrize("kind", BAD_SNAPSHOTS)
@pytest.mark.parametrize("through", ["file", "stdin"])
def test_a_bad_snapshot(kind: str, through: str, planner: StubPlanner, tmp_path: Path) -> None:
    text, said = BAD_SNAPSHOTS[kind]
    source, out, page = (tmp_path / name for name in ("snapshot.json", "plan.json", "page.html"))
    source.write_text(text)
    out.write_text("the old plan")
    named = source if through == "file" else "-"
    for command in (
        ("solve", named, "-o", out),
        ("solve", named, "-o", "-"),
        ("solve", named, "--json", "-o", out),
        ("check", named, out),
    ):
        answer = ymir_plan(*command, stdin=text)
        assert answer.code == 2
        line = answer.one_line()
        assert said in line
        # only a fault of the whole document needs the document's name
        whole = "valid JSON" in said or "unknown field" in said
        assert line.startswith("standard input: " if through == "stdin" else str(source)) is whole
    assert out.read_text() == "the old plan"
    assert not page.exists()
    assert planner.asked == []
    assert sorted(os.listdir(tmp_path)) == ["plan.json", "snapshot.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"schema": "ymir.snapshot/1", "taken_at_s": 1}'])
def test_a_bad_plan(text: str, snapshot_file: Path, plan_file: Path) -> None:
    for command in (("check", snapshot_file, "-"), ("diff", "-", plan_file), ("diff", plan_file, "-")):
        answer = ymir_plan(*command, stdin=text)
        assert answer.code == 2
        answer.one_line()


def test_a_plan_for_another_snapshot(snapshot_file: Path, plan_file: Path) -> None:
    data = json.loads(snapshot_file.read_text())
    answer = ymir_plan("check", "-", plan_file, stdin=json.dumps(change(data, "taken_at_s", 1000.5)))
    assert answer.code == 2
    assert answer.one_line().startswith("snapshot_sha256: made for snapshot ")


def test_a_failure_of_the_solver(snapshot_file: Path, planner: StubPlanner, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    for error in (
        SolverError("highs", "stopped\nwithout a solution"),
        InvalidPlanError("", "nothing feasible"),
    ):
        planner.fails = error
        answer = ymir_plan("solve", snapshot_file, "-o", out)
        assert answer.code == 1
        answer.one_line()
        assert not out.exists()


def test_an_unexpected_error_is_one_line_too(snapshot_file: Path, planner: StubPlanner) -> None:
    planner.fails = ZeroDivisionError("division\nby zero")
    answer = ymir_plan("solve", snapshot_file)
    assert answer.code == 1
    assert "internal error: ZeroDivisionError: division by zero" in answer.one_line()
    planner.fails = MemoryError()
    assert "out of memory" in ymir_plan("solve", snapshot_file).one_line()
    planner.fails = KeyboardInterrupt()  # type: ignore[assignment]
    assert ymir_plan("solve", snapshot_file).code == 130


def test_the_traceback_on_request(
    snapshot_file: Path, planner: StubPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YMIR_DEBUG", "1")
    planner.fails = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        ymir_plan("solve", snapshot_file)


def test_a_reader_that_goes_away() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "ymir_opt", "schema", "snapshot"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.close()
    _, err = child.communicate()
    assert (child.returncode, err) == (141, b"")


def test_a_process_of_its_own(snapshot_file: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "ymir_opt", "check", str(snapshot_file), "no-such-plan"],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
        check=False,
    )
    assert (child.returncode, child.stdout) == (2, "")
    assert child.stderr.startswith("ymir-plan: no-such-plan: no such file; ")
    assert child.stderr.count("\n") == 1


def test_one_file_for_two_things(snapshot_file: Path, planner: StubPlanner, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(snapshot_file)
    before = snapshot_file.read_text()
    page = tmp_path / "page.html"
    for options in (
        ("-o", snapshot_file),
        ("-o", link),
        ("--report", snapshot_file),
        ("-o", page, "--report", f"{tmp_path}/./page.html"),
        ("-o", "-", "--report", "-"),
    ):
        answer = ymir_plan("solve", snapshot_file, *options)
        assert (answer.code, "is named twice" in answer.one_line()) == (2, True)
    assert planner.asked == []
    assert snapshot_file.read_text() == before
    assert not page.exists()
    assert ymir_plan("solve", snapshot_file, "-o", os.devnull, "--report", os.devnull).code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [("schema", "plan"), ("--version",)])
def test_standard_output_on_a_full_disk(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "ymir_opt", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert child.returncode == 2
    assert child.stderr.startswith("ymir-plan: standard output: cannot be written (No space left")
    assert child.stderr.count("\n") == 1


def test_a_process_without_standard_streams(snapshot_file: Path, tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m ymir_opt solve "{snapshot_file}" -o "{tmp_path}/plan.json"'
    assert subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], check=False).returncode == 0
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == "ymir.plan/1"
