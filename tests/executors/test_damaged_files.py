"""What users or a bad disk put in the way: it costs one job or one command, and never the daemon."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executor_kit import daemon, open_pool, submitted, until, write_request

from ymir_opt.cli.live import Follower
from ymir_opt.cli.main import run
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.request import key_of
from ymir_opt.executors.folder import read_json, read_lines
from ymir_opt.service.daemon import Daemon, Settings
from ymir_opt.service.listing import list_jobs


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which a command line is refused."""
    assert run([str(word) for word in words]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    return found.err


def test_a_pipe_is_refused_and_never_waited_for(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submitted(root, "a")
    os.mkfifo(root / "pipe.yaml")
    os.mkfifo(root / "pipe.csv")
    os.mkfifo(folder.requests / "pipe.yaml")
    at = ("--jobs-dir", folder.root)
    assert "not a plain file" in refused(capsys, "jobs", "submit", root / "pipe.yaml", *at)
    data = write_request(root / "r", "b", data={"path": str(root / "pipe.csv")})
    assert "pipe.csv: is not a plain file" in refused(capsys, "jobs", "submit", data, *at)
    assert [line.id for line in list_jobs(folder)] == ["a"]
    assert read_json(root / "pipe.csv") is None
    assert read_lines(root / "pipe.csv", 0) == ([], 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"name_or_path": "a/../b"}}, "model.name_or_path: makes the id 'a/../b': contains a '..'"),
        ({"model": {"name_or_path": "/"}}, "model.name_or_path: makes the id ''"),
        ({"model": {"name_or_path": "q" * 900}}, "at most 256 characters"),
        ({"data": {"path": "deep.jsonl"}}, "deep.jsonl: cannot be read"),
        ({"data": {"path": "q" * 900 + ".csv"}}, "cannot be read"),
        ({"data": {"path": "folder.csv"}}, "has no file of the split 'train'"),
    ],
)
def test_what_a_request_may_not_name(
    root: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    (root / "r" / "folder.csv").mkdir(parents=True)
    (root / "r" / "deep.jsonl").write_text("[" * 200_000)
    request = write_request(root / "r", "a", **changes)
    assert said in refused(capsys, "jobs", "submit", request, "--jobs-dir", root / "jobs-dir")
    assert not (root / "jobs-dir").exists()


def test_profiles_that_are_too_deep(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "deep.json").write_text("[" * 200_000)
    words = ("daemon", "--profiles", root / "deep.json", "--jobs-dir", root / "jobs-dir")
    assert "deep.json: is not valid JSON" in refused(capsys, *words)


def _replace_by_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _replace_by_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _with_an_impossible_model(path: Path) -> None:
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "model": {"name_or_path": "a/../b"}}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "binary": lambda path: path.write_bytes(b"\xff\x00" * 50),
    "deep": lambda path: path.write_text("[" * 200_000),
    "a list": lambda path: path.write_text("[]"),
    "missing": lambda path: path.unlink(),
    "folder": _replace_by_folder,
    "pipe": _replace_by_pipe,
    "impossible": _with_an_impossible_model,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_request_ends_its_job_alone(root: Path, damage: str) -> None:
    folder = submitted(root, "bad", "good", samples=40)
    with open_pool(folder) as pool:
        daemon(pool).intake.take()
    DAMAGES[damage](folder.job(key_of("bad")) / "request.json")
    with open_pool(folder) as pool:
        service = daemon(pool, once_empty=True)
        until(lambda: not service.step(), lambda: None)
        pool.stop()
    lines = {line.id: line for line in list_jobs(folder)}
    assert (lines["good"].state, lines["bad"].state) == ("completed", "failed")
    assert "submit" in lines["bad"].reason or "request.json" in lines["bad"].reason or damage == "missing"
    # what ended stays ended, and is in nobody's way
    with open_pool(folder) as pool:
        assert not daemon(pool).step()


def test_a_job_whose_folder_became_a_file_ends_alone(root: Path) -> None:
    folder = submitted(root, "bad", "good", samples=40)
    with open_pool(folder) as pool:
        daemon(pool).intake.take()
    place = folder.job(key_of("bad"))
    shutil.rmtree(place)
    place.write_text("")
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: not service.step(), lambda: None)
        pool.stop()
    lines = {line.id: line for line in list_jobs(folder)}
    assert (lines["good"].state, lines["bad"].state) == ("completed", "failed")
    assert "no result was written" in lines["bad"].reason


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"state": "no such"}', '{"state": ["failed"]}', "\x00", "[" * 100_000]
)
def test_a_damaged_result_is_none(root: Path, text: str) -> None:
    folder = submitted(root, "a", samples=40)
    with open_pool(folder) as pool:
        service = daemon(pool)
        service.intake.take()
        (folder.job(key_of("a")) / "result.json").write_text(text)
        assert service.step()
        pool.cancel("a")
        until(lambda: not service.step(), lambda: None)
        pool.stop()
    assert [line.state for line in list_jobs(folder)] == ["cancelled"]


@pytest.mark.parametrize("figure", ["1e400", "-1e400", "NaN", "1" + "0" * 400, '"x"', "[]", "-5", "true"])
def test_figures_that_cannot_be_calculated_with_change_nothing(root: Path, figure: str) -> None:
    folder = submitted(root, "a", "b", samples=4000)
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: any(job.checkpoint_samples for job in pool.state.jobs.values()), service.step)
        pool.stop()
        worker = next(iter(pool.state.workers.values()))
        key = key_of("a")
        before = pool.state.jobs[key].samples
        lines = [
            f'{{"event": "{event}", "job": "{key}", "samples": {figure}, "at_s": {figure}, "jobs": {figure},'
            f' "group": {figure}, "metric": {figure}, "rows": {figure}, "seq": {figure}}}'
            for event in ("started", "evaluated", "checkpointed", "left", "split", "profiled", "ready", "x")
        ]
        place = folder.worker(worker.id)
        with open(place / "events.jsonl", "a") as stream:
            stream.write("\n".join(lines) + "\n[]\nnot json\n")
        pool.watcher.read_events(worker)
        member = f'{{"samples": {figure}, "samples_per_s": {figure}, "probe": {figure}}}'
        for members in (figure, f'{{"{key}": {figure}}}', f'{{"{key}": {member}}}'):
            text = f'{{"version": {figure}, "at_s": {figure}, "tick_s": {figure}, "members": {members}}}'
            (place / "status.json").write_text(text)
            worker.holding = [key]
            pool.watcher.read_status(worker, 0.0)
        worker.holding = []
        assert pool.state.jobs[key].samples in (before, 0.0)
        # the snapshot of now still holds, and a plan is made for it
        assert {job.id for job in service.snapshot().jobs} == {"a", "b"}
        service.plan()
        assert not [event for event in pool.state.news if event["event"] == "no_plan"]


def test_a_damaged_journal_is_refused_in_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submitted(root, *(f"job-{i}" for i in range(30)), samples=40)
    with open_pool(folder) as pool:
        daemon(pool).intake.take()
    whole = folder.journal.read_bytes()
    at = ("--jobs-dir", folder.root)
    damaged = [
        whole[: len(whole) // 2],
        whole[:4096] + bytes(range(256)) * 16 + whole[8192:],
        whole[:-5000] + bytes(5000),
        whole[:4096],
    ]
    for data in damaged:
        for other in folder.root.glob("journal.db-*"):
            other.unlink()
        folder.journal.write_bytes(data)
        for words in (("jobs", "ps", *at), ("daemon", *at), ("daemon", "--dry-run", *at)):
            folder.journal.write_bytes(data)
            assert "journal.db: is " in refused(capsys, *words)


@pytest.mark.parametrize("value", ["[]", '{"id": "a"}', "{", "7", '"x"'])
def test_a_damaged_document_of_the_journal(root: Path, value: str) -> None:
    folder = submitted(root, "a")
    with open_pool(folder) as pool:
        daemon(pool).intake.take()
    with sqlite3.connect(folder.journal) as db:
        db.execute("UPDATE documents SET value = ? WHERE kind = 'job'", (value,))
    db.close()
    with pytest.raises(InputError, match="is damaged"):
        list_jobs(folder)
    with pytest.raises(InputError, match="is damaged"), open_pool(folder):
        pass


def test_names_cannot_steer_a_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submitted(root, "[bold]a[/bold]", samples=40)
    (folder.requests / "new\nline\x1b[2J.yaml").write_text("x")
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: not service.step(), lambda: None)
        pool.stop()
        Follower(list).news(tuple({"seq": 0, **event} for event in pool.events()))
    assert run(["jobs", "ps", "--jobs-dir", str(folder.root)]) == 0
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "refused file=new\\nline\\x1b[2J.yaml" in said
    assert "[bold]a[/bold]" in "".join(said.split())


def test_a_job_that_is_measured_says_so(root: Path) -> None:
    folder = submitted(root, "a", samples=40)
    with open_pool(folder) as pool:
        # no row is given, so that its speed is not known
        service = Daemon(pool, Settings(policy="ymir", spacing_s=0.0))
        until(lambda: bool(pool.state.wishes), service.step)
        assert [line.reason for line in list_jobs(folder)] == [
            "UnknownThroughput: no throughput is known; it is measured on 1 CPU"
        ]
        pool.stop()


def test_an_address_is_refused_where_nothing_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["daemon", "--jobs-dir", str(tmp_path / "jobs"), "--address", "auto", "--once-empty"])
    assert code == 2
    assert "--address: is of no use to --executor local" in capsys.readouterr().err
