"""Profile rows of a view: what its speed and transfer tables say, for the classes that are present."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np

from ymir_opt.domain.snapshot import (
    ColocationMember,
    ColocationRow,
    Mode,
    Profiles,
    Provenance,
    SwitchRow,
    ThroughputRow,
    TransferMode,
    TransferRow,
)
from ymir_opt.policies.view import SnapshotView, TransferTable

__all__ = ["Z80", "ProfileRows", "adapter_name", "best_adapter", "task_name"]

Z80 = 1.2815515655446004
"""80 % of a normal distribution lie within so many standard deviations."""


def task_name(transfer: TransferTable, kind: int) -> str | None:
    """Return the task of a class; classes of one task with different settings are told apart."""
    if kind < 0:
        return None
    name = transfer.tasks[kind]
    same = [
        k
        for k, task in enumerate(transfer.tasks)
        if task == name and transfer.models[k] == transfer.models[kind]
    ]
    return name if len(same) == 1 else f"{name}#{same.index(kind)}"


class ProfileRows:
    """Rows by class set, built once for each set of classes."""

    def __init__(self) -> None:
        self._known: dict[tuple[frozenset[int], frozenset[int], frozenset[int]], Profiles] = {}

    def of(self, view: SnapshotView, adapters: frozenset[int]) -> Profiles:
        """Return the rows that concern the jobs of a view and the classes of completed adapters."""
        keys = frozenset(int(k) for k in np.unique(view.key) if k >= 0)
        kinds = frozenset(int(k) for k in np.unique(view.kind) if k >= 0)
        at = (keys, kinds, adapters)
        if at not in self._known:
            self._known[at] = Profiles(
                throughput=_throughput(view, keys),
                switch_s=_switch(view, keys),
                transfer=_transfer(view, kinds, adapters),
                colocation=_colocation(view, kinds),
            )
        return self._known[at]


def _throughput(view: SnapshotView, keys: frozenset[int]) -> tuple[ThroughputRow, ...]:
    """Return the rows of the active batches and of the batches of joint groups of the same models."""
    speed = view.speed
    models = {speed.names[k][0] for k in keys}
    rows = []
    for k, (model, batch) in enumerate(speed.names):
        if model not in models:
            continue
        for t, kind in enumerate(speed.types):
            for n in range(1, speed.counts + 1):
                rate, memory = float(speed.rate[k, t, n]), float(speed.memory_gib[k, t, n])
                if rate > 0:
                    rows.append(
                        ThroughputRow(
                            foundation_model=model,
                            gpu_type=kind,
                            gpus=n,
                            batch_size=batch,
                            samples_per_s=rate,
                            memory_gib=None if math.isnan(memory) else memory,
                        )
                    )
    return tuple(rows)


def _switch(view: SnapshotView, keys: frozenset[int]) -> tuple[SwitchRow, ...]:
    speed = view.speed
    rows = {}
    for k in sorted(keys):
        for t, kind in enumerate(speed.types):
            rows[speed.names[k][0], kind] = SwitchRow(
                foundation_model=speed.names[k][0],
                gpu_type=kind,
                cold_s=float(speed.cold_s[k, t]),
                warm_s=float(speed.warm_s[k, t]),
            )
    return tuple(rows.values())


def _transfer(view: SnapshotView, kinds: frozenset[int], adapters: frozenset[int]) -> tuple[TransferRow, ...]:
    """Return warm starts and joint pairs of active classes, and each one's best completed adapter."""
    table = view.transfer
    rows = []
    for target in sorted(kinds):
        for source in sorted(kinds - {target}):
            if table.models[source] != table.models[target]:
                continue
            for mode, ratio in (
                (TransferMode.WARM_START, table.warm[target, source]),
                (TransferMode.JOINT, table.joint[target, source]),
            ):
                rows += _row(table, mode, task_name(table, source), target, float(ratio))
        best = best_adapter(table, target, adapters)
        if best is not None:
            ratio = float(table.warm[target, best])
            rows += _row(table, TransferMode.WARM_START, adapter_name(best), target, ratio)
    return tuple(rows)


def _row(
    table: TransferTable, mode: TransferMode, source: str | None, target: int, ratio: float
) -> list[TransferRow]:
    task = task_name(table, target)
    if not ratio > 0 or source is None or task is None:
        return []
    spread = math.exp(Z80 * table.log_sd)
    return [
        TransferRow(
            mode=mode,
            foundation_model=table.models[target],
            source=source,
            target=task,
            work_ratio=ratio,
            low=ratio / spread if table.log_sd else None,
            high=ratio * spread if table.log_sd else None,
            provenance=Provenance.PREDICTED if table.log_sd else Provenance.MEASURED,
            matched_hyperparameters=False,
        )
    ]


def adapter_name(kind: int) -> str:
    """Return the id of the adapter that a completed job of a class left."""
    return f"adapter-{kind}"


def best_adapter(table: TransferTable, target: int, adapters: frozenset[int]) -> int | None:
    """Return the completed class from which a job of class `target` has least work, None if none saves any.

    Every other adapter is dominated: a start from it differs in nothing but more work.
    """
    found = [
        (float(table.warm[target, source]), source)
        for source in adapters
        if table.models[source] == table.models[target] and 0 < table.warm[target, source] < 1
    ]
    return min(found)[1] if found else None


def _colocation(view: SnapshotView, kinds: frozenset[int]) -> tuple[ColocationRow, ...]:
    """Return measured pairs on one GPU."""
    table, speed = view.transfer, view.speed
    rows = []
    for a, b in combinations_with_replacement(sorted(kinds), 2):
        ratio = (table.share[a, b], table.share[b, a])
        if not (ratio[0] > 0 and ratio[1] > 0):
            continue
        members = tuple(
            ColocationMember(
                foundation_model=table.models[k], batch_size=table.batches[k], task=task_name(table, k)
            )
            for k in (a, b)
        )
        memory = float(table.share_gib[a, b])
        for kind in speed.types[:1]:
            rows.append(
                ColocationRow(
                    mode=Mode.GPU_SHARE,
                    gpu_type=kind,
                    gpus=1,
                    members=members,
                    speed_ratio=(float(ratio[0]), float(ratio[1])),
                    memory_gib=None if math.isnan(memory) else memory,
                )
            )
    return tuple(rows)
