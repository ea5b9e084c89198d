"""Work beside this process: the same answers, whatever becomes of the process that gives them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time

import pytest

from ymir_opt.domain import forked
from ymir_opt.domain.forked import Forked, beside, run_until


def children() -> set[int]:
    return {int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and parent_of(pid) == os.getpid()}


def parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def test_answers_come_in_order_and_are_remembered():
    total = []

    def add(value: int) -> int:
        total.append(value)
        return sum(total)

    process = Forked(add)
    try:
        for value, expected in ((1, 1), (5, 6), (10, 16)):
            process.ask(value)
            assert process.answer() == expected
        assert total == []
    finally:
        process.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def test_a_task_beside_is_done_once_elsewhere():
    before = children()
    with beside(os.getpid, cores=2) as result:
        assert result() != os.getpid()
    assert children() == before


def done(task, cores=None):
    with beside(task, cores) as result:
        return result()


def test_a_task_stays_here_on_one_core_and_beside_threads(monkeypatch):
    assert done(os.getpid, cores=1) == os.getpid()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert done(os.getpid, cores=2) == os.getpid()
    finally:
        over.set()
        thread.join()
    monkeypatch.setattr(forked, "cores_at_hand", lambda: 1)
    assert done(os.getpid) == os.getpid()


def test_without_room_for_a_process_it_is_done_here(monkeypatch):
    def refuse() -> int:
        raise OSError("no room")

    monkeypatch.setattr(os, "fork", refuse)
    assert done(lambda: 3, cores=2) == 3


def test_a_task_that_dies_or_fails_is_done_here():
    here = os.getpid()

    def killed() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 7

    def broken() -> int:
        raise ValueError("broken")

    before = children()
    assert done(killed, cores=2) == 7
    with pytest.raises(ValueError, match="broken"):
        done(broken, cores=2)
    assert children() == before


def test_an_unwanted_process_ends_with_its_owner():
    process = Forked(lambda _: threading.Event().wait())
    process.ask(None)
    process.end()
    assert process.pid not in children()


def test_a_result_that_nobody_asks_for_is_given_up():
    before = children()
    with beside(lambda: threading.Event().wait(), cores=2):
        assert children() != before
    assert children() == before


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_run_gives_its_exit_code(tmp_path, capfd):
    def task() -> int:
        os.write(1, b"nobody sees this")
        with tempfile.NamedTemporaryFile(delete=False) as stream:
            stream.write(b"here")
        return 5

    assert run_until(task, soon(30), str(tmp_path)) == 5
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"here"]
    assert run_until(lambda: os.kill(os.getpid(), signal.SIGTERM), soon(30), str(tmp_path)) == -signal.SIGTERM
    assert run_until(lambda: 1 // 0, soon(30), str(tmp_path)) == 1
    assert capfd.readouterr() == ("", "")


def test_a_run_is_killed_with_what_it_started(tmp_path):
    before = children()

    def task() -> int:
        started = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pid").write_text(str(started.pid))
        return started.wait()

    assert run_until(task, soon(1.0), str(tmp_path)) is None
    assert children() == before
    started = int((tmp_path / "pid").read_text())
    wait_for(lambda: parent_of(str(started)) == -1 or state_of(started) == "Z")


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rpartition(")")[2].split()[0]


def wait_for(condition) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")
