"""Random valid snapshots: one builder, fed by hypothesis (`snapshots`) or by a seed (`random_snapshot`).

Everything goes through a `Source` of small choices, so that hypothesis can shrink what it finds and a
benchmark can repeat a seed. The figures are invented; their shape is not: speeds rise concavely with
the GPU count, a shared backbone saves memory, warm starts cost less than cold ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from ymir_opt.domain.snapshot import (
    BackboneRow,
    Cluster,
    ColocationMember,
    ColocationRow,
    CompletedAdapter,
    Job,
    JobState,
    Mode,
    Node,
    NodeState,
    Parallelism,
    ProbeState,
    Profiles,
    Queue,
    Quota,
    Reclaim,
    RejectedMerge,
    RunningGroup,
    Sharing,
    Snapshot,
    StartSource,
    SwitchRow,
    Target,
    ThroughputRow,
    TransferMode,
    TransferRow,
    Workers,
)
from ymir_opt.domain.validate import validate

T = TypeVar("T")

TAKEN_AT = 10_000.0
MEMORY = {"A100": 40.0, "V100": 16.0, "T4": 15.0}
SPEED = {"A100": 100.0, "V100": 60.0, "T4": 30.0}
COUNTS = (1, 2, 4, 8, 16)


class Source(Protocol):
    """Where the choices come from."""

    def integer(self, low: int, high: int) -> int:
        """Return an integer between two limits, both included."""
        ...


@dataclass
class Seeded:
    """Choices from a seeded generator."""

    rng: random.Random

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)


@dataclass
class Drawn:
    """Choices that hypothesis draws, and shrinks towards the lower limit."""

    draw: Any

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))


def _pick(src: Source, options: Sequence[T]) -> T:
    return options[src.integer(0, len(options) - 1)]


def _rarely(src: Source, one_in: int) -> bool:
    """Say yes about once in ``one_in`` times; a shrunk example says no."""
    return src.integer(0, one_in - 1) == one_in - 1


@dataclass(frozen=True)
class Recipe:
    """What a random snapshot may contain.

    Attributes
    ----------
    jobs, nodes : int
        Largest numbers.
    exact_jobs : bool
        Exactly `jobs` jobs instead of at most.
    gpu_types : tuple of str
        Names in ``MEMORY``.
    node_sizes : tuple of int
        GPUs of a node.
    models, tasks : int
        Distinct foundation models and tasks.
    running, queues, groups, transfer, colocation, adapters, rigid, workers, pipeline, selectors,
    priorities, deadlines, imperfect_nodes, gaps, odd_counts, protected : bool
        Whether these occur. ``gaps`` leaves some throughput rows out (profile actions);
        ``odd_counts`` allows counts such as 3; ``protected`` immovable jobs and minimum run times.
    """

    jobs: int = 6
    nodes: int = 3
    exact_jobs: bool = False
    gpu_types: tuple[str, ...] = ("A100", "V100")
    node_sizes: tuple[int, ...] = (1, 2, 4, 8)
    models: int = 2
    tasks: int = 4
    running: bool = True
    queues: bool = True
    groups: bool = True
    transfer: bool = True
    colocation: bool = True
    adapters: bool = True
    rigid: bool = True
    workers: bool = True
    pipeline: bool = True
    selectors: bool = True
    priorities: bool = True
    deadlines: bool = True
    imperfect_nodes: bool = True
    gaps: bool = True
    odd_counts: bool = True
    protected: bool = True


PLAIN = Recipe(
    running=False,
    queues=False,
    groups=False,
    adapters=False,
    rigid=False,
    workers=False,
    pipeline=False,
    selectors=False,
    priorities=False,
    deadlines=False,
    imperfect_nodes=False,
    gaps=False,
    odd_counts=False,
    protected=False,
)


def _nodes(src: Source, recipe: Recipe, models: Sequence[str]) -> list[Node]:
    nodes = []
    for n in range(src.integer(1, recipe.nodes)):
        gpu_type = _pick(src, recipe.gpu_types)
        gpus = _pick(src, recipe.node_sizes)
        odd = recipe.imperfect_nodes
        nodes.append(
            Node(
                id=f"n{n}",
                gpu_type=gpu_type,
                gpus=gpus,
                gpu_memory_gib=MEMORY[gpu_type] * (2 if odd and _rarely(src, 5) else 1),
                state=_pick(src, tuple(NodeState)) if odd and _rarely(src, 5) else NodeState.READY,
                unavailable_gpus=(src.integer(0, gpus - 1),) if odd and _rarely(src, 6) else (),
                external_used_gib=tuple(float(4 * src.integer(0, 2)) for _ in range(gpus))
                if odd and _rarely(src, 6)
                else (),
                resident_fm=(_pick(src, models),) * gpus if odd and _rarely(src, 3) else (),
                rack=f"r{n % 2}",
                labels={"zone": _pick(src, ("a", "b"))} if recipe.selectors else {},
            )
        )
    return nodes


def _queues(src: Source, recipe: Recipe) -> list[Queue]:
    if not recipe.queues or not _rarely(src, 2):
        return []
    cohort = _pick(src, (None, "all"))
    queues = []
    for q in range(src.integer(1, 2)):
        named = _pick(src, (("*",), recipe.gpu_types, recipe.gpu_types[:1]))
        queues.append(
            Queue(
                name=f"q{q}",
                cohort=cohort,
                weight=float(_pick(src, (1, 2))),
                reclaim_within_cohort=_pick(src, tuple(Reclaim)[::-1]),
                quotas=tuple(
                    Quota(
                        gpu_type=name,
                        nominal_gpus=float(src.integer(0, 8)),
                        borrowing_limit_gpus=_pick(src, (None, 0.0, 2.0)),
                        lending_limit_gpus=_pick(src, (None, None, 1.0)),
                    )
                    for name in named
                ),
            )
        )
    return queues


def _job(
    src: Source, recipe: Recipe, j: int, queues: Sequence[Queue], models: Sequence[str]
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": f"j{j}",
        "submitted_at_s": TAKEN_AT - 60.0 * src.integer(0, 60),
        "sharing": _pick(src, (Sharing.ALL, Sharing.ALL, Sharing.TENANT, Sharing.BACKBONE, Sharing.NONE)),
        "tenant": _pick(src, ("t", "t", "t", "u")),
        "queue": _pick(src, ["default", *(q.name for q in queues)]),
    }
    least = _pick(src, (1, 1, 1, 2))
    most = _pick(src, tuple(c for c in (*COUNTS[:4], 3, 6) if c >= least))
    if not recipe.odd_counts and most not in COUNTS:
        most = 4
    fields |= {"min_gpus": least, "max_gpus": most}
    if _rarely(src, 4):
        allowed = tuple(c for c in COUNTS if least <= c <= most)
        if allowed:
            fields["gpu_counts"] = allowed
    if _rarely(src, 4):
        fields["gpu_types"] = (_pick(src, recipe.gpu_types),)
    if recipe.priorities and _rarely(src, 3):
        fields["priority"] = src.integer(1, 3)
    if _rarely(src, 5):
        fields["weight"] = float(_pick(src, (2, 3)))
    if recipe.deadlines and _rarely(src, 5):
        fields["deadline_s"] = TAKEN_AT + 300.0 * src.integer(0, 20)
    if recipe.selectors and _rarely(src, 5):
        fields["node_selector"] = {"zone": _pick(src, ("a", "b"))}
    if recipe.protected:
        if _rarely(src, 8):
            fields["movable"] = False
        if _rarely(src, 8):
            fields["min_runtime_s"] = 600.0
        if _rarely(src, 10):
            fields["not_before_s"] = TAKEN_AT + 60.0
    if recipe.workers and _rarely(src, 10):
        for name in ("min_gpus", "max_gpus", "gpu_counts"):
            fields.pop(name, None)
        fields["workers"] = Workers(count=src.integer(1, 2), gpus_each=_pick(src, (1, 2)))
    elif recipe.pipeline and _rarely(src, 10):
        fields["parallelism"] = Parallelism.PIPELINE
    if recipe.rigid and _rarely(src, 6):
        fields |= {"remaining_s": 60.0 * src.integer(1, 60), "memory_gib": float(src.integer(1, 12))}
        return fields
    remaining = 1000.0 * src.integer(1, 60)
    fields |= {
        "foundation_model": _pick(src, models),
        "task": f"task{src.integer(0, recipe.tasks - 1)}",
        "peft_type": _pick(src, ("LORA", "LORA", "IA3")),
        "batch_size": _pick(src, (32, 32, 64)),
        "remaining_samples": remaining,
        "target": Target(metric="eval_accuracy", value=0.9),
    }
    if _rarely(src, 3):
        fields |= {"remaining_samples_low": remaining * 0.75, "remaining_samples_high": remaining * 1.5}
    return fields


def _throughput(src: Source, recipe: Recipe, jobs: Sequence[dict[str, Any]]) -> list[ThroughputRow]:
    keys = sorted(
        {
            (job["foundation_model"], job["peft_type"], batch)
            for job in jobs
            if "foundation_model" in job
            for batch in (job["batch_size"], 2 * job["batch_size"])
        }
    )
    rows = []
    for model, peft, batch in keys:
        for gpu_type in recipe.gpu_types:
            if recipe.gaps and _rarely(src, 6):
                continue
            exponent = _pick(src, (0.9, 0.8, 0.6))
            memory = 2.0 + 2.0 * src.integer(0, 4) + batch / 64
            rows.extend(
                ThroughputRow(
                    foundation_model=model,
                    peft_type=peft,
                    gpu_type=gpu_type,
                    gpus=gpus,
                    batch_size=batch,
                    samples_per_s=round(SPEED[gpu_type] * gpus**exponent * (batch / 32) ** 0.2, 3),
                    memory_gib=memory,
                )
                for gpus in COUNTS[: src.integer(2, 4)]
            )
    return rows


def _profiles(src: Source, recipe: Recipe, jobs: Sequence[dict[str, Any]], models: Sequence[str]) -> Profiles:
    with_model = [job for job in jobs if "foundation_model" in job]
    tasks = {m: sorted({j["task"] for j in with_model if j["foundation_model"] == m}) for m in models}
    transfer: list[TransferRow] = []
    if recipe.transfer:
        for model in models:
            for target in tasks[model]:
                for source in [*tasks[model], f"done-{model}"] if recipe.adapters else tasks[model]:
                    for mode in TransferMode:
                        if _rarely(src, 2) and not (mode is TransferMode.JOINT and source.startswith("done")):
                            ratio = _pick(src, (0.7, 0.5, 0.9, 1.1))
                            transfer.append(
                                TransferRow(
                                    mode=mode,
                                    foundation_model=model,
                                    source=source,
                                    target=target,
                                    work_ratio=ratio,
                                    low=round(ratio * 0.8, 6),
                                    high=round(ratio * 1.25, 6),
                                    p_benefit=_pick(src, (0.9, 0.6)),
                                    matched_hyperparameters=True,
                                )
                            )
    colocation: list[ColocationRow] = []
    kinds = sorted({(j["foundation_model"], j["peft_type"], j["batch_size"]) for j in with_model})
    if recipe.colocation:
        for a, first in enumerate(kinds):
            for second in kinds[a:]:
                for gpu_type in recipe.gpu_types:
                    if not _rarely(src, 2):
                        continue
                    mode = Mode.COLOCATE if first[0] == second[0] and _rarely(src, 2) else Mode.GPU_SHARE
                    ratio = _pick(src, (0.75, 0.6, 0.4))
                    colocation.extend(
                        ColocationRow(
                            mode=mode,
                            gpu_type=gpu_type,
                            gpus=gpus,
                            members=tuple(
                                ColocationMember(foundation_model=m, peft_type=p, batch_size=b)
                                for m, p, b in (first, second)
                            ),
                            speed_ratio=(ratio, ratio),
                            memory_gib=_pick(src, (None, 10.0)),
                        )
                        for gpus in (1, 2)
                    )
    return Profiles(
        throughput=tuple(_throughput(src, recipe, jobs)),
        switch_s=tuple(
            SwitchRow(foundation_model=m, gpu_type=t, cold_s=60.0, warm_s=_pick(src, (5.0, 20.0)))
            for m in models
            for t in recipe.gpu_types
        ),
        backbone_gib=tuple(BackboneRow(foundation_model=m, gib=1.5) for m in models),
        transfer=tuple(transfer),
        colocation=tuple(colocation),
    )


class _Free:
    """GPUs that nothing holds yet, by node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.free = {
            n.id: [g for g in range(n.gpus) if g not in n.unavailable_gpus]
            for n in nodes
            if n.state is not NodeState.DOWN
        }

    def take(self, job: dict[str, Any], wanted: int, whole: bool) -> dict[str, tuple[int, ...]] | None:
        for node in self.nodes:
            free = self.free.get(node.id, [])
            if len(free) < wanted or (whole and len(free) != node.gpus):
                continue
            if node.gpu_type not in job.get("gpu_types", (node.gpu_type,)):
                continue
            if any(node.labels.get(k) != v for k, v in job.get("node_selector", {}).items()):
                continue
            count = node.gpus if whole else wanted
            self.free[node.id] = free[count:]
            return {node.id: tuple(free[:count])}
        return None


def _counts(job: dict[str, Any]) -> list[int]:
    if "workers" in job:
        return [job["workers"].count * job["workers"].gpus_each]
    allowed = job.get("gpu_counts", COUNTS)
    return [c for c in COUNTS if job["min_gpus"] <= c <= job["max_gpus"] and c in allowed]


def _start(src: Source, job: dict[str, Any], allocation: dict[str, tuple[int, ...]]) -> None:
    ago = 60.0 * src.integer(1, 20)
    gpus = sum(len(v) for v in allocation.values())
    done = 100.0 * src.integer(0, 20) if "remaining_samples" in job else 0.0
    job |= {
        "state": JobState.RUNNING,
        "allocation": allocation,
        "last_start_s": TAKEN_AT - ago,
        "first_start_s": TAKEN_AT - ago,
        "running_s": ago,
        "attained_gpu_s": ago * gpus,
        "submitted_at_s": min(job["submitted_at_s"], TAKEN_AT - ago),
        "done_samples": done,
    }
    if done and _rarely(src, 2):
        job["last_checkpoint_samples"] = done / 2


def _run(
    src: Source, recipe: Recipe, jobs: list[dict[str, Any]], nodes: Sequence[Node], profiles: Profiles
) -> list[RunningGroup]:
    """Let some jobs run, some of them in groups; return the entries of ``groups``."""
    free = _Free(nodes)
    entries: list[RunningGroup] = []
    taken: set[str] = set()
    joint = {
        (r.foundation_model, r.source, r.target) for r in profiles.transfer if r.mode is TransferMode.JOINT
    }
    for i, job in enumerate(jobs):
        if job["id"] in taken or not _rarely(src, 2):
            continue
        counts = _counts(job)
        if not counts:
            continue
        whole = job.get("parallelism") is Parallelism.PIPELINE
        wanted = _pick(src, counts)
        allocation = free.take(job, wanted, whole)
        if allocation is None:
            continue
        gpus = sum(len(v) for v in allocation.values())
        if gpus > job.get("max_gpus", gpus) or ("gpu_counts" in job and gpus not in job["gpu_counts"]):
            job["parallelism"] = Parallelism.DATA
            job |= {"max_gpus": max(gpus, job["max_gpus"])}
            job.pop("gpu_counts", None)
        _start(src, job, allocation)
        taken.add(job["id"])
        partner = next(
            (
                other
                for other in jobs[i + 1 :]
                if recipe.groups
                and other["id"] not in taken
                and "foundation_model" in job
                and all(job.get(k) == other.get(k) for k in ("foundation_model", "peft_type"))
                and (job["tenant"] == other["tenant"] or {job["sharing"], other["sharing"]} == {Sharing.ALL})
                and gpus in _counts(other)
                and not {"workers", "parallelism"} & (other.keys() | job.keys())
                and other.get("node_selector", {}).items() <= job.get("node_selector", {}).items()
                and other.get("gpu_types", job.get("gpu_types")) == job.get("gpu_types")
                and {job["sharing"], other["sharing"]} <= {Sharing.ALL, Sharing.TENANT}
            ),
            None,
        )
        if partner is None or _rarely(src, 4):
            continue
        pair = (job["foundation_model"], partner["task"], job["task"])
        back = (job["foundation_model"], job["task"], partner["task"])
        modes = [Mode.GPU_SHARE, Mode.COLOCATE]
        if pair in joint and back in joint:
            modes.append(Mode.JOINT)
        if any(
            r.mode is TransferMode.WARM_START and (r.source, r.target) == (job["task"], partner["task"])
            for r in profiles.transfer
        ):
            modes.append(Mode.SEQUENCE)
        mode = _pick(src, modes)
        taken.add(partner["id"])
        starts: dict[str, StartSource] = {}
        if mode is Mode.SEQUENCE:
            starts[partner["id"]] = StartSource(job=job["id"])
        else:
            _start(src, partner, allocation)
        entries.append(
            RunningGroup(
                id=f"run{i}",
                mode=mode,
                jobs=(job["id"], partner["id"]),
                starts_from=starts,
                started_at_s=job["last_start_s"],
                probe=ProbeState(state="running", evaluations_left=1)
                if mode is Mode.JOINT and _rarely(src, 2)
                else None,
            )
        )
    return entries


_TWIN_FIELDS = (
    "foundation_model",
    "peft_type",
    "batch_size",
    "tenant",
    "sharing",
    "min_gpus",
    "max_gpus",
    "gpu_counts",
    "gpu_types",
    "node_selector",
)


def _twins(src: Source, jobs: list[dict[str, Any]]) -> None:
    """Make some neighbours alike in all that sharing needs, so that groups are not rare."""
    for first, second in pairwise(jobs):
        ordinary = not {"workers", "parallelism", "remaining_s"} & (first.keys() | second.keys())
        if ordinary and _rarely(src, 3):
            first["sharing"] = Sharing.ALL
            for name in _TWIN_FIELDS:
                second.pop(name, None)
                if name in first:
                    second[name] = first[name]


def build_snapshot(src: Source, recipe: Recipe) -> Snapshot:
    """Build one valid snapshot from a source of choices."""
    models = [f"fm{m}" for m in range(src.integer(1, recipe.models))]
    nodes = _nodes(src, recipe, models)
    queues = _queues(src, recipe)
    count = recipe.jobs if recipe.exact_jobs else src.integer(0, recipe.jobs)
    jobs = [_job(src, recipe, j, queues, models) for j in range(count)]
    if recipe.transfer or recipe.colocation:
        _twins(src, jobs)
    profiles = _profiles(src, recipe, jobs, models)
    groups = _run(src, recipe, jobs, nodes, profiles) if recipe.running else []
    names = [job["id"] for job in jobs]
    rejected = (
        (
            RejectedMerge(
                jobs=(names[0], names[1]), mode=_pick(src, (Mode.JOINT, Mode.COLOCATE)), at_s=TAKEN_AT - 60
            ),
        )
        if len(names) > 1 and _rarely(src, 6)
        else ()
    )
    adapters = (
        tuple(
            CompletedAdapter(
                id=f"adapter-{m}",
                foundation_model=m,
                task=f"done-{m}",
                tenant=_pick(src, ("t", "u")),
                sharing=_pick(src, (Sharing.ALL, Sharing.TENANT)),
                memory_gib=0.1,
            )
            for m in models
            if _rarely(src, 2)
        )
        if recipe.adapters
        else ()
    )
    snapshot = Snapshot(
        taken_at_s=TAKEN_AT,
        cluster=Cluster(nodes=tuple(nodes)),
        queues=tuple(queues),
        jobs=tuple(Job(**job) for job in jobs),
        groups=tuple(groups),
        rejected_merges=rejected,
        adapters=adapters,
        profiles=profiles,
    )
    validate(snapshot)
    return snapshot


def random_snapshot(seed: int, recipe: Recipe | None = None, **changes: Any) -> Snapshot:
    """Return the snapshot of a seed; keyword arguments change fields of the recipe."""
    fields = {name: getattr(recipe or Recipe(), name) for name in Recipe.__dataclass_fields__} | changes
    return build_snapshot(Seeded(random.Random(seed)), Recipe(**fields))


@st.composite
def snapshots(draw: Any, recipe: Recipe | None = None, **changes: Any) -> Snapshot:
    """Strategy of valid snapshots; keyword arguments change fields of the recipe."""
    fields = {name: getattr(recipe or Recipe(), name) for name in Recipe.__dataclass_fields__} | changes
    return build_snapshot(Drawn(draw), Recipe(**fields))
