"""Large rounds in shards: groups of the jobs of some foundation models, independent of all others.

Groups of colocate, joint and sequence stay inside one foundation model, so the search for them falls apart by
model; a model with most of the jobs falls apart by mode. The shards depend on the round alone,
never on the cores at hand: these only decide how many shards are searched at a time (`spread`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.candidates.expand import Expander
from ymir_opt.candidates.limits import PoolLimits
from ymir_opt.candidates.memory import ScoreMemory
from ymir_opt.candidates.prices import Prices
from ymir_opt.candidates.prune import dominance
from ymir_opt.candidates.rules import Rules
from ymir_opt.candidates.sets import SetFinder, Stop
from ymir_opt.domain.snapshot import Mode
from ymir_opt.formulation.columns import ColumnTable, concatenate
from ymir_opt.formulation.evaluate import Evaluator

__all__ = ["SHARED_MODES", "Look", "Part", "Shard", "make_shards", "split"]

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

# the time that a job's groups take, by mode, in parts of that of a pair of colocated jobs
WEIGHT = {Mode.GPU_SHARE: 1.0, Mode.COLOCATE: 1.0, Mode.JOINT: 3.0, Mode.SEQUENCE: 1.0}
SHARED_MODES = tuple(WEIGHT)


@dataclass(frozen=True)
class Look:
    """How groups are looked for once.

    Attributes
    ----------
    prices : Prices
    least : float
        Sets and columns of a lower reduced profit, in quanta, are left out.
    rough : bool
        Within `PoolLimits.rough`.
    sets : list of (mode, int64[M, K])
        Sets that are looked at besides, whatever they are worth.
    """

    prices: Prices
    least: float = 0.0
    rough: bool = False
    sets: Sequence[tuple[Mode, IntArray]] = ()


@dataclass(frozen=True)
class Part:
    """What one shard has found so far.

    Attributes
    ----------
    table : ColumnTable
        All its columns, of all passes, without dominated ones.
    generated, dropped : int
        Evaluated columns; dropped by heuristics.
    struck : bool
        The wall-clock guard struck.
    """

    table: ColumnTable
    generated: int
    dropped: int
    struck: bool


class Shard:
    """Finds and keeps the groups of some jobs in each mode.

    Parameters
    ----------
    evaluator : Evaluator
    rules : Rules
    expander : Expander
        Copied: its caches are shared, its counters are not.
    limits : PoolLimits
    jobs : dict of mode to bool[J]
        The jobs whose groups of a mode are looked for here.
    stop : Stop
    """

    def __init__(
        self,
        evaluator: Evaluator,
        rules: Rules,
        expander: Expander,
        limits: PoolLimits,
        jobs: dict[Mode, BoolArray],
        stop: Stop,
    ) -> None:
        self.evaluator = evaluator
        self.rules = rules
        self.expander = copy(expander)
        self.expander.generated = self.expander.dropped = 0
        self.limits = limits
        self.jobs = jobs
        self.stop = Stop(stop.asked)
        self.memory = ScoreMemory(evaluator.jobs.count)
        self.table = expander.empty()

    def columns(self, look: Look) -> Part:
        """Look for groups once; return all that is known."""
        running = self.evaluator.instance.running_of >= 0
        limits = self.limits.rough() if look.rough else self.limits
        found = [self.table]
        for mode, jobs in self.jobs.items():
            finder = SetFinder(
                self.evaluator, self.rules, self.expander, limits, look.prices, self.memory, self.stop, jobs
            )
            found += finder.columns(mode, least=look.least)
            for _, sets in (of for of in look.sets if of[0] is mode):
                found.append(finder.of_sets(mode, sets[jobs[sets].all(axis=1)]))
        self.table = dominance(concatenate(found), self.expander.fewest, running)
        return Part(self.table, self.expander.generated, self.expander.dropped, self.stop.struck)

    def resume(self, part: Part) -> None:
        """Go on from what this shard has found elsewhere."""
        self.table = part.table
        self.expander.generated, self.expander.dropped = part.generated, part.dropped
        self.stop.struck = part.struck


def split(
    fm: IntArray, jobs: BoolArray, shards: int, modes: Sequence[Mode] = SHARED_MODES
) -> list[dict[Mode, BoolArray]]:
    """Return which jobs' groups of each mode belong to which shard, about equally much work in each.

    Parameters
    ----------
    fm : int64[J]
        Foundation model of each job, -1 without one.
    jobs : bool[J]
        Those that may be in a new group.
    shards : int
        At most so many; empty ones are left out.
    modes : sequence of Mode
        Those in which there may be groups.
    """
    units: list[tuple[float, Mode, BoolArray]] = []
    for mode in modes:
        # gpu_share alone crosses foundation models
        models = np.unique(fm[jobs & (fm >= 0)]).tolist() if mode is not Mode.GPU_SHARE else [None]
        for model in models:
            mine = jobs if model is None else jobs & (fm == model)
            units.append((WEIGHT[mode] * mine.sum(), mode, mine))
    # the largest first, each to the shard with the least so far
    load = np.zeros(max(1, shards))
    out: list[dict[Mode, BoolArray]] = [{} for _ in load]
    for weight, mode, mine in sorted(units, key=lambda unit: -unit[0]):
        at = int(np.argmin(load))
        load[at] += weight
        out[at][mode] = out[at].get(mode, np.zeros(len(fm), np.bool_)) | mine
    return [{mode: masks[mode] for mode in SHARED_MODES if mode in masks} for masks in out if masks]


def make_shards(
    evaluator: Evaluator, rules: Rules, expander: Expander, limits: PoolLimits, stop: Stop
) -> list[Shard]:
    """Return the shards of a round; `PoolLimits.shards` of them at most."""
    largest = evaluator.estimates.colocation.largest
    # of speeds together rows tell, or a predictor
    modes = [mode for mode in SHARED_MODES if mode in (Mode.JOINT, Mode.SEQUENCE) or largest(mode) != 0]
    jobs = evaluator.jobs.startable & ~evaluator.jobs.rigid
    masks = split(evaluator.jobs.fm, jobs, limits.shards, modes)
    # each has its share of what may be scored completely
    mine = replace(limits, all_pairs_to=limits.all_pairs_to // max(1, len(masks)))
    return [Shard(evaluator, rules, expander, mine, of, stop) for of in masks]
