"""From a view to a snapshot document, and from a plan back to a decision, for snapshot policies.

The documents are built from the view alone, so they hold observations and estimates only. Rows that do not
change (nodes, profiles, the fixed part of a job) are built once and shared between rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ymir_opt.domain.base import FrozenDict, freeze
from ymir_opt.domain.errors import InvalidPlanError
from ymir_opt.domain.plan import ActionKind, Group, Plan
from ymir_opt.domain.snapshot import (
    Cluster,
    CompletedAdapter,
    Job,
    JobState,
    Mode,
    Node,
    NodeState,
    ProbeState,
    Queue,
    RejectedMerge,
    RunningGroup,
    Sharing,
    Snapshot,
    StartSource,
)
from ymir_opt.policies.profiles import Z80, ProfileRows, adapter_name, best_adapter, task_name
from ymir_opt.policies.view import RIGID, Decision, GroupDecision, SnapshotView

__all__ = ["Documents", "decision_of"]

SHARING = (Sharing.NONE, Sharing.BACKBONE, Sharing.TENANT, Sharing.ALL)
_COLUMNS = (
    "done",
    "remaining",
    "held_gpu_s",
    "productive_s",
    "first_start_s",
    "last_start_s",
    "not_before_s",
    "failed_starts",
    "restarts",
    "preemptions",
    "gpus",
)


class Documents:
    """Builds snapshots of successive views of one simulation.

    Parameters
    ----------
    round_s : float
    adapters : bool
        Whether completed adapters are offered to start from.
    every_adapter : bool
        Also those that no present job would start from.
    """

    def __init__(self, round_s: float = 120.0, *, adapters: bool = True, every_adapter: bool = False) -> None:
        self.round_s = round_s
        self.adapters = adapters
        self.every_adapter = every_adapter
        self._jobs: dict[int, dict[str, Any]] = {}
        self._profiles = ProfileRows()
        self._queues: tuple[Queue, ...] | None = None

    def reset(self) -> None:
        """Forget everything kept between rounds."""
        self._jobs.clear()
        self._profiles = ProfileRows()
        self._queues = None

    def snapshot(self, view: SnapshotView) -> Snapshot:
        """Return the view as a document."""
        groups, member_of = self._groups(view)
        jobs = self._job_rows(view, groups)
        rows = self._profiles.of(view, view.adapters if self.adapters else frozenset())
        if self._queues is None:
            known = {queue.name: queue for queue in view.quotas}
            self._queues = tuple(known.get(name, Queue(name=name)) for name in view.queues)
        return Snapshot.model_construct(
            schema_="ymir.snapshot/1",
            taken_at_s=float(view.now_s),
            round_s=self.round_s,
            cluster=Cluster.model_construct(nodes=self._nodes(view)),
            queues=self._queues,
            jobs=jobs,
            groups=member_of,
            rejected_merges=self._rejected(view),
            adapters=self._adapters(view) if self.adapters else (),
            profiles=rows,
            labels=FrozenDict(),
        )

    def _nodes(self, view: SnapshotView) -> tuple[Node, ...]:
        nodes = view.nodes
        types, ready = nodes["node_type"], nodes["node_ready"]
        resident: tuple[tuple[int, ...], ...] = nodes.get("node_resident", ())
        models: tuple[str, ...] = nodes.get("models", ())
        out = []
        for i, name in enumerate(nodes["node_id"]):
            held = tuple(models[m] if m >= 0 else None for m in resident[i]) if resident else ()
            out.append(
                Node.model_construct(
                    id=name,
                    gpu_type=view.speed.types[types[i]],
                    gpus=int(nodes["node_gpus"][i]),
                    gpu_memory_gib=float(view.speed.gpu_memory_gib[types[i]]),
                    state=NodeState.READY if ready[i] else NodeState.DOWN,
                    unavailable_gpus=(),
                    external_used_gib=(),
                    resident_fm=held if any(m is not None for m in held) else (),
                    cpus=None,
                    host_memory_gib=None,
                    rack=None,
                    labels=FrozenDict(),
                )
            )
        return tuple(out)

    def _fixed(self, view: SnapshotView, row: int) -> dict[str, Any]:
        """Return a job's fields that never change, built on first sight."""
        serial = int(view.column("serial")[row])
        known = self._jobs.get(serial)
        if known is not None:
            return known
        requested = int(view.requested_gpus[row])
        deadline = float(view.column("deadline_s")[row])
        mask, types = int(view.column("type_mask")[row]), view.speed.types
        allowed = tuple(name for t, name in enumerate(types) if mask >> t & 1)
        common: dict[str, Any] = {
            "id": view.id(row),
            "queue": view.queues[int(view.column("queue")[row])],
            "submitted_at_s": float(view.submitted_at_s[row]),
            "priority": int(view.column("priority")[row]),
            "weight": float(view.column("weight")[row]),
            "deadline_s": deadline if np.isfinite(deadline) else None,
            "gpu_types": None if len(allowed) == len(types) else allowed,
            "sharing": SHARING[int(view.column("sharing")[row])],
            "movable": bool(view.column("movable")[row]),
            "min_runtime_s": float(view.column("min_runtime_s")[row]),
        }
        if view.key[row] == RIGID:
            common |= {"requested_gpus": requested, "min_gpus": requested, "max_gpus": requested}
            job = Job(**common, remaining_s=1.0)
        else:
            model, batch = view.speed.names[int(view.key[row])]
            largest = int(view.max_gpus[row])
            job = Job(
                **common,
                foundation_model=model,
                task=task_name(view.transfer, int(view.kind[row])),
                batch_size=int(batch),
                requested_gpus=min(requested, largest),
                min_gpus=int(view.min_gpus[row]),
                max_gpus=largest,
                remaining_samples=1.0,
            )
        fields = {name: getattr(job, name) for name in Job.model_fields}
        self._jobs[serial] = fields
        return fields

    def _job_rows(
        self, view: SnapshotView, held: Mapping[int, Mapping[str, tuple[int, ...]]]
    ) -> tuple[Job, ...]:
        values = {name: view.column(name).tolist() for name in _COLUMNS}
        alive = view.column("serial").tolist()
        if len(self._jobs) > 2 * len(alive) + 64:
            keep = set(alive)
            self._jobs = {serial: fields for serial, fields in self._jobs.items() if serial in keep}
        out = []
        for row in range(len(view)):
            fields = dict(self._fixed(view, row))
            rigid = fields["remaining_s"] is not None
            running = values["gpus"][row] > 0
            first, last = values["first_start_s"][row], values["last_start_s"][row]
            wait = values["not_before_s"][row]
            fields.update(
                done_samples=0.0 if rigid else values["done"][row],
                state=JobState.RUNNING if running else JobState.PENDING,
                allocation=held.get(row) if running else None,
                first_start_s=None if math.isnan(first) else first,
                last_start_s=last if running else None,
                not_before_s=wait if wait > view.now_s else None,
                running_s=values["productive_s"][row],
                attained_gpu_s=values["held_gpu_s"][row],
                failed_starts=values["failed_starts"][row],
                restarts=values["restarts"][row],
                preemptions=values["preemptions"][row],
            )
            left = values["remaining"][row]
            fields["remaining_s" if rigid else "remaining_samples"] = left
            if view.work_log_sd and not rigid:
                spread = math.exp(Z80 * view.work_log_sd)
                fields.update(remaining_samples_low=left / spread, remaining_samples_high=left * spread)
            out.append(Job.model_construct(**fields))
        return tuple(out)

    def _groups(
        self, view: SnapshotView
    ) -> tuple[dict[int, Mapping[str, tuple[int, ...]]], tuple[RunningGroup, ...]]:
        """Return the allocation by row, and the running groups of more than one member or with a history."""
        names = view.nodes["node_id"]
        held: dict[int, Mapping[str, tuple[int, ...]]] = {
            row: _allocation(names, taken) for row, taken in view.places.items()
        }
        groups = []
        for group in view.groups:
            mode = Mode(group.mode)
            where = _allocation(names, group.nodes)
            for row in group.rows[:1] if mode is Mode.SEQUENCE else group.rows:
                held[row] = where
            probe = None
            if group.probe is not None:
                over = group.probe == "passed"
                probe = ProbeState(state="passed" if over else "running", evaluations_left=0 if over else 1)
            starts = {
                view.id(row): StartSource(adapter=adapter_name(kind))
                for row, kind in group.starts_from.items()
                if kind in view.adapters
            }
            groups.append(
                RunningGroup.model_construct(
                    id=f"run-{group.id}",
                    mode=mode,
                    jobs=tuple(view.id(row) for row in group.rows),
                    starts_from=freeze(starts),
                    started_at_s=float(group.started_at_s),
                    probe=probe,
                )
            )
        return held, tuple(groups)

    @staticmethod
    def _rejected(view: SnapshotView) -> tuple[RejectedMerge, ...]:
        if not view.rejected:
            return ()
        row_of = {int(serial): row for row, serial in enumerate(view.column("serial"))}
        out = []
        for mode, serials in sorted(view.rejected, key=lambda item: (item[0], sorted(item[1]))):
            rows = [row_of.get(serial) for serial in sorted(serials)]
            if all(row is not None for row in rows):
                ids = tuple(view.id(row) for row in rows if row is not None)
                out.append(RejectedMerge(jobs=ids, mode=Mode(mode)))
        return tuple(out)

    def _adapters(self, view: SnapshotView) -> tuple[CompletedAdapter, ...]:
        """Return the adapters that some job would start or has started from; the others are dominated."""
        transfer = view.transfer
        kinds = {int(kind) for kind in view.kind if kind >= 0}
        found = [best_adapter(transfer, kind, view.adapters) for kind in kinds]
        useful = {kind for kind in found if kind is not None}
        useful |= {kind for group in view.groups for kind in group.starts_from.values()} & view.adapters
        if self.every_adapter:
            useful |= set(view.adapters)
        return tuple(
            CompletedAdapter(
                id=adapter_name(kind),
                foundation_model=transfer.models[kind],
                task=task_name(transfer, kind) or f"class {kind}",
                tenant="default",
                sharing=Sharing.ALL,
            )
            for kind in sorted(useful)
        )


def _allocation(names: tuple[str, ...], taken: tuple[tuple[int, int], ...]) -> FrozenDict:
    return freeze(
        {
            names[node]: tuple(g for g in range(mask.bit_length()) if mask >> g & 1)
            for node, mask in sorted(taken)
        }
    )


def decision_of(view: SnapshotView, plan: Plan) -> Decision:
    """Return a plan as a decision.

    Raises
    ------
    InvalidPlanError
        The plan names a job or node that the view does not have.
    """
    row_of = {name: row for row, name in enumerate(view.ids())}
    node_of = {name: i for i, name in enumerate(view.nodes["node_id"])}
    action = {entry.job: entry.action for entry in plan.actions}
    gpus = np.zeros(len(view), dtype=np.int64)
    kinds = np.full(len(view), -1, dtype=np.int64)
    nodes: dict[int, tuple[tuple[int, int], ...]] = {}
    moved: set[int] = set()
    groups = []
    for group in plan.groups:
        try:
            rows = tuple(row_of[name] for name in group.jobs)
            where = _masks(group, node_of)
        except KeyError as error:
            raise InvalidPlanError(
                f"groups.{group.id}", f"names {error}, which is unknown", "solve again"
            ) from None
        kept = action.get(group.jobs[0]) is ActionKind.KEEP
        kind = view.speed.types.index(group.gpu_type)
        if not kept:
            moved.update(row for row in rows if view.gpus[row])
        if len(rows) == 1 and (kept or not group.starts_from):
            gpus[rows[0]], kinds[rows[0]] = group.gpus, kind
            if not kept:
                nodes[rows[0]] = where
            continue
        groups.append(
            GroupDecision(
                group.mode.value,
                rows,
                group.gpus,
                kind,
                {} if kept else _sources(view, group, row_of),
                group.probe.evaluations if group.probe is not None else 0,
                _limits(group, row_of),
                None if kept else where,
            )
        )
    solver = plan.solver
    return Decision(
        gpus,
        gpu_type=kinds,
        groups=tuple(groups),
        nodes=nodes,
        moved=frozenset(moved),
        objective=solver.objective,
        bound=solver.bound,
        value_gap=solver.value_gap,
        why=partial(_why, view, plan),
    )


def _why(view: SnapshotView, plan: Plan, row: int) -> str:
    """Return the plan's own explanation of a job."""
    name = view.id(row)
    found = plan.explanations.get(name)
    return "" if found is None else f"{name}: {found.message} ({found.reason.value})"


def _limits(group: Group, row_of: Mapping[str, int]) -> dict[int, float]:
    """Return the 80 % limits of the members' work, beyond which the plan's probe fails."""
    highs = {name: predicted.high for name, predicted in group.predicted.items()}
    return {row_of[name]: high for name, high in highs.items() if high is not None and name in row_of}


def _masks(group: Group, node_of: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (node_of[name], sum(1 << gpu for gpu in gpus)) for name, gpus in group.placement.items() if gpus
    )


def _sources(view: SnapshotView, group: Group, row_of: Mapping[str, int]) -> dict[int, int]:
    out = {}
    for name, source in group.starts_from.items():
        if source.adapter is not None:
            out[row_of[name]] = int(source.adapter.rpartition("-")[2])
        elif source.job is not None:
            out[row_of[name]] = int(view.kind[row_of[source.job]])
    return out
