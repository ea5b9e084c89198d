"""Models and an oracle for the solver tests."""

from __future__ import annotations

import itertools

import numpy as np

from ymir_opt.formulation.linear import UNBOUNDED, LinearModel, ModelBuilder

IntArray = np.ndarray


def brute_force(model: LinearModel, largest: int = 3) -> int | None:
    """Return the optimum by enumeration; variables without an upper bound are tried up to `largest`."""
    ranges = [
        range(int(low), int(low + largest if high >= UNBOUNDED else high) + 1)
        for low, high in zip(model.lower, model.upper, strict=True)
    ]
    points = np.array(list(itertools.product(*ranges)), dtype=np.int64).reshape(-1, model.variables)
    dense = np.zeros((model.rows, model.variables), np.int64)
    row = np.repeat(np.arange(model.rows), np.diff(model.row_start))
    np.add.at(dense, (row, model.index), model.value)
    activity = points @ dense.T
    good = np.all((activity >= model.row_lower) & (activity <= model.row_upper), axis=1)
    if not good.any():
        return None
    return int((points[good] @ model.cost).min()) + model.offset


def small_model(seed: int) -> LinearModel:
    """Return a random model that `brute_force` can enumerate: coverage, packing, cover, ranges, excesses."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    top = int(10 ** rng.integers(1, 10))
    builder = ModelBuilder(offset=int(rng.integers(-top, top)))
    x = builder.variables(rng.integers(-top // 2, top, size))
    general = builder.variables(rng.integers(1, top + 1, 2), lower=np.array([-1, 0]), upper=np.array([1, 2]))
    # an excess without an upper bound, at a price: needed at most 3 times below
    excess = builder.variables(np.array([top]), upper=UNBOUNDED, relaxable=True)
    everything = np.concatenate([x, general])
    for _ in range(int(rng.integers(0, 4))):
        some = rng.choice(everything, size=int(rng.integers(1, len(everything) + 1)), replace=False)
        kind = int(rng.integers(0, 4))
        if kind == 0:
            builder.row(some, 1, 1, 1, "coverage")
        elif kind == 1:
            builder.row(some, rng.integers(1, 6, len(some)), -UNBOUNDED, int(rng.integers(0, 9)), "packing")
        elif kind == 2:
            builder.row(some, rng.integers(-3, 4, len(some)), int(rng.integers(-3, 4)), UNBOUNDED, "cover")
        else:
            low = int(rng.integers(-2, 3))
            builder.row(some, rng.integers(-2, 3, len(some)), low, low + 2, "range")
    # usage - 4 excess <= quota, so that at most 3 excesses are ever needed
    usage = rng.integers(0, 2, size)
    index, value = np.concatenate([x, excess]), np.concatenate([usage, [-4]])
    builder.row(index, value, -UNBOUNDED, int(rng.integers(0, 5)), "quota")
    return builder.build()


def packing_model(
    seed: int, jobs: int = 40, columns: int = 160, capacity: int = 16, top: int = 10**9
) -> LinearModel:
    """Return a set-packing model: every job in one column or queued, GPUs within the capacity."""
    rng = np.random.default_rng(seed)
    builder = ModelBuilder(offset=int(rng.integers(0, top)))
    queued = rng.integers(top // 4, top, jobs)
    members = [rng.choice(jobs, size=int(rng.integers(1, 5)), replace=False) for _ in range(columns)]
    cost = np.array([int(queued[m].sum() * rng.uniform(0.2, 1.0)) for m in members])
    x, wait = builder.variables(cost), builder.variables(queued)
    count = [len(m) for m in members]
    row = np.concatenate([*members, np.arange(jobs)])
    index = np.concatenate([np.repeat(x, count), wait])
    one = np.ones(jobs, np.int64)
    builder.rows(row, index, np.ones(len(row), np.int64), one, one, "coverage")
    builder.row(x, rng.integers(1, 5, columns), -UNBOUNDED, capacity, "capacity")
    return builder.build()


def queue_all(model: LinearModel, jobs: int = 40) -> IntArray:
    """Return the point of a packing model that leaves every job out."""
    x = np.zeros(model.variables, np.int64)
    x[-jobs:] = 1
    return x


def greedy_point(model: LinearModel, jobs: int = 40) -> IntArray:
    """Return a point of a packing model with one column chosen, better than `queue_all`."""
    x = queue_all(model, jobs)
    row = np.repeat(np.arange(model.rows), np.diff(model.row_start))
    for column in range(model.variables - jobs):
        y = x.copy()
        y[column] = 1
        covered = row[(model.index == column) & (row < jobs)]
        y[model.variables - jobs + covered] = 0
        if len(model.violated(y)) == 0 and model.objective(y) < model.objective(x):
            return y
    raise AssertionError("no column fits")
