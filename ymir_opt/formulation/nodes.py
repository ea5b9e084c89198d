"""The exact node-level model: a point of it is a placement, and every placement is a point.

Sets: shapes ``s``, their splits ``d``, the parts ``p`` that occur in them (a part lies on one node),
nodes ``n``, keepable running groups ``r``, GPU kinds ``k`` on a node (those that the same parts
accept: memory level and resident model). Variables, all integer:

* ``w[s, d]`` chosen groups of shape ``s`` in split ``d``: ``sum_d w[s, d] = sum_{c of s} x_c``;
* ``q[n, p]`` parts on node ``n``: ``sum_n q[n, p] >= sum_{s, d} m_p(d) w[s, d]``;
* on a node, for every set ``S`` of kinds that is a union of overlapping accepted sets (Hall's
  condition; disjoint unions follow): ``sum_{p accepts within S} size_p q[n, p] + sum_r a_r(n, S) x_r
  <= |S on n|``; where such sets are too many, flows ``y[n, p, k]`` instead;
* CPUs, and host memory alike: ``sum_p size_p u_p q[n, p] + sum_r use_r(n) x_r <= U_n``; where keepable
  groups can overuse a node a binary ``o_n`` tolerates it and then forbids new use;
* interchangeable nodes without keepable groups are one site with a count ``z`` of each maximal
  pattern of parts that one such node holds, which is exact (Gilmore and Gomory's cutting-stock
  columns) and free of symmetry.

Splits beyond `MAX_SPLITS` are left out: the model may then refuse a placeable set, never the reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ymir_opt.formulation.columns import ColumnTable
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.formulation.parts import Split, normalised, part_of, splits
from ymir_opt.formulation.shapes import Shape
from ymir_opt.formulation.sites import Site, find_sites, patterns, unions

__all__ = ["NodeModel", "SiteModel", "node_model", "node_rows"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class SiteModel:
    """Variables of one site: ``count[part]``, and for a site of many nodes its patterns.

    ``patterns[i]`` lists (local kind of part, how many); ``local[part]`` is a part's local kind.
    """

    site: Site
    count: dict[int, int]
    local: dict[int, int] = field(default_factory=dict)
    patterns: tuple[tuple[tuple[int, int], ...], ...] = ()
    pattern_variable: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class NodeModel:
    """Where the variables of a type's model are.

    Attributes
    ----------
    parts : tuple of Shape
    splits : for each shape its splits
    split_variable : for each shape the variables ``w``; empty where it has one split
    sites : list of SiteModel
    exact : bool
        False if splits were left out.
    """

    parts: tuple[Shape, ...]
    splits: tuple[tuple[Split, ...], ...]
    split_variable: tuple[IntArray, ...]
    sites: tuple[SiteModel, ...]
    exact: bool


def node_rows(
    builder: ModelBuilder,
    instance: Instance,
    available: BoolArray,
    table: ColumnTable,
    x: IntArray,
    types: Iterable[int],
) -> None:
    """Add the exact node-level model of these GPU types (formulas in the module docstring).

    Parameters
    ----------
    builder : ModelBuilder
    instance : Instance
    available : bool[U]
        GPUs on which something may start if nothing is kept there.
    table : ColumnTable
    x : int64[C]
        Variable of each column (binary; the columns of a job exclude each other elsewhere).
    types : iterable of int
        GPU type rows.
    """
    for t in sorted(set(types)):
        mine = [i for i, shape in enumerate(table.shapes) if shape.type == t]
        columns = {i: np.flatnonzero(table.shape == i) for i in mine}
        mine = [i for i in mine if len(columns[i])]
        keep = np.flatnonzero(table.keep >= 0)
        keeps = [
            (r, x[keep[table.keep[keep] == r]])
            for r in np.unique(table.keep[keep]).tolist()
            if instance.running[r].type == t
        ]
        node_model(
            builder,
            instance,
            available,
            t,
            [table.shapes[i] for i in mine],
            [x[columns[i]] for i in mine],
            keeps=keeps,
        )


def node_model(
    builder: ModelBuilder,
    instance: Instance,
    available: BoolArray,
    t: int,
    shapes: Sequence[Shape],
    demand: Sequence[IntArray],
    *,
    keeps: Sequence[tuple[int, IntArray]] = (),
    fixed: Sequence[int] = (),
) -> NodeModel:
    """Add the exact model of one type for ``sum(demand[s])`` groups of each shape ``s``.

    Parameters
    ----------
    builder, instance, available
        As in `node_rows`.
    t : int
        GPU type row.
    shapes : sequence of Shape
        All of type ``t``, each once.
    demand : sequence of int64 arrays
        Variables that sum to the number of groups of the shape.
    keeps : sequence of (running group, variables that sum to 1 if it is kept)
    fixed : sequence of int
        Running groups that are kept in any case. Their GPUs are used; their nodes' CPUs and host
        memory are reduced.

    Returns
    -------
    NodeModel
    """
    held = np.isin(instance.gpu_held, np.array(fixed, np.int64)) & (instance.gpu_held >= 0)
    open_gpu = available & instance.gpu_ready & ~held & (instance.gpu_type == t)
    parts: dict[Shape, int] = {}
    options = []
    exact = True
    for shape in shapes:
        found = splits(instance, shape)
        exact = exact and found.exact
        options.append(found.items)
        for split in found.items:
            for size, _ in split:
                parts.setdefault(part_of(normalised(instance, shape), size), len(parts))
    need: list[tuple[list[IntArray], list[IntArray]]] = [([], []) for _ in parts]
    total = int(open_gpu.sum())
    chosen: list[IntArray] = []
    for shape, items, variables in zip(shapes, options, demand, strict=True):
        if not items:
            builder.row(variables, 1, -UNBOUNDED, 0, "node_impossible")
        w = np.zeros(0, np.int64)
        if len(items) > 1:
            w = builder.variables(np.zeros(len(items), np.int64), 0, total // shape.gpus)
            builder.row(
                np.concatenate([w, variables]), [1] * len(w) + [-1] * len(variables), 0, 0, "node_split"
            )
        chosen.append(w)
        for i, split in enumerate(items):
            source = w[i : i + 1] if len(w) else variables
            for size, count in split:
                index, value = need[parts[part_of(normalised(instance, shape), size)]]
                index.append(source)
                value.append(np.full(len(source), count, np.int64))
    ordered = tuple(parts)
    sites = find_sites(instance, open_gpu, ordered, [r for r, _ in keeps], fixed)
    kept = dict(keeps)
    models = [model for site in sites for model in _site(builder, site, ordered, kept)]
    for p in range(len(ordered)):
        supply = np.array([m.count[p] for m in models if p in m.count], np.int64)
        builder.row(
            np.concatenate([supply, *need[p][0]]),
            np.concatenate([np.ones(len(supply), np.int64), *[-v for v in need[p][1]]]),
            0,
            UNBOUNDED,
            "node_part",
        )
    return NodeModel(ordered, tuple(options), tuple(chosen), tuple(models), exact)


def _site(
    builder: ModelBuilder, site: Site, parts: tuple[Shape, ...], kept: dict[int, IntArray]
) -> list[SiteModel]:
    if len(site.nodes) > 1:
        found = patterns(site, parts)
        if found is not None:
            return [_pattern_site(builder, site, parts, *found)]
    return [_single_site(builder, replace(site, nodes=(n,)), parts, kept) for n in site.nodes]


def _pattern_site(
    builder: ModelBuilder,
    site: Site,
    parts: tuple[Shape, ...],
    local: dict[int, int],
    found: tuple[tuple[tuple[int, int], ...], ...],
) -> SiteModel:
    """``sum_{p of local kind} q_p <= sum_pattern count z``, ``sum z <= nodes``."""
    m = len(site.nodes)
    z = builder.variables(np.zeros(len(found), np.int64), 0, m)
    builder.row(z, 1, -UNBOUNDED, m, "node_pattern")
    members = sorted(local)
    # given whole z and w the q form a transportation problem, whose vertices are whole
    q = builder.variables(
        np.zeros(len(members), np.int64),
        0,
        np.array([m * (site.total // parts[p].gpus) for p in members], np.int64),
        relaxable=True,
    )
    count = dict(zip(members, q.tolist(), strict=True))
    for kind in sorted(set(local.values())):
        mine = [count[p] for p in members if local[p] == kind]
        offered = [(int(v), dict(pattern).get(kind, 0)) for v, pattern in zip(z, found, strict=True)]
        offered = [(v, n) for v, n in offered if n]
        builder.row(
            [*mine, *(v for v, _ in offered)],
            [1] * len(mine) + [-n for _, n in offered],
            -UNBOUNDED,
            0,
            "node_pattern",
        )
    return SiteModel(site, count, local, found, z)


def _single_site(
    builder: ModelBuilder, site: Site, parts: tuple[Shape, ...], kept: dict[int, IntArray]
) -> SiteModel:
    """Count the parts on one node."""
    members = sorted(site.accept)
    q = builder.variables(
        np.zeros(len(members), np.int64),
        0,
        np.array([site.most(p, parts[p].gpus) for p in members], np.int64),
    )
    count = dict(zip(members, q.tolist(), strict=True))
    sets = unions(site.accept.values())
    if sets is None:
        _flow_rows(builder, site, parts, count, kept)
    else:
        for chosen in sets:
            inside = [p for p in members if site.accept[p] & ~chosen == 0]
            index = [np.array([count[p] for p in inside], np.int64)]
            value = [np.array([parts[p].gpus for p in inside], np.int64)]
            for r, by_kind in site.kept.items():
                held = sum(g for k, g in enumerate(by_kind) if chosen >> k & 1)
                index.append(kept[r])
                value.append(np.full(len(kept[r]), held, np.int64))
            builder.row(
                np.concatenate(index), np.concatenate(value), -UNBOUNDED, site.supply(chosen), "node_gpus"
            )
    for which, family in enumerate(("node_cpus", "node_host")):
        _resource_row(builder, site, parts, count, kept, which, family)
    return SiteModel(site, count)


def _flow_rows(
    builder: ModelBuilder,
    site: Site,
    parts: tuple[Shape, ...],
    count: dict[int, int],
    kept: dict[int, IntArray],
) -> None:
    """``sum_k y[p, k] = size_p q_p`` and ``sum_p y[p, k] + sum_r a_r(k) x_r <= f_k``."""
    into: dict[int, list[int]] = {}
    for p, q in count.items():
        kinds = [k for k in range(len(site.free)) if site.accept[p] >> k & 1 and site.free[k]]
        # whole by integrality of flows once q is whole
        y = builder.variables(
            np.zeros(len(kinds), np.int64), 0, np.array([site.free[k] for k in kinds]), relaxable=True
        )
        for k, variable in zip(kinds, y.tolist(), strict=True):
            into.setdefault(k, []).append(variable)
        builder.row([*y.tolist(), q], [1] * len(kinds) + [-parts[p].gpus], 0, 0, "node_flow")
    for k, variables in into.items():
        index = [np.array(variables, np.int64)]
        value = [np.ones(len(variables), np.int64)]
        for r, by_kind in site.kept.items():
            index.append(kept[r])
            value.append(np.full(len(kept[r]), by_kind[k], np.int64))
        builder.row(np.concatenate(index), np.concatenate(value), -UNBOUNDED, site.free[k], "node_flow")


def _resource_row(
    builder: ModelBuilder,
    site: Site,
    parts: tuple[Shape, ...],
    count: dict[int, int],
    kept: dict[int, IntArray],
    which: int,
    family: str,
) -> None:
    limit = site.limit[which]
    use = {p: parts[p].gpus * site.each[p][which] for p in count if site.each[p][which]}
    if limit is None or not use:
        return
    held = {r: amounts[which] for r, amounts in site.kept_use.items() if amounts[which]}
    index = [np.array([count[p] for p in use], np.int64)]
    value = [np.array(list(use.values()), np.int64)]
    for r, amount in held.items():
        index.append(kept[r])
        value.append(np.full(len(kept[r]), amount, np.int64))
    over = sum(held.values()) - limit
    if over > 0:
        # o = 1: the kept groups may overuse the node, and nothing new uses any of it
        o = builder.variables(np.zeros(1, np.int64))
        most = sum(u * site.most(p, parts[p].gpus) for p, u in use.items())
        builder.row([*(count[p] for p in use), int(o[0])], [*use.values(), most], -UNBOUNDED, most, family)
        index.append(o)
        value.append(np.full(1, -over, np.int64))
    divisor = int(np.gcd.reduce(np.concatenate(value)))
    builder.row(np.concatenate(index), np.concatenate(value) // divisor, -UNBOUNDED, limit // divisor, family)
