"""Invariant 4: shared groups have one foundation model, sharing levels allow them, memory fits."""

from __future__ import annotations

from collections.abc import Iterator

from ymir_opt.domain.base import short
from ymir_opt.domain.snapshot import Job, Mode, Sharing
from ymir_opt.verify.devices import SLACK
from ymir_opt.verify.facts import Facts, Placed
from ymir_opt.verify.memory import MemoryNeeds
from ymir_opt.verify.violation import Violation

__all__ = ["merging"]

_LEVEL = {level: i for i, level in enumerate(Sharing)}
_MODES_OF_ONE_MODEL = (Mode.COLOCATE, Mode.JOINT, Mode.SEQUENCE)


def merging(facts: Facts, needs: MemoryNeeds) -> Iterator[Violation]:
    """Yield every group that may not share as it does."""
    rejected = _rejected(facts)
    for placed in facts.placed:
        for message in _model(placed):
            yield Violation(4, f"{placed.place}.foundation_model", message)
        if placed.kept is not None:
            continue
        if len(placed.members) > 1:
            for message in _shared(facts, placed):
                yield Violation(4, f"{placed.place}.jobs", message)
            members = frozenset(job.id for job in placed.members)
            for merge in rejected.get(placed.group.mode, ()):
                if merge <= members:
                    names = ", ".join(sorted(short(name) for name in merge))
                    yield Violation(
                        4,
                        f"{placed.place}.jobs",
                        f"the {placed.group.mode.value} merge of {names} was rejected before",
                    )
        for message in _starts(facts, placed):
            yield Violation(4, f"{placed.place}.starts_from", message)
        yield from _memory(facts, placed, needs)


def _rejected(facts: Facts) -> dict[Mode, list[frozenset[str]]]:
    estimates = facts.plan.planner.estimates
    version = estimates.version if estimates is not None else None
    out: dict[Mode, list[frozenset[str]]] = {}
    for merge in facts.snapshot.rejected_merges:
        if merge.estimator_version is not None and merge.estimator_version != version:
            continue
        out.setdefault(merge.mode, []).append(frozenset(merge.jobs))
    return out


def _model(placed: Placed) -> Iterator[str]:
    models = {job.foundation_model for job in placed.members}
    # what runs may go on as it does
    one = placed.group.mode in _MODES_OF_ONE_MODEL and placed.kept is None
    if one and (len(models) > 1 or None in models):
        names = ", ".join(sorted(short(model) if model else "none" for model in models))
        yield f"a {placed.group.mode.value} group of different foundation models: {names}"
    stated = next(iter(models)) if len(models) == 1 else None
    if placed.group.foundation_model != stated:
        yield f"{short(placed.group.foundation_model)} is stated, but the members have {short(stated)}"


def _tenant(job: Job) -> str:
    return job.tenant if job.tenant is not None else job.queue


def _shared(facts: Facts, placed: Placed) -> Iterator[str]:
    mode, members = placed.group.mode, placed.members
    for job in members:
        if job.remaining_s is not None:
            yield f"job {short(job.id)} is rigid and is never merged"
    if len({job.workers for job in members}) > 1:
        yield "the members' workers differ"
    lowest = min(members, key=lambda job: _LEVEL[job.sharing])
    needed = Sharing.BACKBONE
    if mode in (Mode.JOINT, Mode.SEQUENCE):
        needed = Sharing.TENANT if len({_tenant(job) for job in members}) == 1 else Sharing.ALL
    if _LEVEL[lowest.sharing] < _LEVEL[needed]:
        yield (
            f"job {short(lowest.id)} allows sharing {lowest.sharing.value}, "
            f"but this {mode.value} group needs {needed.value}"
        )
    if mode is Mode.JOINT:
        if len({(job.peft_type, job.config) for job in members}) > 1:
            yield "joint members of different peft_type or config"
        now = facts.holds.get(members[0].id)
        together = (
            now is not None and now.mode is Mode.JOINT and {job.id for job in members} <= set(now.holders)
        )
        begun = [job for job in members if job.done_samples > 0]
        if begun and not together:
            yield (
                f"job {short(begun[0].id)} has {begun[0].done_samples:.6g} samples done, "
                "but joint training starts from the beginning"
            )


def _starts(facts: Facts, placed: Placed) -> Iterator[str]:
    order = placed.group.jobs
    for name, source in placed.group.starts_from.items():
        job = facts.jobs.get(name)
        if job is None or name not in order:
            yield f"{short(name)} is not a member"
            continue
        if (source.adapter is None) == (source.job is None):
            yield f"job {short(name)} starts from neither or both of an adapter and a job"
            continue
        if source.job is not None:
            at = order.index(name)
            if placed.group.mode is not Mode.SEQUENCE or at == 0 or order[at - 1] != source.job:
                yield f"job {short(name)} starts from job {short(source.job)}, which does not run before it"
            continue
        adapter = facts.adapters.get(source.adapter or "")
        if adapter is None:
            yield f"{short(source.adapter)} is not an adapter of the snapshot"
            continue
        if adapter.foundation_model != job.foundation_model:
            yield f"adapter {short(adapter.id)} is of {short(adapter.foundation_model)}"
        needed = Sharing.TENANT if adapter.tenant == _tenant(job) else Sharing.ALL
        for what, level in ((f"job {short(name)}", job.sharing), ("the adapter", adapter.sharing)):
            if _LEVEL[level] < _LEVEL[needed]:
                yield (
                    f"{what} allows sharing {level.value}, but a start from adapter "
                    f"{short(adapter.id)} needs {needed.value}"
                )


def _memory(facts: Facts, placed: Placed, needs: MemoryNeeds) -> Iterator[Violation]:
    need = needs.of(placed)
    if need is None:
        if len(placed.members) > 1:
            yield Violation(
                4, f"{placed.place}.jobs", f"the memory of this {placed.group.mode.value} group is unknown"
            )
        return
    for gpu in placed.gpus:
        if facts.known(gpu) and facts.nodes[gpu[0]].gpu_memory_gib < need * (1 - SLACK):
            yield Violation(
                4,
                f"{placed.place}.placement",
                f"{need:.6g} GiB are needed, but the GPUs of node {short(gpu[0])} "
                f"have {facts.nodes[gpu[0]].gpu_memory_gib:.6g} GiB",
            )
            return
