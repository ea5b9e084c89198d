"""How a job comes into a group: from its checkpoint, from other weights, or fresh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.checkpoint import exists, load_adapter, read_facts
from ymir_opt.runtime.crew import Crew
from ymir_opt.runtime.jobfolder import JobFolder
from ymir_opt.runtime.joint import own_copy
from ymir_opt.runtime.member import Member, Merge

__all__ = ["begin_merge", "load_weights", "source_of", "start_from", "state_of"]


def load_weights(crew: Crew, member: Member) -> None:
    """Give a member its adapter and its state.

    Raises
    ------
    InputError
        If its checkpoint, or the adapter it is to start from, does not fit.
    """
    runtime, folder = crew.needed(), member.folder
    if exists(folder.checkpoint):
        facts = read_facts(folder.checkpoint)
        member.restore(state_of(facts, folder))
        adapter = load_adapter(runtime, folder.checkpoint, member.key)
        if facts.get("joint"):
            # it was trained together with others: only its own head goes on
            own_copy(member, adapter, runtime)
    else:
        adapter = runtime.add(member.key, member.settings.spec, member.settings.targets)
        adapter.add_head(member.key, len(member.data.classes), member.request.name)
    if member.merge is not None and member.merge.group != crew.group_id:
        member.merge = None
        folder.forget_before_merge()
    source = source_of(crew, member)
    if source is not None and member.started_from != str(source):
        start_from(crew, member, source)


def source_of(crew: Crew, member: Member) -> Path | None:
    """Return the checkpoint whose weights a member starts from, if any."""
    group = crew.group or {}
    if crew.group_id in member.rejected:
        return None
    named = (group.get("starts_from") or {}).get(member.key)
    if named is not None:
        return (crew.jobs_dir / str(named)).resolve()
    if group.get("mode") != "sequence":
        return None
    at = group["jobs"].index(member.key)
    ratio = crew.expected(member.key).get("work_ratio")
    if at == 0 or (ratio is not None and float(ratio) >= 1):
        return None
    try:
        before = JobFolder(crew.jobs_dir, group["jobs"][at - 1])
    except InputError:
        return None
    done = (before.result() or {}).get("state") == "completed" and exists(before.checkpoint)
    return before.checkpoint.resolve() if done else None


def start_from(crew: Crew, member: Member, folder: Path) -> None:
    """Begin a member anew from another job's factors; its head is new."""
    runtime, settings = crew.needed(), member.settings
    facts = read_facts(folder)
    if facts.get("foundation_model") != crew.label:
        raise InputError(
            str(folder),
            f"is an adapter of {facts.get('foundation_model')}, not of {crew.label}",
            "start from an adapter of the same foundation model",
        )
    source = load_adapter(runtime, folder, "source")
    runtime.remove("source")
    fresh = runtime.add("fresh", settings.spec, settings.targets)
    runtime.remove("fresh")
    fresh.name = member.key
    fresh.add_head(member.key, len(member.data.classes), member.request.name)
    try:
        fresh.copy_factors(source)
    except InputError:
        if (crew.group or {}).get("mode") != "sequence":
            raise
        member.folder.log(f"starts fresh: {folder} has another shape")
        return
    begin_merge(crew, member)
    runtime.adapters[member.key] = fresh
    member.restart(str(folder))


def begin_merge(crew: Crew, member: Member, *, joint: bool = False) -> None:
    """Keep the state of before a merge that has to prove itself."""
    begun = member.merge is not None and member.merge.group == crew.group_id
    if begun or not (crew.group or {}).get("probe"):
        return
    member.save(crew.needed().adapters[member.adapter], member.folder.before_merge)
    given = crew.expected(member.key).get("own_curve")
    curve = member.points if given is None else [(int(s), float(m)) for s, m in given]
    group = str(crew.group_id)
    if joint:
        own = [(s - member.samples, m) for s, m in curve] if given is None else curve
        member.merge = Merge(group, member.samples, member.metric, own)
    else:
        member.merge = Merge(group, 0, member.metric, curve)


def state_of(facts: Mapping[str, Any], folder: JobFolder) -> Mapping[str, Any]:
    """Return the member's state that a checkpoint holds; raises `InputError`."""
    state = facts.get("state")
    if not isinstance(state, Mapping):
        raise InputError(str(folder.path), "its checkpoint is not a job's", "remove the checkpoint")
    return state
