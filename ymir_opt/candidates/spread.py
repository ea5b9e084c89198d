"""Shards searched side by side, some in this process and some in forked ones.

Whatever another process cannot do this one does itself; the answer is the same.
"""

from __future__ import annotations

from functools import partial

from ymir_opt.candidates.shards import Look, Part, Shard
from ymir_opt.domain.forked import Forked, cores_at_hand, may_fork

__all__ = ["Spread"]

Process = Forked[Look, list[Part]]


class Spread:
    """Searches shards on some cores, each always in the same process, which remembers what it has scored.

    Parameters
    ----------
    shards : list of Shard
    cores : int, optional
        By default those at hand; with 1 nothing is forked.
    """

    def __init__(self, shards: list[Shard], cores: int | None = None) -> None:
        self.shards = shards
        self.processes: dict[int, Process] = {}
        """By number; shard ``i`` belongs to process ``i`` modulo `_count`, 0 is this one."""
        self._count = max(1, min(len(shards), cores_at_hand() if cores is None else cores))
        self._started = False

    def columns(self, look: Look) -> list[Part]:
        """Return what every shard has found so far, in the order of the shards; see `Shard.columns`."""
        self._start()
        for k in list(self.processes):
            try:
                self.processes[k].ask(look)
            except OSError:
                self._lose(k)
        found: dict[int, Part] = {}
        for i, shard in enumerate(self.shards):
            if i % self._count not in self.processes:
                found[i] = shard.columns(look)
        for k in list(self.processes):
            found.update(self._answer(k, look))
        return [found[i] for i in range(len(self.shards))]

    def close(self) -> None:
        """End the processes."""
        for k in list(self.processes):
            self._lose(k)

    def _start(self) -> None:
        if self._started or not may_fork():
            return
        self._started = True
        for k in range(1, self._count):
            try:
                self.processes[k] = Forked(partial(_search, self._of(k)), self.processes.values())
            except OSError:
                break

    def _of(self, k: int) -> list[Shard]:
        return self.shards[k :: self._count]

    def _answer(self, k: int, look: Look) -> dict[int, Part]:
        shards = self._of(k)
        try:
            parts = self.processes[k].answer()
        except (EOFError, OSError):
            self._lose(k)
            parts = _search(shards, look)
        for shard, part in zip(shards, parts, strict=True):
            shard.resume(part)
        return dict(zip(range(k, len(self.shards), self._count), parts, strict=True))

    def _lose(self, k: int) -> None:
        self.processes.pop(k).end()


def _search(shards: list[Shard], look: Look) -> list[Part]:
    return [shard.columns(look) for shard in shards]
