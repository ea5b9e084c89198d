"""From shapes to GPU indices: decreasing best fit, and an exact search where that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.parts import Splits, fewest_blocks, node_capacity, normalised, part_of, splits
from ymir_opt.formulation.shapes import Shape
from ymir_opt.placement.greedy import Room, Task
from ymir_opt.placement.prefer import hand_out, swap_preferred
from ymir_opt.placement.search import NODE_LIMIT, search

__all__ = ["Placement", "place"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Placement:
    """Where the demands lie, or which one cannot be placed.

    Attributes
    ----------
    gpus : tuple of int64 arrays
        GPU rows of each demand, ascending; empty if the placement failed.
    failed : int
        The first demand that cannot be placed together with all demands before it, or -1.
    failed_types : tuple of int
        GPU types of which some demand cannot be placed.
    exact : bool
        True if the answer is proven. A failure is not proven if the search reached its limits
        or a gang has more splits than are considered; a success always is.
    searched : tuple of int
        GPU types for which best fit did not suffice and the exact search decided.
    """

    gpus: tuple[IntArray, ...]
    failed: int = -1
    failed_types: tuple[int, ...] = ()
    exact: bool = True
    searched: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Every demand is placed."""
        return self.failed < 0


@dataclass(frozen=True)
class _Job:
    """The demands of one type: distinct shapes and which demands have them."""

    type: int
    shapes: tuple[Shape, ...]
    members: tuple[IntArray, ...]

    def first(self, count: int) -> _Job:
        """Return only the demands with an index below ``count``."""
        kept = [(s, m[m < count]) for s, m in zip(self.shapes, self.members, strict=True)]
        kept = [(s, m) for s, m in kept if len(m)]
        return _Job(self.type, tuple(s for s, _ in kept), tuple(m for _, m in kept))


class _Effort(Enum):
    """How far to go for an answer: counting (proves failures), best fit as well, the search as well."""

    COUNT = auto()
    PACK = auto()
    SEARCH = auto()


@dataclass(frozen=True)
class _Answer:
    ok: bool
    proven: bool = True
    searched: bool = False
    owner: IntArray | None = None
    rows: IntArray | None = None


def place(
    instance: Instance,
    available: BoolArray,
    keeps: Sequence[int],
    demands: Sequence[Shape],
    *,
    prefer: Sequence[IntArray | None] = (),
    node_limit: int = NODE_LIMIT,
) -> Placement:
    """Place every demand on GPUs beside the kept running groups, or name one that cannot be placed.

    Largest parts first, each on the node with the fewest free GPUs (exact for power-of-two parts on
    GPUs of one kind: any placement of a part then uses up the same number of blocks of every smaller
    size). Warm demands use GPUs on which their model is resident; cold ones first those that hold no
    model and have the least memory that suffices. Where this fails, other orders and other splits of
    gangs are tried, then `search`. The same arguments give the same placement.

    Parameters
    ----------
    instance : Instance
    available : bool[U]
        GPUs on which something may start: ready, and not reserved.
    keeps : sequence of int
        Rows of the running groups that stay on their GPUs; other groups' GPUs are free.
    demands : sequence of Shape
    prefer : sequence of (int64 array or None), optional
        For each demand the GPUs that it used before; taken where the packing is as good.
    node_limit : int
        Branch-and-bound nodes of one search.

    Returns
    -------
    Placement
    """
    kept = np.zeros(len(instance.running) + 1, np.bool_)
    kept[list(keeps)] = True
    kept[-1] = False  # gpu_held is -1 where nothing runs
    open_gpu = available & instance.gpu_ready & ~kept[instance.gpu_held]
    liked = {i: rows for i, rows in enumerate(prefer) if rows is not None and len(rows)}
    owners: list[IntArray] = []
    rows: list[IntArray] = []
    searched: list[int] = []
    failures: dict[int, tuple[int, bool]] = {}
    for job in _jobs(instance, demands):
        of_type = open_gpu & (instance.gpu_type == job.type)
        answer = _place_type(instance, of_type, keeps, job, liked, node_limit)
        if answer.searched:
            searched.append(job.type)
        if not answer.ok or answer.owner is None or answer.rows is None:
            failures[job.type] = _first_failure(instance, of_type, keeps, job, node_limit)
            continue
        owners.append(answer.owner)
        rows.append(answer.rows)
    if failures:
        failed = min(i for i, _ in failures.values())
        exact = all(proven for _, proven in failures.values())
        return Placement((), failed, tuple(sorted(failures)), exact, tuple(searched))
    owner = np.concatenate([*owners, np.zeros(0, np.int64)])
    gpu = np.concatenate([*rows, np.zeros(0, np.int64)])
    swap_preferred(instance, open_gpu, owner, gpu, liked)
    order = np.lexsort((gpu, owner))
    bounds = np.searchsorted(owner[order], np.arange(1, len(demands)))
    placed = tuple(np.split(gpu[order], bounds)) if len(demands) else ()
    return Placement(placed, searched=tuple(searched))


def _jobs(instance: Instance, demands: Sequence[Shape]) -> list[_Job]:
    members: dict[Shape, list[int]] = {}
    for i, shape in enumerate(demands):
        members.setdefault(shape, []).append(i)
    by_shape: dict[int, dict[Shape, list[int]]] = {}
    for shape, which in members.items():
        by_shape.setdefault(shape.type, {}).setdefault(normalised(instance, shape), []).extend(which)
    return [
        _Job(t, tuple(sorted(found)), tuple(np.array(sorted(found[s]), np.int64) for s in sorted(found)))
        for t, found in sorted(by_shape.items())
    ]


def _first_failure(
    instance: Instance, open_gpu: BoolArray, keeps: Sequence[int], job: _Job, node_limit: int
) -> tuple[int, bool]:
    """Return the demand that ends the shortest prefix which cannot be placed, and whether that is proven.

    Bisection; first with the cheap tests, of which best fit proves prefixes that can be placed and
    counting those that cannot, then with the search in between.
    """
    index = np.sort(np.concatenate(job.members))

    def answer(position: int, effort: _Effort) -> _Answer:
        part = job.first(int(index[position]) + 1)
        return _place_type(instance, open_gpu, keeps, part, {}, node_limit, effort)

    def bisect(low: int, high: int, effort: _Effort) -> tuple[int, bool]:
        proven = False
        while low < high:
            middle = (low + high) // 2
            found = answer(middle, effort)
            if found.ok or (effort is _Effort.COUNT and not found.proven):
                low = middle + 1
            else:
                high, proven = middle, found.proven
        return high, proven

    last = len(index) - 1  # the whole fails, and so does the prefix that ends with index[high]
    high, proven = bisect(0, last, _Effort.COUNT)
    low = bisect(0, high, _Effort.PACK)[0]  # all shorter prefixes can be placed
    if low < high:
        found, better = bisect(low, high, _Effort.SEARCH)
        if found < high:
            high, proven = found, better
    return int(index[high]), proven or answer(high, _Effort.SEARCH).proven


def _place_type(
    instance: Instance,
    open_gpu: BoolArray,
    keeps: Sequence[int],
    job: _Job,
    liked: dict[int, IntArray],
    node_limit: int,
    effort: _Effort = _Effort.SEARCH,
) -> _Answer:
    options = [splits(instance, shape) for shape in job.shapes]
    if not all(option.items for option in options):
        return _Answer(False)
    asked = sum(shape.gpus * len(m) for shape, m in zip(job.shapes, job.members, strict=True))
    if asked > int(open_gpu.sum()):
        return _Answer(False)
    parts = sorted(
        {
            part_of(shape, size)
            for shape, option in zip(job.shapes, options, strict=True)
            for split in option.items
            for size, _ in split
        }
    )
    empty, tasks = Room.of(instance, open_gpu, keeps, parts)
    task = dict(zip(parts, tasks, strict=True))
    if _impossible(instance, empty, task, job, options):
        return _Answer(False)
    if effort is _Effort.COUNT:
        return _Answer(False, proven=False)
    breadth = {part: int((node_capacity(instance, part) >= part.gpus).sum()) for part in parts}
    gangs = [s for s, option in enumerate(options) if len(option.items) > 1]
    for tight_first, gangs_first in ((False, False), (True, False), (False, True)):
        if gangs_first and not gangs:
            continue
        room = empty.copy()
        done: list[tuple[IntArray, IntArray]] = []
        if gangs_first and not _place_gangs(room, task, job, options, gangs, done):
            continue
        batches: dict[Shape, list[IntArray]] = {}
        for s, shape in enumerate(job.shapes):
            if gangs_first and s in gangs:
                continue
            for size, count in options[s].items[0]:
                batches.setdefault(part_of(shape, size), []).append(np.repeat(job.members[s], count))
        order = sorted(batches, key=lambda part: _rank(part, breadth[part], tight_first=tight_first))
        if all(_place_batch(instance, room, task[p], np.concatenate(batches[p]), liked, done) for p in order):
            return _Answer(True, owner=_joined(done, 0), rows=_joined(done, 1))
    if effort is _Effort.PACK:
        return _Answer(False, proven=False)
    return _search(instance, open_gpu, keeps, job, liked, node_limit)


def _impossible(
    instance: Instance, room: Room, task: dict[Shape, Task], job: _Job, options: list[Splits]
) -> bool:
    """Say whether counting alone proves that there is no placement; spares most searches.

    The equal parts of one kind are at most what each node takes of them alone, and blocks of ``B``
    GPUs are at most ``sum_n floor(free_n / B)``.
    """
    count = [len(m) for m in job.members]
    need: dict[Shape, int] = {}
    for shape, option, groups in zip(job.shapes, options, count, strict=True):
        if len(option.items) == 1:
            for size, parts in option.items[0]:
                part = part_of(shape, size)
                need[part] = need.get(part, 0) + parts * groups
    if any(wanted > int(room.fits(task[part]).sum()) for part, wanted in need.items()):
        return True
    free = room.free.sum(axis=1)
    return any(
        sum(fewest_blocks(instance, s, block) * n for s, n in zip(job.shapes, count, strict=True))
        > int((free // block).sum())
        for block in sorted({part.gpus for part in task} - {1})
    )


def _rank(part: Shape, breadth: int, *, tight_first: bool) -> tuple[object, ...]:
    tight = (not part.whole, part.resident < 0, breadth, -part.level)
    heavy = (-part.cpus_per_gpu, -part.host_gib_per_gpu, part)
    return (*tight, -part.gpus, *heavy) if tight_first else (-part.gpus, *tight, *heavy)


def _joined(done: list[tuple[IntArray, IntArray]], which: int) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *(pair[which] for pair in done)])


def _place_batch(
    instance: Instance,
    room: Room,
    task: Task,
    owners: IntArray,
    liked: dict[int, IntArray],
    done: list[tuple[IntArray, IntArray]],
) -> bool:
    owners = np.sort(owners)
    wanting = {i: liked[i] for i in dict.fromkeys(owners.tolist()) if i in liked} if liked else {}
    positions = None
    if wanting:
        nodes = np.unique(instance.gpu_node[np.concatenate(list(wanting.values()))])
        positions = np.flatnonzero(np.isin(room.nodes, nodes))
    rows = room.fill(task, len(owners), positions)
    if len(rows) < len(owners):
        return False
    owners = hand_out(instance, owners, rows, wanting)
    done.append((np.repeat(owners, task.size), rows.ravel()))
    return True


def _place_gangs(
    room: Room,
    task: dict[Shape, Task],
    job: _Job,
    options: list[Splits],
    gangs: list[int],
    done: list[tuple[IntArray, IntArray]],
) -> bool:
    """Place gangs over several nodes one by one, each in the first split that the nodes can hold."""
    for s in sorted(gangs, key=lambda s: -job.shapes[s].gpus):
        shape = job.shapes[s]
        items = [[(task[part_of(shape, size)], count) for size, count in split] for split in options[s].items]
        for member in job.members[s].tolist():
            for own in items:
                if all((room.fits(t) > 0).sum() >= count for t, count in own):
                    trial = room.copy()
                    rows = [trial.fill(t, count) for t, count in own]
                    if sum(r.size for r in rows) == shape.gpus:
                        room.free, room.units, room.start = trial.free, trial.units, trial.start
                        done += [(np.full(r.size, member, np.int64), r.ravel()) for r in rows]
                        break
            else:
                return False
    return True


def _search(
    instance: Instance,
    open_gpu: BoolArray,
    keeps: Sequence[int],
    job: _Job,
    liked: dict[int, IntArray],
    node_limit: int,
) -> _Answer:
    found = search(
        instance,
        open_gpu,
        keeps,
        job.type,
        job.shapes,
        [len(m) for m in job.members],
        node_limit=node_limit,
    )
    if not found.ok or found.rows is None:
        return _Answer(False, found.proven, True)
    owners: dict[Shape, list[int]] = {}
    for shape, members, chosen in zip(job.shapes, job.members, found.splits, strict=True):
        left = iter(members.tolist())
        for split, times in chosen:
            for _ in range(times):
                member = next(left)
                for size, count in split:
                    owners.setdefault(part_of(shape, size), []).extend([member] * count)
    done: list[tuple[IntArray, IntArray]] = []
    for part, mine in owners.items():
        ordered = np.sort(np.array(mine, np.int64))
        rows = found.rows[part][: len(ordered)]
        wanting = {i: liked[i] for i in dict.fromkeys(ordered.tolist()) if i in liked}
        ordered = hand_out(instance, ordered, rows, wanting)
        done.append((np.repeat(ordered, part.gpus), rows.ravel()))
    return _Answer(True, True, True, _joined(done, 0), _joined(done, 1))
