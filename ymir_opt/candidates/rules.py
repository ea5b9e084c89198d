"""Which jobs may share, by level, tenant, model, kind and history (contract, modes and sharing)."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.snapshot import Mode, Sharing
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.rowwise import all_of, any_of, min_of

__all__ = ["Rules"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LEVELS = {level: i for i, level in enumerate(Sharing)}


class Rules:
    """Vectorised tests on sets of jobs, int64[M, K] padded with -1.

    Attributes
    ----------
    possible : dict of mode to bool[class, class]
        What `PairFinder` has learnt of pairs of classes, for all passes.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        instance = evaluator.instance
        jobs = instance.jobs
        self.level = np.array([LEVELS[j.sharing] for j in jobs], dtype=np.int64)
        tenants: dict[str, int] = {}
        self.tenant = np.array(
            [tenants.setdefault(instance.tenant(i), len(tenants)) for i in range(len(jobs))], dtype=np.int64
        )
        keys: dict[tuple[object, ...], int] = {}
        self.trained = np.array(
            [keys.setdefault((j.foundation_model, j.peft_type, j.config), len(keys)) for j in jobs],
            dtype=np.int64,
        )
        specs: dict[object, int] = {None: -1}
        self.workers = np.array([specs.setdefault(j.workers, len(specs)) for j in jobs], dtype=np.int64)
        self.possible: dict[Mode, BoolArray] = {}
        self.joint_now = np.full(len(jobs), -1, dtype=np.int64)
        for row, group in enumerate(instance.running):
            if group.mode is Mode.JOINT:
                self.joint_now[list(group.holders)] = row

    def allowed(self, mode: Mode, sets: IntArray) -> BoolArray:
        """Return which sets of two or more jobs may form a new group of this mode."""
        jobs = self.evaluator.jobs
        present = sets >= 0
        safe = np.where(present, sets, sets[:, :1])
        ok = all_of(jobs.startable[safe]) & ~any_of(jobs.rigid[safe])
        ok &= _equal(self.workers[safe])
        level = min_of(self.level[safe])
        if mode in (Mode.GPU_SHARE, Mode.COLOCATE):
            ok &= level >= LEVELS[Sharing.BACKBONE]
        else:
            same = _equal(self.tenant[safe]) & (level >= LEVELS[Sharing.TENANT])
            ok &= same | (level >= LEVELS[Sharing.ALL])
        if mode is not Mode.GPU_SHARE:
            ok &= _equal(jobs.fm[safe]) & (jobs.fm[safe[:, 0]] >= 0)
        if mode is Mode.JOINT:
            ok &= _equal(self.trained[safe])
            fresh = all_of(jobs.done[safe] == 0)
            together = _equal(self.joint_now[safe]) & (self.joint_now[safe[:, 0]] >= 0)
            ok &= fresh | together
        return ok & ~self._rejected(mode, sets)

    def _rejected(self, mode: Mode, sets: IntArray) -> BoolArray:
        """Return the sets that contain a rejected merge of the same mode."""
        out = np.zeros(len(sets), dtype=np.bool_)
        for rows in self._rejections.get(mode, ()):
            hit = np.ones(len(sets), dtype=np.bool_)
            for row in rows:
                hit &= any_of(sets == row)
            out |= hit
        return out

    @cached_property
    def _rejections(self) -> dict[Mode, list[tuple[int, ...]]]:
        instance = self.evaluator.instance
        version = self.evaluator.estimates.version
        out: dict[Mode, list[tuple[int, ...]]] = {}
        for merge in instance.snapshot.rejected_merges:
            if merge.estimator_version is not None and merge.estimator_version != version:
                continue
            if all(name in instance.job_row for name in merge.jobs):
                out.setdefault(merge.mode, []).append(tuple(instance.job_row[name] for name in merge.jobs))
        return out

    @cached_property
    def selector_row(self) -> IntArray:
        """Row of each job's node selector among the distinct ones (0 is the empty one)."""
        rows: dict[tuple[tuple[str, str], ...], int] = {(): 0}
        return np.array(
            [
                rows.setdefault(tuple(sorted(j.node_selector.items())), len(rows))
                for j in self.evaluator.instance.jobs
            ],
            dtype=np.int64,
        )


def _equal(values: IntArray) -> BoolArray:
    return all_of(values == values[:, :1])
