"""Shards searched side by side, each process with its own: forked, so that nothing is built twice.

Whatever a process cannot do (no fork on this system, other threads at work, too little memory) this one
does itself; the answer is the same.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ymir_opt.candidates.prices import Prices
from ymir_opt.candidates.shards import Part, Shard

__all__ = ["Spread", "cores_at_hand"]

Request = tuple[Prices, float]


def cores_at_hand() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Process:
    """A forked process that searches some of the shards, and remembers what it has seen."""

    def __init__(self, shards: Sequence[Shard], others: Sequence[_Process]) -> None:
        self.shards = shards
        self.connection, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # nothing of what the parent holds open may be closed, flushed or answered from here
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for connection in (self.connection, *(other.connection for other in others)):
                    connection.close()
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def _serve(self, connection: Connection) -> None:
        try:
            while True:
                prices, least = connection.recv()
                connection.send([shard.columns(prices, least) for shard in self.shards])
        except EOFError:
            return

    def ask(self, request: Request) -> None:
        self.connection.send(request)

    def answer(self) -> list[Part]:
        found: list[Part] = self.connection.recv()
        return found

    def end(self) -> None:
        self.connection.close()
        os.waitpid(self.pid, 0)


class Spread:
    """Searches shards on some cores; a context manager that ends its processes.

    Parameters
    ----------
    shards : list of Shard
    cores : int, optional
        By default those at hand. 1 forks nothing.
    """

    def __init__(self, shards: list[Shard], cores: int | None = None) -> None:
        self.shards = shards
        self.processes: list[_Process] = []
        wanted = min(len(shards), cores_at_hand() if cores is None else cores)
        self._wanted = wanted if hasattr(os, "fork") else 1

    def columns(self, prices: Prices, least: float) -> list[Part]:
        """Return what every shard has found so far, in the order of the shards; see `Shard.columns`."""
        self._start()
        request = (prices, least)
        asked = [process for process in self.processes if self._asked(process, request)]
        elsewhere = {id(shard) for process in asked for shard in process.shards}
        found = {
            id(shard): shard.columns(prices, least) for shard in self.shards if id(shard) not in elsewhere
        }
        for process in asked:
            try:
                parts = process.answer()
            except (EOFError, OSError):
                self._lose(process)
                parts = [shard.columns(prices, least) for shard in process.shards]
            for shard, part in zip(process.shards, parts, strict=True):
                shard.resume(part)
                found[id(shard)] = part
        return [found[id(shard)] for shard in self.shards]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.end()
        self.processes, self._wanted = [], 1

    def _start(self) -> None:
        # a fork copies this thread alone, and whatever locks the others hold at that moment
        if self.processes or self._wanted < 2 or threading.active_count() > 1:
            return
        wanted, self._wanted = self._wanted, 1
        for k in range(1, wanted):
            try:
                self.processes.append(_Process(self.shards[k::wanted], self.processes))
            except OSError:
                break

    def _asked(self, process: _Process, request: Request) -> bool:
        try:
            process.ask(request)
        except OSError:
            self._lose(process)
            return False
        return True

    def _lose(self, process: _Process) -> None:
        self.processes.remove(process)
        process.end()
