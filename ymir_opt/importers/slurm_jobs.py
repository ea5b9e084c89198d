"""Slurm's jobs as rigid jobs of a snapshot: what they request, what they hold, how long they may run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from pydantic import ValidationError

from ymir_opt.domain.base import first_error
from ymir_opt.domain.snapshot import Job, JobState, Sharing, Workers
from ymir_opt.importers.slurm_fields import Record
from ymir_opt.importers.slurm_nodes import UNTYPED, Machine, Part
from ymir_opt.importers.slurm_text import Gres, expand_hosts, expand_indices, gpus_of

__all__ = ["Request", "Tally", "jobs_of", "request_of"]

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"})
ENDED = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}) | {
    *("DEADLINE", "OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL", "EXPEDITING"),
    *("POWER_UP_NODE", "STAGE_OUT", "UPDATE_DB"),
}
NOT_ELIGIBLE = ("Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue")
MAX_TASKS = 1000


@dataclass(frozen=True)
class Request:
    """GPUs that a job asks for.

    Attributes
    ----------
    kind : str or None
    gpus : int
        Together.
    workers : int
        Equal parts that may lie on different nodes; 1: one gang on the fewest nodes.
    """

    kind: str | None
    gpus: int
    workers: int = 1


@dataclass
class Tally:
    """Why jobs were left out, and what was assumed about the others."""

    left_out: Counter[str] = field(default_factory=Counter)
    assumed: Counter[str] = field(default_factory=Counter)


def request_of(record: Record) -> Request | str | None:
    """Return what a job requests, a reason why it cannot be stated, or None without GPUs."""
    nodes = record.count("node_count") or 1
    tasks = record.count("tasks") or 1
    for name, workers in (
        ("tres_per_task", tasks),
        ("tres_per_node", nodes),
        ("tres_per_job", 1),
        ("tres_req_str", 1),
        ("tres_alloc_str", 1),
    ):
        found = _gpus(record, name)
        if not found:
            continue
        kinds = {each.kind for each in found}
        if len(kinds) > 1:
            return "asks for several GPU types"
        each = sum(gres.count for gres in found)
        if each == 0:
            continue
        return Request(found[0].kind, each * workers, workers)
    if _gpus(record, "tres_per_socket"):
        return "asks for GPUs by socket"
    return None


def _gpus(record: Record, name: str) -> tuple[Gres, ...]:
    text = record.text(name)
    try:
        return gpus_of(text)
    except ValueError:
        record.unclear(name, text)
        return ()


def jobs_of(
    record: Record, machines: dict[str, Machine], now_s: float, default_s: float, tally: Tally
) -> list[Job]:
    """Return a record's jobs: none, one, or the waiting tasks of an array.

    The GPUs of a running job are marked as used; those of one that cannot be stated as busy.
    """
    words = record.words("job_state")
    unknown = words - PENDING - RUNNING - ENDED
    if unknown:
        record.notes.field(f"{record.place}.job_state", f"{', '.join(sorted(unknown))} is not known")
    if words & RUNNING:
        return _running(record, machines, now_s, default_s, tally)
    if words & PENDING:
        return _pending(record, machines, now_s, default_s, tally)
    tally.left_out["ended" if words & ENDED else "in an unknown state"] += 1
    return []


def _common(record: Record, name: str, default_s: float, tally: Tally) -> dict[str, object]:
    limit = record.number("time_limit")
    labels: dict[str, object] = {}
    for key, field_name in (("name", "name"), ("user", "user_name"), ("partition", "partition")):
        if record.text(field_name):
            labels[key] = record.text(field_name)
    priority = record.number("priority")
    if priority is not None and math.isfinite(priority):
        labels["slurm_priority"] = priority
    if limit is None or not math.isfinite(limit) or limit <= 0:
        tally.assumed[f"without a time limit are taken to need {default_s:g} s"] += 1
        limit_s = default_s
    else:
        limit_s = limit * 60.0
    return {
        "id": name,
        "queue": record.text("account") or "default",
        "submitted_at_s": _finite(record.number("submit_time")),
        "sharing": Sharing.NONE,
        "labels": labels,
        "remaining_s": limit_s,
    }


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _name(record: Record, task: int | None = None) -> str:
    array, number = record.number("array_job_id"), record.number("array_task_id")
    if task is None and array and number is not None:
        task = int(number)
    if task is not None and array:
        return f"{int(array)}_{task}"
    return record.text("job_id") or _plain(record.number("job_id")) or record.place


def _plain(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else str(int(value))


def _pending(
    record: Record, machines: dict[str, Machine], now_s: float, default_s: float, tally: Tally
) -> list[Job]:
    request = request_of(record)
    if request is None:
        tally.left_out["without GPUs"] += 1
        return []
    if isinstance(request, str):
        tally.left_out[request] += 1
        return []
    reason = record.text("state_reason")
    if reason in NOT_ELIGIBLE or record.data.get("hold") is True:
        tally.left_out["held or waiting for another job"] += 1
        return []
    begin = max(_finite(record.number("eligible_time")), 0.0)
    fields: dict[str, object] = {"requested_gpus": request.gpus}
    if request.workers > 1:
        each = request.gpus // request.workers
        fields = {"workers": Workers(count=request.workers, gpus_each=each)}
    if request.kind is not None:
        fields["gpu_types"] = _types(request.kind, machines)
    if begin > now_s:
        fields["not_before_s"] = begin
    selector = _selector(record, tally)
    if selector:
        fields["node_selector"] = selector
    out = []
    for task in _tasks(record, tally):
        common = _common(record, _name(record, task), default_s, tally)
        made = _made(record, {**common, **fields}, tally)
        out += [made] if made is not None else []
    return out


def _made(record: Record, fields: dict[str, object], tally: Tally) -> Job | None:
    """Return a job, or None with a note where a field cannot be one."""
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        fault = first_error(error, Job)
        record.notes.field(f"{record.place}.{fault.place}", f"{fault.problem}; the job is left out")
        tally.left_out["with a field that is not understood"] += 1
        return None


def _types(kind: str, machines: dict[str, Machine]) -> tuple[str, ...]:
    """Return the cluster's spelling of a GPU type (Slurm ignores case), or the type as it is."""
    known = {part.kind for machine in machines.values() for part in machine.parts}
    return tuple(sorted(name for name in known if name.lower() == kind.lower())) or (kind,)


def _tasks(record: Record, tally: Tally) -> list[int | None]:
    text = record.text("array_task_string")
    if not text or record.number("array_task_id") is not None:
        return [None]
    listed, _, limit = text.partition("%")
    try:
        tasks = list(expand_indices(listed))
    except ValueError:
        record.unclear("array_task_string", text)
        return [None]
    if limit:
        tally.assumed["of arrays may run at once, whatever the array's own limit"] += len(tasks)
    if len(tasks) > MAX_TASKS:
        tally.left_out[f"array tasks beyond {MAX_TASKS}"] += len(tasks) - MAX_TASKS
    return [*tasks[:MAX_TASKS]]


def _selector(record: Record, tally: Tally) -> dict[str, str]:
    partitions = [name for name in record.text("partition").split(",") if name]
    selector = {}
    if len(partitions) == 1:
        selector[f"partition/{partitions[0]}"] = "true"
    elif partitions:
        tally.assumed["name several partitions and may run in any"] += 1
    features = record.text("features")
    if features and not set(features) & set("|[]()*"):
        selector |= {f"feature/{word}": "true" for word in features.split("&") if word}
    elif features:
        tally.assumed["have a choice of features, which is not read"] += 1
    for name in ("required_nodes", "excluded_nodes"):
        if record.text(name):
            tally.assumed[f"name {name.replace('_', ' ')}, which are not read"] += 1
    return selector


def _running(
    record: Record, machines: dict[str, Machine], now_s: float, default_s: float, tally: Tally
) -> list[Job]:
    held = _held(record, machines, tally)
    if not held:
        wanted = request_of(record) is not None
        tally.left_out["on GPUs that the nodes do not list" if wanted else "without GPUs"] += 1
        return []
    kinds = {part.kind for part, _ in held}
    if len(kinds) > 1 or any(set(numbers) & (part.used | part.busy) for part, numbers in held):
        for part, numbers in held:
            part.busy |= set(numbers) - part.used
        why = "hold several GPU types" if len(kinds) > 1 else "hold GPUs that another job holds"
        tally.left_out[f"{why} (their GPUs are unavailable)"] += 1
        return []
    allocation = {
        part.node: tuple(sorted(number - part.first for number in numbers)) for part, numbers in held
    }
    common = _common(record, _name(record), default_s, tally)
    start = record.number("start_time")
    start = now_s if start is None or not math.isfinite(start) or start <= 0 else min(start, now_s)
    limit_s = float(str(common["remaining_s"]))
    end = record.number("end_time")
    if end is None or not math.isfinite(end) or end <= start:
        end = start + limit_s
    gpus = sum(map(len, allocation.values()))
    fields = {
        "requested_gpus": gpus,
        "gpu_types": tuple(kinds),
        "state": JobState.RUNNING,
        "allocation": allocation,
        "first_start_s": start,
        "last_start_s": start,
        "running_s": now_s - start,
        "attained_gpu_s": gpus * (now_s - start),
        "remaining_s": max(0.0, end - now_s),
        "restarts": max(0, int(_finite(record.number("restart_cnt")))),
        # a batch job without checkpoints loses everything if it is stopped
        "movable": False,
    }
    made = _made(record, {**common, **fields}, tally)
    for part, numbers in held:
        (part.busy if made is None else part.used).update(numbers)
    return [] if made is None else [made]


def _held(record: Record, machines: dict[str, Machine], tally: Tally) -> list[tuple[Part, tuple[int, ...]]]:
    """Return the GPUs that a job holds, by part of a machine."""
    resources = record.data.get("job_resources")
    text = record.text("nodes")
    if not text and isinstance(resources, dict) and isinstance(resources.get("nodes"), str):
        text = resources["nodes"]
    try:
        hosts = expand_hosts(text)
    except ValueError:
        record.unclear("nodes", text)
        return []
    details = record.data.get("gres_detail")
    lines = details if isinstance(details, list) else []
    out: list[tuple[Part, tuple[int, ...]]] = []
    for i, host in enumerate(hosts):
        line = lines[i] if i < len(lines) and isinstance(lines[i], str) else None
        out += _on_host(record, host, line, len(hosts), machines, tally)
    return out


def _on_host(
    record: Record, host: str, line: str | None, hosts: int, machines: dict[str, Machine], tally: Tally
) -> list[tuple[Part, tuple[int, ...]]]:
    machine = machines.get(host)
    if line is not None:
        try:
            wanted = gpus_of(line)
        except ValueError:
            record.unclear("gres_detail", line)
            return []
    else:
        request = request_of(record)
        if not isinstance(request, Request):
            return []
        wanted = (Gres(request.kind, max(1, request.gpus // hosts)),)
    if not any(each.count for each in wanted):
        return []
    if machine is None:
        record.notes.field(f"{record.place}.nodes", f"{host[:60]!r} is no node with GPUs in the nodes file")
        return []
    out = []
    for each in wanted:
        part = _part(machine, each)
        if part is None:
            record.notes.field(f"{record.place}.gres_detail", f"node {host[:60]!r} has no such GPUs")
            continue
        numbers = each.indices
        if numbers is None or not set(numbers) <= set(part.numbers) or len(numbers) != each.count:
            free = [number for number in part.numbers if number not in part.used | part.busy]
            numbers = tuple(free[: each.count])
            tally.assumed["do not say which GPUs they hold; free ones are taken"] += 1
        if numbers:
            out.append((part, numbers))
    return out


def _part(machine: Machine, gres: Gres) -> Part | None:
    if gres.kind is None or len(machine.parts) == 1:
        if gres.indices:
            inside = [part for part in machine.parts if gres.indices[0] in part.numbers]
            return inside[0] if inside else machine.parts[0]
        return machine.parts[0]
    kind = (gres.kind or UNTYPED).lower()
    return next((part for part in machine.parts if part.kind.lower() == kind), None)
