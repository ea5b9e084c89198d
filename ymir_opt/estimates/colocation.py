"""Speed ratios of groups that share GPUs, from the rows of a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import permutations

from ymir_opt.domain.snapshot import ColocationRow, Mode, Provenance
from ymir_opt.estimates.protocols import Colocation, MemberKey, Predictor, ThroughputKey

__all__ = ["ColocationTable"]

_Base = tuple[ThroughputKey, int]


def _members(row: ColocationRow) -> tuple[MemberKey, ...]:
    return tuple(
        MemberKey(ThroughputKey(m.foundation_model, m.peft_type, m.config), m.batch_size, m.task)
        for m in row.members
    )


class ColocationTable:
    """Answers by (mode, GPU type, count, members in any order)."""

    def __init__(self, rows: Iterable[ColocationRow], predictor: Predictor | None = None) -> None:
        self._predictor = predictor
        self.rows: tuple[tuple[ColocationRow, tuple[MemberKey, ...]], ...] = tuple(
            (row, _members(row)) for row in rows
        )
        self._by_base: dict[
            tuple[Mode, str, int, tuple[_Base, ...]], list[tuple[ColocationRow, tuple[MemberKey, ...]]]
        ] = defaultdict(list)
        for row, members in self.rows:
            base = tuple(sorted(((m.key, m.batch_size) for m in members), key=_order))
            self._by_base[row.mode, row.gpu_type, row.gpus, base].append((row, members))
        self._by_task = predictor is not None or any(
            member.task is not None for _, members in self.rows for member in members
        )
        self._cache: dict[tuple[Mode, str, int, tuple[MemberKey, ...]], Colocation | None] = {}

    @property
    def by_task(self) -> bool:
        """Whether the members' tasks can matter to an answer."""
        return self._by_task

    def largest(self, mode: Mode) -> int | None:
        """Return how many members the largest group has that a row of a mode tells of, 0 without one.

        None where a predictor may answer for groups of any size.
        """
        if self._predictor is not None:
            return None
        return max((len(members) for row, members in self.rows if row.mode is mode), default=0)

    def lookup(self, mode: Mode, gpu_type: str, gpus: int, members: Sequence[MemberKey]) -> Colocation | None:
        """Return the group's speed ratios in the order of ``members``, or None where unknown.

        A row's member without a task stands for every task; rows that name more tasks are preferred.
        """
        key = (mode, gpu_type, gpus, tuple(members))
        if key not in self._cache:
            self._cache[key] = self._find(*key)
        return self._cache[key]

    def _find(
        self, mode: Mode, gpu_type: str, gpus: int, members: tuple[MemberKey, ...]
    ) -> Colocation | None:
        base = tuple(sorted(((m.key, m.batch_size) for m in members), key=_order))
        best: tuple[int, bool, Colocation] | None = None
        for row, row_members in self._by_base.get((mode, gpu_type, gpus, base), ()):
            order = _assign(members, row_members)
            if order is None:
                continue
            named = sum(m.task is not None for m in row_members)
            predicted = row.source is Provenance.PREDICTED
            found = Colocation(tuple(row.speed_ratio[i] for i in order), row.memory_gib, predicted)
            if best is None or (-named, predicted) < (-best[0], best[1]):
                best = (named, predicted, found)
        if best is not None:
            return best[2]
        if self._predictor is not None:
            return self._predictor.colocation(mode.value, gpu_type, gpus, members)
        return None


def _order(base: _Base) -> tuple[str, str, str, int]:
    key, batch = base
    return (key.foundation_model, key.peft_type or "", key.config, batch)


def _assign(members: tuple[MemberKey, ...], row: tuple[MemberKey, ...]) -> tuple[int, ...] | None:
    """Return for each member the row's member it matches, or None where no assignment exists."""

    def matches(member: MemberKey, pattern: MemberKey) -> bool:
        return (
            member.key == pattern.key
            and member.batch_size == pattern.batch_size
            and pattern.task in (None, member.task)
        )

    for order in permutations(range(len(row))):
        if all(matches(members[i], row[order[i]]) for i in range(len(members))):
            return order
    return None
