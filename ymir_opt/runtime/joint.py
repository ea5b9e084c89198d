"""Joint training: one adapter with a head a member; whose turn it is follows annealed sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.adapters import Adapter
from ymir_opt.runtime.member import Member
from ymir_opt.runtime.randomness import derive_seed
from ymir_opt.runtime.sampling import annealed_probabilities
from ymir_opt.runtime.session import Runtime

__all__ = ["Joint", "adapter_name", "own_copy", "why_not_joint"]


def adapter_name(group: str) -> str:
    """Return the name of a joint group's adapter in the runtime; no job has such a key."""
    return f"joint:{group}"


def why_not_joint(members: Sequence[Member]) -> str:
    """Return why members cannot share one adapter, or nothing."""
    first = members[0].settings
    for member in members[1:]:
        own = member.settings
        for name in ("r", "lora_alpha", "optim"):
            if getattr(own.spec, name) != getattr(first.spec, name):
                return f"{name} differs: {getattr(first.spec, name)} and {getattr(own.spec, name)}"
        if own.targets != first.targets:
            return "target_modules differ"
    return ""


def own_copy(member: Member, shared: Adapter, runtime: Runtime) -> Adapter:
    """Give a member a copy of an adapter, with its own head, hyper-parameters and step counter."""
    own = shared.copy_for(member.key, [member.key], member.settings.spec)
    own.steps = member.samples // member.settings.batch_size
    runtime.adapters[member.key] = own
    member.adapter = member.key
    return own


@dataclass
class Joint:
    """A joint group's own state: whose turn it was how often.

    Attributes
    ----------
    group : str
    turn : int
        Steps taken; with the seed, the whole position in the schedule.
    horizon : int
        Turns over which the sampling anneals: all members' planned steps.
    """

    group: str
    turn: int = 0
    horizon: int = 1
    seed: int = 0

    @property
    def adapter(self) -> str:
        """Name of the shared adapter."""
        return adapter_name(self.group)

    def next(self, members: Sequence[Member]) -> Member:
        """Return whose turn it is, by annealed sampling over the members that are still there."""
        ordered = sorted(members, key=lambda member: member.key)
        sizes = [len(member.data.train.labels) for member in ordered]
        rng = np.random.default_rng(derive_seed(self.seed, "annealed sampling", self.turn))
        chances = annealed_probabilities(sizes, self.turn / max(1, self.horizon - 1))
        return ordered[int(rng.choice(len(ordered), p=chances))]

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"group": self.group, "turn": self.turn, "horizon": self.horizon, "seed": self.seed}

    @classmethod
    def begin(cls, group: str, members: Sequence[Member], runtime: Runtime) -> Joint:
        """Make the shared adapter and point the members at it.

        It starts from the factors of the member that has trained most, if any has; every member keeps
        its own head. The first member by key gives the hyper-parameters and the seed.
        """
        ordered = sorted(members, key=lambda member: member.key)
        lead = ordered[0]
        joint = cls(group, 0, sum(m.settings.steps for m in ordered), lead.request.training.seed)
        spec = replace(lead.settings.spec, training_steps=joint.horizon)
        shared = runtime.add(joint.adapter, spec, lead.settings.targets)
        most = max(ordered, key=lambda member: runtime.adapters[member.adapter].steps)
        shared.copy_factors(runtime.adapters[most.adapter])
        for member in ordered:
            joint.admit(member, runtime)
        return joint

    def admit(self, member: Member, runtime: Runtime) -> None:
        """Give a member its head on the shared adapter and forget its own."""
        shared, own = runtime.adapters[self.adapter], runtime.adapters[member.adapter]
        shared.adopt_head(member.key, own)
        runtime.remove(member.adapter)
        member.adapter = self.adapter

    def export(self, member: Member, runtime: Runtime) -> Adapter:
        """Give a member the shared adapter's weights and optimiser, with its own head, as its own adapter."""
        return own_copy(member, runtime.adapters[self.adapter], runtime)

    @classmethod
    def resume(cls, facts: Mapping[str, Any]) -> Joint:
        """Return the state that a checkpoint holds; raises `InputError` if it is damaged."""
        try:
            return cls(str(facts["group"]), int(facts["turn"]), int(facts["horizon"]), int(facts["seed"]))
        except (KeyError, TypeError, ValueError):
            raise InputError("checkpoint", "its joint state is damaged", "remove the checkpoint") from None
