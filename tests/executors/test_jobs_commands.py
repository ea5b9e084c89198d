"""``ymir-plan jobs``, ``daemon`` and ``run``: what they say, what they refuse, that they end in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from executor_kit import (
    FAKE,
    daemon,
    nodes,
    open_pool,
    profiles,
    results,
    submitted,
    trace,
    until,
    workers_of,
    write_data,
    write_request,
)

from ymir_opt.api import solve
from ymir_opt.cli.main import run
from ymir_opt.domain.documents import dump_json
from ymir_opt.domain.request import key_of
from ymir_opt.domain.snapshot import JobState, Profiles
from ymir_opt.executors import local
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.service.intake import Intake
from ymir_opt.service.listing import list_jobs
from ymir_opt.service.observe import observe

Answer = tuple[int, str, str]


@pytest.fixture
def ymir(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs one command line with counting workers."""
    monkeypatch.setattr(local, "WORKER", FAKE)

    def call(*words: object) -> Answer:
        code = run([str(word) for word in words])
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


def refused(answer: Answer) -> str:
    code, out, err = answer
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def listed(ymir: Any, folder: JobsFolder) -> dict[str, dict[str, Any]]:
    code, out, _ = ymir("jobs", "ps", "--json", "--jobs-dir", folder.root)
    assert code == 0
    return {line["id"]: line for line in json.loads(out)}


def rows_file(root: Path) -> Path:
    path = root / "rows.json"
    path.write_text(profiles().model_dump_json(by_alias=True))
    return path


def test_submit_list_run_and_read(root: Path, ymir: Any) -> None:
    folder = JobsFolder(root / "jobs-dir")
    requests = [write_request(root / "r", name) for name in ("a", "b", "; rm -rf x")]
    code, out, err = ymir("jobs", "submit", *requests, "--jobs-dir", folder.root)
    assert (code, out) == (0, "")
    assert [line.split()[0] for line in err.splitlines()] == ["submitted"] * 3
    assert {line["state"] for line in listed(ymir, folder).values()} == {"submitted"}
    options = ("--cluster", "1x2:CPU", "--policy", "fifo", "--profiles", rows_file(root), "--min-spacing", 0)
    code, out, err = ymir("daemon", "--jobs-dir", folder.root, *options, "--dry-run")
    assert code == 0
    assert "2 of 2 GPUs" in err
    # a trial leaves everything as it was
    assert {path.name for path in folder.root.iterdir()} == {"requests", "jobs", "workers"}
    assert len(list(folder.requests.glob("*.yaml"))) == 3
    code, out, err = ymir("daemon", "--jobs-dir", folder.root, *options, "--once-empty")
    assert (code, out) == (0, "")
    assert "ended job=a state=completed" in err
    lines = listed(ymir, folder)
    assert {name: line["state"] for name, line in lines.items()} == dict.fromkeys(
        ("a", "b", "; rm -rf x"), "completed"
    )
    assert not workers_of(folder)
    (folder.job(key_of("a")) / "log.txt").write_text("a line\n")
    assert ymir("jobs", "logs", "a", "--jobs-dir", folder.root)[:2] == (0, "a line\n")
    code, _, err = ymir("jobs", "ps", "--jobs-dir", folder.root)
    assert "completed" in err
    assert "has ended" in refused(ymir("jobs", "cancel", "a", "--jobs-dir", folder.root))


def test_requests_that_are_refused(root: Path, ymir: Any) -> None:
    folder = JobsFolder(root / "jobs-dir")
    good = write_request(root / "r", "a")

    def submit(path: Path) -> str:
        return refused(ymir("jobs", "submit", path, "--jobs-dir", folder.root))

    bomb = root / "bomb.yaml"
    bomb.write_text("a: &a [x]\nb: [*a, *a]\n")
    assert "bomb.yaml:1: uses an anchor or alias; write the value out" in submit(bomb)
    assert "no such file" in submit(root / "none.yaml")
    assert "no such file" in submit(write_request(root / "r", "c", data={"path": "missing.csv"}))
    data = {"path": str(write_data(root / "r")), "text_column": "txt"}
    assert "has no column 'txt'; did you mean 'text'?" in submit(write_request(root / "r", "d", data=data))
    assert "contains a '..' path component" in submit(write_request(root / "r", "../../x"))
    assert "is also in" in refused(ymir("jobs", "submit", good, good, "--jobs-dir", folder.root))
    # nothing of a command that is refused is handed over
    assert "bomb" in refused(ymir("jobs", "submit", good, bomb, "--jobs-dir", folder.root))
    assert not folder.root.exists()
    assert ymir("jobs", "submit", good, "--jobs-dir", folder.root)[0] == 0
    assert "'a' was submitted before; give the job another name" in submit(good)


def test_what_the_commands_refuse(root: Path, ymir: Any) -> None:
    folder = submitted(root, "a")
    at = ("--jobs-dir", folder.root)
    assert "no such folder" in refused(ymir("jobs", "ps", "--jobs-dir", root / "nowhere"))
    assert "did you mean 'a'?" in refused(ymir("jobs", "logs", "aa", *at))
    assert "did you mean 'local'?" in refused(ymir("daemon", *at, "--executor", "locale"))
    assert "is not installed" in refused(ymir("daemon", *at, "--policy", "lifo"))
    assert "given together" in refused(ymir("daemon", *at, "--nodes", 2, "--cluster", "1x1:CPU"))
    assert "is not NODESxGPUS:TYPE" in refused(ymir("daemon", *at, "--cluster", "two"))
    assert "not between 1 and 1024" in refused(ymir("daemon", *at, "--nodes", 0))
    assert "not a number above 0" in refused(ymir("daemon", *at, "--round", "nan"))
    (root / "rows.json").write_text('{"througput": []}')
    assert "did you mean 'throughput'" in refused(ymir("daemon", *at, "--profiles", root / "rows.json"))
    (root / "rows.json").write_text("[")
    assert "is not valid JSON" in refused(ymir("daemon", *at, "--profiles", root / "rows.json"))
    (folder.root / "journal.db").write_bytes(b"x" * 5000)
    assert "is no journal" in refused(ymir("jobs", "ps", *at))
    assert "is no journal" in refused(ymir("daemon", *at))


def test_requests_dropped_into_the_folder_are_judged_too(root: Path, ymir: Any) -> None:
    folder = submitted(root, "a")
    outside = write_request(root / "elsewhere", "link")
    (folder.requests / "link.yaml").symlink_to(outside)
    (folder.requests / "bomb.yaml").write_text("a: &a [x]\nb: [*a, *a]\n")
    write_data(root / "r")
    (folder.requests / "late.yaml").write_bytes(
        write_request(root / "r", "late", data={"path": str(root / "r" / "gone.csv")}).read_bytes()
    )
    (folder.requests / "twice.yaml").write_bytes(
        write_request(root / "r", "a", data={"path": str(root / "r" / "data.csv")}).read_bytes()
    )
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: len(results(folder)) == 2, service.step)
        pool.stop()
    lines = listed(ymir, folder)
    assert lines["a"]["state"] == "completed"
    # missing data: the job fails alone, with the reason
    assert (lines["late"]["state"], "no such file" in lines["late"]["reason"]) == ("failed", True)
    assert (lines["link"]["state"], lines["bomb"]["state"]) == ("refused", "refused")
    # the owner of a link is not the owner of what it names
    assert "cannot be read" in lines["link"]["reason"]
    assert "anchor or alias" in lines["bomb"]["reason"]
    assert "was submitted before" in lines["twice"]["reason"]
    assert not list(folder.requests.glob("*.yaml"))


def test_cancelling_by_command(root: Path, ymir: Any) -> None:
    folder = submitted(root, "long", "never", samples=10**6)
    assert ymir("jobs", "cancel", "never", "--jobs-dir", folder.root)[0] == 0
    with open_pool(folder) as pool:
        service = daemon(pool)
        until(lambda: bool(trace(folder)), service.step)
        code, _, err = ymir("jobs", "cancel", "long", "--jobs-dir", folder.root)
        assert (code, err) == (0, "asked the daemon to cancel long\n")
        until(lambda: results(folder) == {"long": "cancelled"}, service.step)
        pool.stop()
    (line,) = list_jobs(folder)
    assert (line.state, line.reason) == ("cancelled", "cancelled by its user")


def command(root: Path, *words: object) -> subprocess.Popen[str]:
    """Start the command line with counting workers as a process of its own."""
    code = (
        "import sys; from ymir_opt.executors import local; "
        f"local.WORKER = {FAKE!r}; from ymir_opt.cli.main import main; main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_daemon_ends_in_order_and_a_second_one_is_refused(root: Path, ymir: Any) -> None:
    folder = submitted(root, "a", samples=10**6)
    words = (
        "daemon",
        "--jobs-dir",
        folder.root,
        "--policy",
        "fifo",
        "--profiles",
        rows_file(root),
        "--nodes",
        1,
    )
    first = command(root, *words)
    try:
        until(lambda: bool(trace(folder)), lambda: None)
        assert f"is written by process {first.pid}; stop that one first" in refused(ymir(*words))
        assert listed(ymir, folder)["a"]["state"] == "running"
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=30) == 0
    finally:
        first.kill()
        first.communicate()
    assert not workers_of(folder)
    last = trace(folder)["a"][-1]["samples"]
    state = json.loads((folder.job(key_of("a")) / "checkpoint" / "state.json").read_text())
    assert state["samples"] == last
    assert listed(ymir, folder)["a"]["state"] == "pending"


def test_run_carries_a_plan_out_and_goes_on_with_it(root: Path, ymir: Any) -> None:
    folder = submitted(root, "a", "b", "c", samples=1200)
    with open_pool(folder, nodes=nodes(2)) as pool:
        Intake(pool, folder, time.time).take()
        snapshot = observe(pool, profiles(), time.time(), 60.0)
    plan = solve(snapshot, policy="fifo")
    (root / "s.json").write_text(dump_json(snapshot))
    (root / "p.json").write_text(dump_json(plan))
    words = ("run", root / "p.json", "--snapshot", root / "s.json", "--jobs-dir", folder.root)
    first = command(root, *words)
    try:
        until(lambda: len(trace(folder)) == 2, lambda: None)
        first.kill()
        first.wait()
    finally:
        first.communicate()
    code, out, _ = ymir(*words)
    assert (code, out) == (0, "")
    # the third job was not part of the plan's groups
    assert results(folder) == {"a": "completed", "b": "completed"}
    other = solve(snapshot.model_copy(update={"taken_at_s": snapshot.taken_at_s + 1}), policy="fifo")
    (root / "q.json").write_text(dump_json(other))
    assert "made for snapshot" in refused(ymir("run", root / "q.json", *words[2:]))
    later = snapshot.model_copy(update={"taken_at_s": snapshot.taken_at_s + 1})
    (root / "t.json").write_text(dump_json(later))
    stale = ymir("run", root / "q.json", "--snapshot", root / "t.json", "--jobs-dir", folder.root)
    assert "the plan is stale: something happened since" in refused(stale)


def test_run_of_a_snapshot_that_says_otherwise(root: Path, ymir: Any) -> None:
    folder = submitted(root, "a", samples=1200)
    with open_pool(folder, nodes=nodes(1)) as pool:
        Intake(pool, folder, time.time).take()
        snapshot = observe(pool, profiles(), time.time(), 60.0)
    (job,) = snapshot.jobs
    running = job.model_copy(
        update={
            "state": JobState.RUNNING,
            "allocation": {"n0": (0,)},
            "last_start_s": 0.0,
            "first_start_s": 0.0,
        }
    )
    (root / "s.json").write_text(dump_json(snapshot.model_copy(update={"jobs": (running,)})))
    from ymir_opt.domain.documents import parse_snapshot

    plan = solve(parse_snapshot((root / "s.json").read_bytes()), policy="fifo")
    (root / "p.json").write_text(dump_json(plan))
    answer = ymir("run", root / "p.json", "--snapshot", root / "s.json", "--jobs-dir", folder.root)
    assert "job a does not run, the snapshot says ('n0', 0)" in refused(answer)


def test_rows_that_a_snapshot_holds_are_taken(root: Path, ymir: Any) -> None:
    folder = submitted(root, "a")
    with open_pool(folder) as pool:
        Intake(pool, folder, time.time).take()
        (root / "s.json").write_text(dump_json(observe(pool, profiles(), 0.0, 60.0)))
    from ymir_opt.cli.commands.daemon import _rows

    found = _rows(str(root / "s.json"))
    assert isinstance(found, Profiles)
    assert found.throughput == profiles().throughput


def test_the_example_requests_are_taken(root: Path, ymir: Any, examples: Path) -> None:
    folder = JobsFolder(root / "jobs-dir")
    paths = sorted((examples / "jobs").glob("*.yaml"))
    assert ymir("jobs", "submit", *paths, "--jobs-dir", folder.root)[0] == 0
    with open_pool(folder, nodes=nodes(2)) as pool:
        service = daemon(pool)
        service.intake.take()
        jobs = {job.id: job for job in service.snapshot().jobs}
        assert set(jobs) == {path.stem for path in paths}
        # eight things, five sentences, two labels; a fifth evaluates; six epochs
        assert {job.target.max_samples for job in jobs.values() if job.target} == {8 * 5 * 2 * 4 / 5 * 6}
