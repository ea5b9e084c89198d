"""Merges: forming and resuming a joint group, judging a merge by its probe, undoing it."""

from __future__ import annotations

from collections.abc import Sequence

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.checkpoint import exists, load_adapter, read_facts
from ymir_opt.runtime.crew import Crew
from ymir_opt.runtime.entering import begin_merge, state_of
from ymir_opt.runtime.joint import Joint, why_not_joint
from ymir_opt.runtime.member import Member
from ymir_opt.runtime.probing import Verdict, judge

__all__ = ["end_joint", "form_joint", "probe_passes", "refuse_joint"]


def form_joint(crew: Crew) -> None:
    """Put the members that are there on one shared adapter, or go on from where a former process was."""
    members, group = list(crew.members.values()), str(crew.group_id)
    if not members:
        return
    if any(group in member.rejected for member in members):
        # undone: who was not taken back before a crash is now
        for member in members:
            if group not in member.rejected:
                _take_back(crew, member)
        return
    if crew.joint is None:
        _resume(crew, members, group)
    new = [member for member in members if crew.joint is None or member.adapter != crew.joint.adapter]
    if not new or (crew.joint is None and len(members) < 2):
        return
    reason = why_not_joint(members)
    if reason:
        refuse_joint(crew, reason)
        return
    for member in new:
        begin_merge(crew, member, joint=True)
    if crew.joint is None:
        crew.joint = Joint.begin(group, members, crew.needed())
    else:
        for member in new:
            crew.joint.admit(member, crew.needed())


def refuse_joint(crew: Crew, reason: str) -> None:
    """Let the members train beside each other instead, and say why."""
    group = str(crew.group_id)
    end_joint(crew)
    for member in crew.members.values():
        if group not in member.rejected:
            member.rejected.append(group)
        member.folder.log(f"group {group} cannot train jointly: {reason}")
    jobs = list(crew.members)
    crew.events.write(
        "split", None, group, jobs=jobs, cost_s=0.0, predicted=None, realised=None, reason=reason
    )


def _resume(crew: Crew, members: Sequence[Member], group: str) -> None:
    """Go on from the newest joint state that any member's checkpoint holds."""
    found = []
    for member in members:
        if exists(member.folder.checkpoint):
            facts = read_facts(member.folder.checkpoint)
            if (facts.get("joint") or {}).get("group") == group:
                found.append((int(facts["joint"]["turn"]), member.folder.checkpoint, facts))
    if not found:
        return
    _, folder, facts = max(found, key=lambda entry: entry[0])
    runtime = crew.needed()
    joint = Joint.resume(facts["joint"])
    shared = load_adapter(runtime, folder, joint.adapter)
    states = facts.get("members") or {}
    for member in members:
        if member.key in states and member.key in shared.heads:
            member.restore(states[member.key])
            member.folder.rewrite_curve(member.evaluations)
            runtime.remove(member.adapter)
            member.adapter = joint.adapter
    crew.joint = joint


def end_joint(crew: Crew) -> None:
    """Give every member its own copy of the shared adapter."""
    if crew.joint is None:
        return
    for member in crew.members.values():
        crew.take_out(member)
    crew.needed().remove(crew.joint.adapter)
    crew.joint = None


def probe_passes(crew: Crew, member: Member) -> bool:
    """Judge a member's merge when its probe is over; undo the merge if it does not help."""
    merge, probe = member.merge, (crew.group or {}).get("probe") or {}
    if merge is None or merge.passed:
        return True
    points = [(s - merge.samples, m) for s, m in member.points if s > merge.samples]
    if len(points) < int(probe.get("evaluations", 2)):
        return True
    verdict = judge(member.settings, points, merge.metric, crew.expected(member.key), merge.own_curve)
    if verdict.passed:
        merge.passed = True
        member.folder.log(f"the merge of group {merge.group} helps ({verdict.rule})")
        waiting = [m for m in crew.members.values() if m.merge is not None and not m.merge.passed]
        if not (crew.joint is not None and waiting):
            for other in crew.members.values() if crew.joint is not None else [member]:
                other.folder.forget_before_merge()
        return True
    _undo(crew, member, verdict)
    return False


def _undo(crew: Crew, member: Member, verdict: Verdict) -> None:
    merge, group = member.merge, str(crew.group_id)
    affected = list(crew.members.values()) if crew.joint is not None else [member]
    for one in affected:
        _take_back(crew, one)
    if crew.joint is not None:
        crew.needed().remove(crew.joint.adapter)
        crew.joint = None
    crew.events.write(
        "split",
        member.key,
        group,
        jobs=[one.key for one in affected],
        cost_s=round(merge.seconds if merge is not None else 0.0, 3),
        rule=verdict.rule,
        predicted=verdict.predicted,
        realised=verdict.realised,
    )


def _take_back(crew: Crew, member: Member) -> None:
    """Return a member to its state of before the merge, or to its present one where none is kept."""
    runtime, group, folder = crew.needed(), str(crew.group_id), member.folder
    kept = member.merge is not None and member.merge.group == group and exists(folder.before_merge)
    try:
        if kept:
            facts = read_facts(folder.before_merge)
            adapter = load_adapter(runtime, folder.before_merge, member.key)
            member.restore(state_of(facts, folder))
            member.adapter = adapter.name
            folder.rewrite_curve(member.evaluations)
        else:
            crew.take_out(member)
    except InputError as error:
        crew.fail(member, error.one_line())
        return
    member.merge = None
    if group not in member.rejected:
        member.rejected.append(group)
    folder.log(f"the merge of group {group} is undone; goes on at sample {member.samples}")
    if crew.save(member, joint=False):
        folder.forget_before_merge()
