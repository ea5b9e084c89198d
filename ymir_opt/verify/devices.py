"""Invariant 2: no GPU is used twice; node state, selectors, external memory, CPUs are respected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ymir_opt.domain.base import short
from ymir_opt.domain.snapshot import Job, NodeState
from ymir_opt.verify.facts import Facts, Gpu
from ymir_opt.verify.memory import MemoryNeeds
from ymir_opt.verify.violation import Violation

__all__ = ["devices", "host_use"]

SLACK = 1e-9


def devices(facts: Facts, needs: MemoryNeeds) -> Iterator[Violation]:
    """Yield every GPU that does not exist, may not be used, or is used twice."""
    user: dict[Gpu, str] = {}
    for placed in facts.placed:
        place = f"{placed.place}.placement"
        yield from _each(facts, user, place, placed.gpus, placed.group.gpu_type, kept=placed.kept is not None)
        if placed.kept is None:
            yield from _selectors(facts, place, placed.gpus, placed.members)
            need = needs.of(placed)
            if need is not None:
                yield from _external(facts, place, placed.gpus, need)
    for name, gpus in facts.profiled.items():
        place = f"actions of job {short(name)}"
        to = facts.actions[name].to
        yield from _each(facts, user, place, gpus, to.gpu_type if to is not None else "", kept=False)
        yield from _selectors(facts, place, gpus, (facts.jobs[name],))
    yield from _host(facts)


def _each(
    facts: Facts, user: dict[Gpu, str], place: str, gpus: Iterable[Gpu], gpu_type: str, *, kept: bool
) -> Iterator[Violation]:
    for gpu in gpus:
        name = f"GPU {gpu[1]} of node {short(gpu[0])}"
        if not facts.known(gpu):
            yield Violation(2, place, f"{name} does not exist")
            continue
        if gpu in user:
            yield Violation(2, place, f"{name} is also used by {user[gpu]}")
        user.setdefault(gpu, place)
        node = facts.nodes[gpu[0]]
        if node.gpu_type != gpu_type:
            yield Violation(2, place, f"{name} is of type {short(node.gpu_type)}, not {short(gpu_type)}")
        if not facts.exists(gpu):
            state = "down" if node.state is NodeState.DOWN else "unavailable"
            yield Violation(2, place, f"{name} is {state}")
        elif not kept and node.state is not NodeState.READY:
            yield Violation(2, place, f"{name} is {node.state.value}: nothing may start there")


def _selectors(facts: Facts, place: str, gpus: Iterable[Gpu], members: Iterable[Job]) -> Iterator[Violation]:
    nodes = {gpu[0] for gpu in gpus if gpu[0] in facts.nodes}
    for job in members:
        if not job.node_selector:
            continue
        for name in sorted(nodes):
            if not facts.matches(facts.nodes[name], job.node_selector):
                yield Violation(
                    2, place, f"node {short(name)} does not match the node_selector of job {short(job.id)}"
                )


def _external(facts: Facts, place: str, gpus: Iterable[Gpu], need: float) -> Iterator[Violation]:
    for gpu in gpus:
        if not facts.known(gpu):
            continue
        total, usable = facts.nodes[gpu[0]].gpu_memory_gib, facts.usable_gib(gpu)
        # what exceeds the whole GPU is told by invariant 4
        if usable < need * (1 - SLACK) <= total:
            yield Violation(
                2,
                place,
                f"{need:.6g} GiB are needed on GPU {gpu[1]} of node {short(gpu[0])}, but of its {total:.6g} "
                f"GiB {total - usable:.6g} GiB are used from outside",
            )


def host_use(holders: Iterable[Job], gpus: int) -> tuple[float, float]:
    """Return CPUs and host memory (GiB) that a group takes on a node for each GPU there.

    CPUs are asked for each GPU; a job's host memory is spread evenly over its GPUs.
    """
    cpus = sum(job.cpus_per_gpu or 0.0 for job in holders)
    host = sum(job.host_memory_gib or 0.0 for job in holders)
    return cpus, host / max(gpus, 1)


def _host(facts: Facts) -> Iterator[Violation]:
    """CPUs and host memory: new groups fit into what kept ones leave (kept overuse is tolerated)."""
    if all(n.cpus is None and n.host_memory_gib is None for n in facts.nodes.values()):
        return
    kept: Mapping[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    new: Mapping[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for placed in facts.placed:
        use = host_use(placed.holders, len(placed.gpus))
        for name, _ in placed.gpus:
            total = (kept if placed.kept is not None else new)[name]
            total[0] += use[0]
            total[1] += use[1]
    for job, gpus in facts.profiled.items():
        use = host_use((facts.jobs[job],), len(gpus))
        for name, _ in gpus:
            new[name][0] += use[0]
            new[name][1] += use[1]
    for name in sorted(new):
        node = facts.nodes.get(name)
        if node is None:
            continue
        for i, (what, limit) in enumerate(
            (("CPUs", node.cpus), ("GiB of host memory", node.host_memory_gib))
        ):
            if limit is None or new[name][i] <= 0:
                continue
            left = max(0.0, limit - kept[name][i])
            if new[name][i] > left + 1e-6 * max(1.0, limit):
                yield Violation(
                    2,
                    f"node {short(name)}",
                    f"{new[name][i]:.6g} {what} are given to groups that start, but of {limit:.6g} "
                    f"{kept[name][i]:.6g} are taken",
                )
