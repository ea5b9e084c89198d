"""Who holds which GPU in a plan: the figures behind the map of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import Action, ActionKind, Group, Plan
from ymir_opt.domain.snapshot import Job, Node, NodeState, Snapshot

__all__ = ["Occupancy", "PlannedGroup", "usable"]


@dataclass(frozen=True)
class PlannedGroup:
    """A group and its number on the page, from 1.

    Attributes
    ----------
    number : int
    group : Group
    kinds : tuple of ActionKind
        What happens to each member, in the order of ``group.jobs``.
    """

    number: int
    group: Group
    kinds: tuple[ActionKind, ...]

    @property
    def shared(self) -> bool:
        """Say whether more than one job is in it."""
        return len(self.group.jobs) > 1

    @property
    def changes(self) -> bool:
        """Say whether anything but keeping happens to it."""
        return any(kind not in (ActionKind.KEEP, ActionKind.WAIT) for kind in self.kinds)


@dataclass
class Occupancy:
    """A plan read against its snapshot.

    Attributes
    ----------
    groups : tuple of PlannedGroup
    holder : dict
        (node id, GPU index) -> the group's number.
    profiled : dict
        (node id, GPU index) -> id of the job that is measured there.
    actions : dict
        Job id -> its action.
    jobs : dict
        Job id -> the snapshot's job.
    placed : dict
        Job id -> the number of its group.
    """

    groups: tuple[PlannedGroup, ...]
    holder: dict[tuple[str, int], int] = field(default_factory=dict)
    profiled: dict[tuple[str, int], str] = field(default_factory=dict)
    actions: dict[str, Action] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    placed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan) -> Occupancy:
        """Return who holds what.

        Raises
        ------
        InputError
            The plan names a node, GPU or job that the snapshot does not have.
        """
        actions = {action.job: action for action in plan.actions}
        jobs = {job.id: job for job in snapshot.jobs}
        nodes = {node.id: node for node in snapshot.cluster.nodes}
        found = cls(
            tuple(
                PlannedGroup(
                    number,
                    group,
                    tuple(actions[job].action if job in actions else ActionKind.KEEP for job in group.jobs),
                )
                for number, group in enumerate(plan.groups, 1)
            ),
            actions=actions,
            jobs=jobs,
        )
        for planned in found.groups:
            place = f"group {planned.group.id}"
            for job in planned.group.jobs:
                if job not in jobs:
                    raise _foreign(place, f"job {job!r}")
                found.placed[job] = planned.number
            for key in _gpus(planned.group.placement, nodes, place):
                found.holder[key] = planned.number
        for action in plan.actions:
            if action.job not in jobs:
                raise _foreign(f"the action of {action.job}", "its job")
            if action.action is ActionKind.PROFILE and action.to is not None:
                for key in _gpus(action.to.placement, nodes, f"the action of {action.job}"):
                    found.profiled[key] = action.job
        return found

    def waiting(self, snapshot: Snapshot) -> list[Job]:
        """Return the jobs that get no GPUs and are in no group, in the order of their submission."""
        measured = set(self.profiled.values())
        left = [job for job in snapshot.jobs if job.id not in self.placed and job.id not in measured]
        return sorted(left, key=lambda job: (job.submitted_at_s, job.id))

    def used(self, node: Node) -> int:
        """Return how many GPUs of a node the plan uses."""
        keys = [(node.id, gpu) for gpu in range(node.gpus)]
        return sum(key in self.holder or key in self.profiled for key in keys)


def usable(node: Node) -> int:
    """Return how many GPUs of a node could hold something."""
    if node.state is NodeState.DOWN:
        return 0
    return node.gpus - len(set(node.unavailable_gpus))


def _foreign(place: str, what: str) -> InputError:
    return InputError(place, f"{what} is not in the snapshot", "give the plan its own snapshot")


def _gpus(
    placement: Mapping[str, tuple[int, ...]], nodes: Mapping[str, Node], place: str
) -> list[tuple[str, int]]:
    keys = []
    for node, gpus in placement.items():
        if node not in nodes or any(gpu >= nodes[node].gpus for gpu in gpus):
            raise _foreign(place, f"node {node!r} with GPUs {list(gpus)}")
        keys += [(node, gpu) for gpu in gpus]
    return keys
