"""What users or a bad disk put in the way: it costs one job or one command, and never the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from executor_kit import submitted, write_request

from ymir_opt.cli.main import run
from ymir_opt.executors.folder import read_json, read_lines
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
