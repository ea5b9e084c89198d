"""Work beside this process: the same answers, whatever becomes of the process that gives them."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ymir_opt.domain import forked
from ymir_opt.domain.forked import Forked, beside


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
