"""The exact search for a placement: the node-level model with fixed demands, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import UNBOUNDED, LinearModel, ModelBuilder
from ymir_opt.formulation.nodes import NodeModel, SiteModel, node_model
from ymir_opt.formulation.parts import Split
from ymir_opt.formulation.shapes import Shape
from ymir_opt.formulation.sites import Kinds

__all__ = ["NODE_LIMIT", "SIZE_LIMIT", "Found", "search"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NODE_LIMIT = 5_000
"""Branch-and-bound nodes after which the search gives up; deterministic, unlike a time limit."""

SIZE_LIMIT = 30_000
"""Variables above which the search is not tried: only where GPUs of a type are of hundreds of kinds."""


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes
    ----------
    ok : bool
        A placement was found.
    proven : bool
        The answer is proven (always true if ``ok``).
    splits : for each shape how many groups use which split
    rows : dict
        Part to GPU rows, int64[count, size].
    """

    ok: bool
    proven: bool
    splits: tuple[tuple[tuple[Split, int], ...], ...] = ()
    rows: dict[Shape, IntArray] | None = None


def search(
    instance: Instance,
    open_gpu: BoolArray,
    keeps: Sequence[int],
    t: int,
    shapes: Sequence[Shape],
    counts: Sequence[int],
    *,
    node_limit: int = NODE_LIMIT,
) -> Found:
    """Find GPUs for ``counts[s]`` groups of each shape ``s`` of one type, or prove that there are none.

    Parameters
    ----------
    instance : Instance
    open_gpu : bool[U]
        Free GPUs.
    keeps : sequence of int
        Kept running groups, whose CPUs and host memory are taken.
    t : int
        GPU type row.
    shapes : sequence of Shape
        Distinct.
    counts : sequence of int
    node_limit : int
        Branch-and-bound nodes.
    """
    builder = ModelBuilder()
    amount = np.array(counts, np.int64)
    x = builder.variables(np.zeros(len(amount), np.int64), amount, amount)
    model = node_model(
        builder, instance, open_gpu, t, shapes, [x[i : i + 1] for i in range(len(x))], fixed=keeps
    )
    stated = builder.build()
    if stated.variables > SIZE_LIMIT:
        return Found(False, False)
    point, proven = _solve(stated, node_limit)
    if point is None:
        return Found(False, proven and model.exact)
    return _read(instance, open_gpu & (instance.gpu_type == t), model, counts, point)


def _solve(model: LinearModel, node_limit: int) -> tuple[IntArray | None, bool]:
    """Return a feasible point or None, and whether the answer is proven."""
    import highspy

    # the subclass's constructor registers callbacks, and that prints a banner before any option is set
    highs = highspy.Highs.__bases__[0]()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("parallel", "off")
    highs.setOptionValue("random_seed", 0)
    highs.setOptionValue("mip_max_nodes", node_limit)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.variables, model.rows
    lp.col_cost_ = model.cost.astype(np.float64)
    lp.col_lower_ = model.lower.astype(np.float64)
    lp.col_upper_ = _bound(model.upper)
    lp.row_lower_ = _bound(model.row_lower)
    lp.row_upper_ = _bound(model.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.row_start.astype(np.int32)
    lp.a_matrix_.index_ = model.index.astype(np.int32)
    lp.a_matrix_.value_ = model.value.astype(np.float64)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * model.variables
    highs.passModel(lp)
    highs.run()
    status = highs.getModelStatus()
    if status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
        point = np.rint(np.array(highs.getSolution().col_value)).astype(np.int64)
        if not len(model.violated(point)):
            return point, True
        return None, False
    # without costs nothing is unbounded
    return None, status in (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
    )


def _bound(values: IntArray) -> NDArray[np.float64]:
    out = values.astype(np.float64)
    out[values >= UNBOUNDED] = np.inf
    out[values <= -UNBOUNDED] = -np.inf
    return out


def _read(
    instance: Instance, open_gpu: BoolArray, model: NodeModel, counts: Sequence[int], point: IntArray
) -> Found:
    chosen: list[tuple[tuple[Split, int], ...]] = []
    for items, variables, count in zip(model.splits, model.split_variable, counts, strict=True):
        amount = point[variables].tolist() if len(variables) else [count]
        chosen.append(tuple((split, n) for split, n in zip(items, amount, strict=True) if n))
    kinds = Kinds.of(instance, model.parts)
    rows: dict[Shape, list[list[int]]] = {part: [] for part in model.parts}
    for site in model.sites:
        for node, parts in _on_nodes(site, point):
            if parts:
                free = np.flatnonzero(open_gpu & (instance.gpu_node == node)).tolist()
                for p, gpus in _share_node(free, kinds, parts, [model.parts[p].gpus for p in parts]):
                    rows[model.parts[p]].append(gpus)
    return Found(
        True,
        True,
        tuple(chosen),
        {part: np.array(found, np.int64).reshape(-1, part.gpus) for part, found in rows.items()},
    )


def _on_nodes(site: SiteModel, point: IntArray) -> list[tuple[int, list[int]]]:
    """Return for each node of the site the parts on it."""
    amount = {p: int(point[v]) for p, v in site.count.items()}
    if not site.patterns:
        return [(site.site.nodes[0], [p for p, n in amount.items() for _ in range(n)])]
    slots: list[tuple[int, int]] = []
    used = 0
    for pattern, times in zip(site.patterns, point[site.pattern_variable].tolist(), strict=True):
        for _ in range(times):
            slots += [(kind, used) for kind, n in pattern for _ in range(n)]
            used += 1
    parts: list[list[int]] = [[] for _ in site.site.nodes]
    queue = {
        kind: [p for p, n in sorted(amount.items()) if site.local[p] == kind for _ in range(n)]
        for kind in set(site.local.values())
    }
    for kind, at in slots:
        if queue[kind]:
            parts[at].append(queue[kind].pop())
    return list(zip(site.site.nodes, parts, strict=True))


def _share_node(
    free: list[int], kinds: Kinds, parts: list[int], sizes: list[int]
) -> list[tuple[int, list[int]]]:
    """Match GPUs of a node to parts by augmenting paths; the model has made sure that it is possible."""
    accepted = [[u for u in free if kinds.accept[p] >> int(kinds.of_gpu[u]) & 1] for p in parts]
    owner: dict[int, int] = {}

    def give(i: int, seen: set[int]) -> bool:
        for u in accepted[i]:
            if u in seen:
                continue
            seen.add(u)
            if u not in owner or give(owner[u], seen):
                owner[u] = i
                return True
        return False

    for i in sorted(range(len(parts)), key=lambda i: (len(accepted[i]), -sizes[i], i)):
        for _ in range(sizes[i]):
            if not give(i, set()):
                raise AssertionError("the node model accepted parts that do not fit their node")
    shares: list[list[int]] = [[] for _ in parts]
    for u in sorted(owner):
        shares[owner[u]].append(u)
    return list(zip(parts, shares, strict=True))
