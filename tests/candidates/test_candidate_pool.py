"""The pool of columns: nothing forbidden, nothing twice, nothing lost by pruning, every loss counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import scenario_kit as kit
from strategies import Recipe, random_snapshot

from ymir_opt.candidates import Pool, PoolLimits, generate
from ymir_opt.candidates import shards as SHARDS
from ymir_opt.domain.snapshot import (
    BackboneRow,
    JobState,
    Mode,
    Parallelism,
    RejectedMerge,
    Sharing,
    Snapshot,
    TransferMode,
)
from ymir_opt.estimates import Estimates
from ymir_opt.formulation.columns import MODES, ColumnTable
from ymir_opt.formulation.evaluate import Evaluator
from ymir_opt.formulation.instance import Instance
from ymir_opt.formulation.model import build
from ymir_opt.formulation.parameters import Parameters
from ymir_opt.formulation.quota import QuotaTable
from ymir_opt.solvers import registry

# the package exports the function under the module's name
MODULE = sys.modules[generate.__module__]
EVERYTHING = PoolLimits(exhaustive_below=10**9)
HEURISTIC = PoolLimits(exhaustive_below=0)
NARROW = PoolLimits(exhaustive_below=0, pairs_per_job=1, grown_per_job=1, all_counts_to=1)
BACKBONE = (BackboneRow(foundation_model=kit.FM, gib=1.0),)
SMALL = Recipe(jobs=6, nodes=3, node_sizes=(1, 2, 4), models=2, tasks=3)
MERGING = Recipe(
    jobs=6, nodes=2, node_sizes=(1, 2), gpu_types=("A100",), models=1, tasks=3, queues=False, rigid=False
)
LARGER = Recipe(jobs=14, nodes=4, node_sizes=(2, 4, 8), models=2, tasks=4)


def evaluator_of(snapshot: Snapshot) -> Evaluator:
    return Evaluator(Instance.of(snapshot), Estimates(snapshot), Parameters())


def pool_of(snapshot: Snapshot, limits: PoolLimits | None = None, **options) -> Pool:
    return generate(evaluator_of(snapshot), limits, **options)


def unpruned(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, limits: PoolLimits | None = None) -> Pool:
    with monkeypatch.context() as patch:
        for module in (MODULE, SHARDS):
            patch.setattr(module, "dominance", lambda table, *_: table)
        return pool_of(snapshot, limits)


def optimum(snapshot: Snapshot, table: ColumnTable) -> int:
    """Best objective over these columns, with exact placement, in quanta."""
    evaluator = evaluator_of(snapshot)
    instance = evaluator.instance
    quotas = QuotaTable(instance)
    table = table.take(np.flatnonzero(quotas.allowed(table)))
    round_model = build(
        instance,
        table,
        quotas,
        available=instance.gpu_ready,
        pinned=evaluator.pinned,
        profiled=np.zeros(len(quotas.rows), np.int64),
        exact_types=range(len(instance.types)),
    )
    found = registry.get("highs").solve(round_model.model)
    assert found.objective is not None
    assert found.objective == found.bound
    return found.objective


def new_groups(
    snapshot: Snapshot, table: ColumnTable
) -> Iterator[tuple[Mode, tuple[int, ...], int, str, int]]:
    """Mode, members in order, GPUs, type, column of every new column."""
    types = Instance.of(snapshot).types
    for c in np.flatnonzero(table.keep < 0).tolist():
        members = tuple(int(j) for j in table.jobs[c] if j >= 0)
        yield MODES[table.mode[c]], members, int(table.gpus[c]), types[table.type[c]], c


def pools(count: int = 25) -> Iterator[tuple[Snapshot, Pool]]:
    for seed in range(count):
        snapshot = random_snapshot(seed, SMALL if seed % 2 else LARGER)
        yield snapshot, pool_of(snapshot)


def test_no_column_occurs_twice() -> None:
    for snapshot, pool in pools():
        table = pool.table
        seen = set()
        for c in range(len(table)):
            members = [int(j) for j in table.jobs[c] if j >= 0]
            assert len(set(members)) == len(members) == table.size[c]
            head = members[0] if MODES[table.mode[c]] is Mode.SEQUENCE else -1
            key = (frozenset(members), head, int(table.shape[c]), int(table.keep[c]))
            assert key not in seen
            seen.add(key)
        assert len(table.shapes) == len(set(table.shapes))
        kept = table.keep[table.keep >= 0].tolist()
        running = Instance.of(snapshot).running
        assert kept == [r for r, group in enumerate(running) if group.keepable]


def test_groups_respect_sharing_levels_tenants_models_and_history() -> None:
    shared = 0
    for snapshot, pool in pools(40):
        jobs = snapshot.jobs
        joint_now = [set(g.jobs) for g in snapshot.groups if g.mode is Mode.JOINT]
        for mode, members, _, _, _ in new_groups(snapshot, pool.table):
            if mode is Mode.SOLO:
                continue
            shared += 1
            group = [jobs[j] for j in members]
            levels = {job.sharing for job in group}
            tenants = {job.tenant or job.queue for job in group}
            assert all(job.remaining_s is None for job in group)
            assert Sharing.NONE not in levels
            if mode is not Mode.GPU_SHARE:
                assert len({job.foundation_model for job in group}) == 1
            if mode in (Mode.JOINT, Mode.SEQUENCE):
                assert Sharing.BACKBONE not in levels
                assert levels == {Sharing.ALL} or len(tenants) == 1
            if mode is Mode.JOINT:
                assert len({(job.peft_type, job.config) for job in group}) == 1
                names = {job.id for job in group}
                assert all(job.done_samples == 0 for job in group) or any(names <= g for g in joint_now)
            for merge in snapshot.rejected_merges:
                assert merge.mode is not mode or not set(merge.jobs) <= {job.id for job in group}
            assert len({job.workers for job in group}) == 1
    assert shared > 200


def test_columns_have_counts_and_types_that_every_member_allows() -> None:
    for snapshot, pool in pools(30):
        instance = Instance.of(snapshot)
        for mode, members, gpus, gpu_type, c in new_groups(snapshot, pool.table):
            group = [snapshot.jobs[j] for j in members]
            shape = pool.table.shapes[pool.table.shape[c]]
            assert (shape.gpus, instance.types[shape.type]) == (gpus, gpu_type)
            most = []
            for one in group:
                least = one.min_gpus or 1
                most.append(one.max_gpus if one.max_gpus is not None else one.requested_gpus or least)
                if one.workers is not None:
                    least = most[-1] = one.workers.count * one.workers.gpus_each
                    assert shape.worker == one.workers.gpus_each
                assert least <= gpus
                assert one.gpu_types is None or gpu_type in one.gpu_types
                if mode is not Mode.JOINT:
                    assert gpus <= most[-1]
                    assert one.gpu_counts is None or gpus in one.gpu_counts
                if one.parallelism is Parallelism.PIPELINE:
                    assert shape.whole
                assert set(one.node_selector.items()) <= set(shape.selector)
                assert one.state is JobState.RUNNING or not (
                    one.not_before_s is not None and one.not_before_s > snapshot.taken_at_s
                )
            if mode is Mode.JOINT:
                assert gpus <= sum(most)


def test_pruning_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum over all columns and that over the undominated ones are the same to the last quantum."""
    dropped = 0
    for seed in range(30):
        snapshot = random_snapshot(seed, MERGING if seed % 2 else SMALL, jobs=5, exact_jobs=True)
        everything, pruned = unpruned(monkeypatch, snapshot), pool_of(snapshot)
        assert len(everything.table) == len(pruned.table) + pruned.dominated
        dropped += pruned.dominated
        assert optimum(snapshot, pruned.table) == optimum(snapshot, everything.table), seed
    assert dropped > 50


def test_figures_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(0, 24, 3):
        snapshot = random_snapshot(seed, LARGER)
        everything, pool = unpruned(monkeypatch, snapshot), pool_of(snapshot)
        kept = int((pool.table.keep >= 0).sum())
        assert pool.generated == everything.generated
        assert pool.dropped == everything.dropped
        assert everything.dominated == 0
        # evaluated = inadmissible + dominated + in the pool
        assert pool.generated >= len(pool.table) - kept + pool.dominated
        assert sum(pool.by_mode().values()) == len(pool.table)
        assert pool.exhaustive == (pool.dropped == 0)


def test_no_heuristics_below_eight_jobs() -> None:
    for seed in range(20):
        snapshot = random_snapshot(seed, LARGER, jobs=7, exact_jobs=True)
        pool = pool_of(snapshot)
        assert pool.exhaustive
        everything = pool_of(snapshot, EVERYTHING)
        assert np.array_equal(pool.table.cost, everything.table.cost)
        assert np.array_equal(pool.table.jobs, everything.table.jobs)


def test_a_pool_that_claims_to_be_exhaustive_has_the_optimum() -> None:
    """Beam, menus and start limits are honest: if nothing is counted as dropped, nothing is lost."""
    claimed = admitted = worse = 0
    for seed in range(40):
        snapshot = random_snapshot(seed, MERGING if seed % 2 else SMALL)
        beam, everything = pool_of(snapshot, HEURISTIC if seed % 3 else NARROW), pool_of(snapshot, EVERYTHING)
        got, best = optimum(snapshot, beam.table), optimum(snapshot, everything.table)
        assert got >= best
        if beam.exhaustive:
            claimed += 1
            assert got == best, seed
        else:
            admitted += 1
            worse += got > best
    assert claimed > 10
    assert admitted > 3
    assert worse < admitted


def test_a_narrow_beam_counts_what_it_drops() -> None:
    jobs = [kit.job(f"j{i}", sharing=Sharing.ALL, hours=1 + i) for i in range(8)]
    rows = {
        "backbone_gib": BACKBONE,
        "colocation": (kit.share_rows(Mode.COLOCATE, 2, 0.9), kit.share_rows(Mode.COLOCATE, 3, 0.8)),
    }
    snapshot = kit.snapshot([kit.node("a", 2)], jobs, profiles=rows)
    wide = pool_of(snapshot)
    narrow = pool_of(snapshot, PoolLimits(pairs_per_job=1, grown_per_job=1))
    assert narrow.dropped > 0
    assert not narrow.exhaustive
    assert narrow.by_mode()["colocate"] < wide.by_mode()["colocate"]
    assert narrow.by_mode()["solo"] == wide.by_mode()["solo"]


def test_counts_that_jobs_list_are_tried_in_large_instances() -> None:
    """A job that runs on 5, 6 or 7 GPUs only is not left without a column."""
    jobs = [kit.job(f"j{i}") for i in range(9)]
    odd = kit.job("odd", gpus=5, hours=1, min_gpus=1, max_gpus=8, gpu_counts=(5, 6, 7))
    snapshot = kit.snapshot([kit.node("a", 8)], [*jobs, odd])
    pool = pool_of(snapshot)
    found = {gpus for _, members, gpus, _, _ in new_groups(snapshot, pool.table) if members == (9,)}
    assert found == {5, 6, 7}


def test_counts_of_joint_groups_that_are_left_out_are_counted() -> None:
    """Members of at most 3 GPUs make a pair of up to 6; 5 and 6 are not tried in large instances."""
    jobs = [
        kit.job(f"j{i}", hours=2, min_gpus=1, max_gpus=3, sharing=Sharing.ALL, task=f"t{i % 2}")
        for i in range(8)
    ]
    rows = tuple(
        kit.transfer(TransferMode.JOINT, source, target, 0.5)
        for source in ("t0", "t1")
        for target in ("t0", "t1")
    )
    batches = tuple(
        row.model_copy(update={"batch_size": 32 * k}) for row in kit.throughput() for k in (1, 2, 3, 4)
    )
    snapshot = kit.snapshot([kit.node("a", 8)], jobs, profiles={"transfer": rows, "throughput": batches})
    wide = PoolLimits(pairs_per_job=10**6, grown_per_job=10**6)
    pool = pool_of(snapshot, wide)
    tried = {gpus for mode, _, gpus, _, _ in new_groups(snapshot, pool.table) if mode is Mode.JOINT}
    assert tried
    assert not tried & {5, 7}
    assert not pool.exhaustive


def test_a_joint_group_with_a_row_of_its_own_needs_no_pairs() -> None:
    """Three tasks measured together but never in pairs: found in small pools, else counted as lost."""
    trio = [kit.job(f"t{i}", hours=3, sharing=Sharing.ALL, task=f"t{i}", max_gpus=2) for i in range(3)]
    rest = [kit.job(f"j{i}") for i in range(6)]
    rows = tuple(
        kit.transfer(TransferMode.JOINT, tuple(f"t{k}" for k in range(3) if k != i), f"t{i}", 0.3)
        for i in range(3)
    )
    batches = tuple(
        row.model_copy(update={"batch_size": 32 * k}) for row in kit.throughput() for k in (1, 2, 3)
    )
    snapshot = kit.snapshot(
        [kit.node("a", 4)], [*trio, *rest], profiles={"transfer": rows, "throughput": batches}
    )

    def groups(pool: Pool) -> set[tuple[int, ...]]:
        return {m for mode, m, _, _, _ in new_groups(snapshot, pool.table) if mode is Mode.JOINT}

    assert groups(pool_of(snapshot, EVERYTHING)) == {(0, 1, 2)}
    beam = pool_of(snapshot)
    assert groups(beam) == {(0, 1, 2)} or not beam.exhaustive


def _sharing_pair(**fields) -> Snapshot:
    jobs = [kit.job(f"j{i}", sharing=Sharing.ALL) for i in range(3)]
    rows = {
        "backbone_gib": BACKBONE,
        "colocation": tuple(kit.share_rows(Mode.COLOCATE, k, 0.9) for k in (2, 3)),
    }
    return kit.snapshot([kit.node("a", 2)], jobs, profiles=rows, **fields)


def test_rejected_merges_bar_their_supersets_in_their_mode_until_the_estimator_changes() -> None:
    def groups(*rejected: RejectedMerge) -> set[tuple[int, ...]]:
        snapshot = _sharing_pair(rejected_merges=rejected)
        return {m for mode, m, _, _, _ in new_groups(snapshot, pool_of(snapshot).table) if len(m) > 1}

    every = {(0, 1), (0, 2), (1, 2), (0, 1, 2)}
    assert groups() == every
    pair = {"jobs": ("j1", "j0"), "at_s": kit.NOW - 60}
    assert groups(RejectedMerge(mode=Mode.COLOCATE, **pair)) == {(0, 2), (1, 2)}
    assert groups(RejectedMerge(mode=Mode.JOINT, **pair)) == every
    version = Estimates(_sharing_pair()).version
    assert groups(RejectedMerge(mode=Mode.COLOCATE, estimator_version=version, **pair)) == {(0, 2), (1, 2)}
    assert groups(RejectedMerge(mode=Mode.COLOCATE, estimator_version="older", **pair)) == every
    trio = RejectedMerge(mode=Mode.COLOCATE, jobs=("j0", "j1", "j2"), at_s=kit.NOW - 60)
    assert groups(trio) == every - {(0, 1, 2)}


@pytest.mark.parametrize(
    ("first", "second", "same_tenant", "modes"),
    [
        (Sharing.ALL, Sharing.ALL, False, {Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE}),
        (Sharing.ALL, Sharing.TENANT, False, {Mode.COLOCATE}),
        (Sharing.ALL, Sharing.TENANT, True, {Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE}),
        (Sharing.TENANT, Sharing.TENANT, True, {Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE}),
        (Sharing.ALL, Sharing.BACKBONE, True, {Mode.COLOCATE}),
        (Sharing.BACKBONE, Sharing.BACKBONE, False, {Mode.COLOCATE}),
        (Sharing.ALL, Sharing.NONE, True, set()),
    ],
)
@pytest.mark.parametrize("others", [0, 8])
def test_what_each_level_of_sharing_allows(first, second, same_tenant, modes, others) -> None:
    """The same in the exhaustive and in the heuristic enumeration; colocate stands for gpu_share too."""
    pair = [
        kit.job("a", hours=4, sharing=first, tenant="t"),
        kit.job("b", hours=5, sharing=second, tenant="t" if same_tenant else "u"),
    ]
    rows = {
        "backbone_gib": BACKBONE,
        "colocation": (kit.share_rows(Mode.COLOCATE, 2, 0.95),),
        "transfer": tuple(
            kit.transfer(mode, x, y, 0.5) for mode in TransferMode for x, y in (("a", "b"), ("b", "a"))
        ),
        "throughput": (
            *kit.throughput(),
            *(r.model_copy(update={"batch_size": 64}) for r in kit.throughput()),
        ),
    }
    alone = [kit.job(f"z{i}") for i in range(others)]
    # few GPUs and much age: every admissible group gains something
    snapshot = kit.snapshot([kit.node("n", 1)], [*pair, *alone], profiles=rows)
    found = new_groups(snapshot, pool_of(snapshot).table)
    by_members: dict[Mode, set[tuple[int, ...]]] = {}
    for mode, members, _, _, _ in found:
        if len(members) > 1:
            assert set(members) == {0, 1}
            by_members.setdefault(mode, set()).add(members)
    wanted = {Mode.COLOCATE} if Mode.COLOCATE in modes else set()
    # a joint pair may be undercut by a cheaper group with the same footprint, sequences never are
    assert set(by_members) <= modes
    if modes:
        assert set(by_members) & (wanted | {Mode.JOINT})
    assert (Mode.SEQUENCE in by_members) == (Mode.SEQUENCE in modes)


def test_barred_jobs_and_no_merging() -> None:
    snapshot = _sharing_pair()
    barred = np.array([True, False, False])
    groups = [m for _, m, _, _, _ in new_groups(snapshot, pool_of(snapshot, barred=barred).table)]
    assert groups
    assert not any(0 in members for members in groups)
    assert pool_of(snapshot, merge=False).by_mode()["colocate"] == 0
    assert pool_of(snapshot).by_mode()["colocate"] > 0


def test_every_pair_and_trio_that_can_be_evaluated_is_in_a_small_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal jobs, rows for pairs and trios: all sets occur, in every mode that has rows."""
    jobs = [kit.job(f"j{i}", sharing=Sharing.ALL) for i in range(5)]
    rows = {"colocation": tuple(kit.share_rows(Mode.GPU_SHARE, k, 0.9) for k in (2, 3))}
    snapshot = kit.snapshot([kit.node("a", 2)], jobs, profiles=rows)
    pool = unpruned(monkeypatch, snapshot)
    found = {m for mode, m, _, _, _ in new_groups(snapshot, pool.table) if mode is Mode.GPU_SHARE}
    assert found == {*combinations(range(5), 2), *combinations(range(5), 3)}


def test_empty_instances() -> None:
    for snapshot in (
        Snapshot(taken_at_s=0.0),
        kit.snapshot([], [kit.job("a")]),
        kit.snapshot([kit.node("a", 0)], [kit.job("a")]),
        kit.snapshot([kit.node("a", 4)], []),
    ):
        pool = pool_of(snapshot)
        assert len(pool.table) == 0
        assert pool.exhaustive
