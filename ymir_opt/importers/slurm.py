"""Snapshots from Slurm's JSON: ``squeue --json`` or the REST API's jobs, with the nodes.

Slurm says how long a job may run and what it holds, not how fast it trains: jobs are rigid, their
remaining time is what their limit leaves. Read tolerantly, for data parsers from 0.0.37 (21.08) on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Cluster, Job, Node, Queue, Snapshot
from ymir_opt.domain.validate import validate
from ymir_opt.importers.base import Imported, read_json
from ymir_opt.importers.nodes import memory_options
from ymir_opt.importers.slurm_fields import Notes, Record, records, version_note
from ymir_opt.importers.slurm_jobs import Tally, jobs_of
from ymir_opt.importers.slurm_nodes import Machine, machine_of, node_of

__all__ = ["import_slurm"]

DAY_S = 86_400.0


def import_slurm(
    jobs: str,
    *,
    nodes: str | None = None,
    at: float | None = None,
    default_time_s: float = DAY_S,
    gpu_memory: tuple[str, ...] = (),
) -> Imported:
    """Make a snapshot from Slurm's jobs and nodes.

    Parameters
    ----------
    jobs : str
        Output of squeue --json, or the jobs of the REST API; - for standard input.
    nodes : str or None
        Output of scontrol show nodes --json (sinfo --json before 23.02), or the nodes of the REST API.
    at : float or None
        Time of the snapshot, seconds since 1970 (default: when the jobs were listed).
    default_time_s : float
        How long a job without a time limit is taken to need, seconds.
    gpu_memory : tuple of str
        TYPE=GIB, memory of a GPU type.

    Raises
    ------
    InputError
        A file is missing or is no such document.
    """
    if at is not None and not math.isfinite(at):
        raise InputError("--at", f"{at} is not a finite number", "give seconds since 1970")
    if not (math.isfinite(default_time_s) and default_time_s > 0):
        raise InputError("--default-time-s", f"{default_time_s} is not above 0", "give seconds")
    notes, remarks = Notes(), []
    document = read_json(jobs)
    listed = records(document, _called(jobs), "jobs", notes)
    second, where = (read_json(nodes), nodes) if nodes is not None else (document, jobs)
    if nodes is None and not (isinstance(document, Mapping) and "nodes" in document):
        raise InputError(
            "--nodes", "the nodes are missing", "add --nodes with the output of scontrol show nodes --json"
        )
    if isinstance(second, Mapping) and "nodes" not in second and "sinfo" in second:
        raise InputError(
            where, "is a summary that names no single node's GPUs", "use scontrol show nodes --json"
        )
    for found, name in ((document, jobs), *([(second, where)] if nodes is not None else [])):
        remark = version_note(found, _called(name))
        if remark is not None:
            remarks.append(remark)
    machines = {
        machine.name: machine
        for machine in map(machine_of, records(second, _called(where), "nodes", notes))
        if machine is not None
    }
    taken = at if at is not None else _listed_at(document, listed)
    tally = Tally()
    made = _unique(
        [job for record in listed for job in jobs_of(record, machines, taken, default_time_s, tally)]
    )
    unknown: set[str] = set()
    cluster = _nodes(machines, memory_options(gpu_memory), unknown, tally)
    snapshot = Snapshot(
        taken_at_s=taken,
        cluster=Cluster(nodes=cluster),
        queues=tuple(Queue(name=name) for name in dict.fromkeys(job.queue for job in made)),
        jobs=tuple(made),
        labels={"source": "slurm"},
    )
    validate(snapshot)
    remarks += notes.texts() + _remarks(tally, unknown, made)
    running = sum(job.allocation is not None for job in made)
    summary = (
        f"{len(made)} jobs, {running} of them running, on {sum(node.gpus for node in cluster)} GPUs of "
        f"{len(machines)} machines"
    )
    return Imported(snapshot, summary, tuple(remarks))


def _called(path: str) -> str:
    return "standard input" if path == "-" else path


def _listed_at(document: Mapping[str, Any], jobs: list[Record]) -> float:
    """Return when the jobs were listed: the document's own time, else the latest event in it."""
    whole = Record("", document, Notes()).number("last_update")
    if whole is not None and math.isfinite(whole) and whole > 0:
        return whole
    times = [
        time
        for record in jobs
        for name in ("submit_time", "last_sched_evaluation", "suspend_time")
        if (time := record.number(name)) is not None and math.isfinite(time)
    ]
    return max(times, default=0.0)


def _unique(jobs: list[Job]) -> list[Job]:
    """Keep the first of every id (a federation may list a job twice)."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(job.id, job)
    return list(found.values())


def _nodes(
    machines: dict[str, Machine], given: dict[str, float], unknown: set[str], tally: Tally
) -> tuple[Node, ...]:
    out = []
    for machine in machines.values():
        for gres in machine.gres_used:
            for part in machine.parts:
                if gres.indices is None:
                    continue
                hidden = set(gres.indices) & set(part.numbers) - part.used - part.busy
                if hidden:
                    part.busy |= hidden
                    tally.left_out["GPUs in use by no listed job (unavailable)"] += len(hidden)
        out += [node_of(machine, part, given, unknown) for part in machine.parts]
    return tuple(out)


def _remarks(tally: Tally, unknown: set[str], jobs: list[Job]) -> list[str]:
    out = [f"left out: {number} {why}" for why, number in tally.left_out.items()]
    out += [f"{number} jobs {what}" for what, number in tally.assumed.items()]
    if jobs:
        out.append("a job's remaining time is what its time limit leaves; it may end earlier")
    for kind in sorted(unknown):
        out.append(f"memory of GPU type {kind} is unknown (0 GiB); add --gpu-memory {kind}=GIB")
    return out
