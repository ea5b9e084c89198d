"""Snapshots from Titan's workloads and profiles (SoCC'22, public simulator).

A workload row has no duration: work, speed, memory and transfer follow from measured step times and
learning curves (:mod:`ymir_opt.jobmodel`). The snapshot holds the jobs that were submitted by a time,
either all of them pending without progress, or as a policy's simulation left them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ymir_opt.domain.documents import sha256
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Cluster, Job, Profiles, Snapshot, Target
from ymir_opt.domain.validate import validate
from ymir_opt.importers.base import Imported, some_of
from ymir_opt.importers.nodes import memory_options, nodes_of
from ymir_opt.importers.titan_rows import (
    PEFT_TYPE,
    Transfers,
    colocation_rows,
    switch_rows,
    throughput_rows,
    transfer_rows,
)
from ymir_opt.jobmodel import JobModel, WorkloadJob, read_workload
from ymir_opt.simulator.cluster import parse_cluster

__all__ = ["import_titan", "titan_job", "titan_snapshot"]

SUBMITTED = "submitted"
MAX_GPUS = 32


def import_titan(
    workload: str,
    *,
    profiles: str,
    at: float,
    cluster: str,
    active: str = SUBMITTED,
    against: str = "best-single",
    warm_s: float | None = None,
    gpu_memory: tuple[str, ...] = (),
) -> Imported:
    """Make a snapshot from one of Titan's workloads.

    Parameters
    ----------
    workload : str
        CSV file with name, submission_time, application, num_gpus, target_batch_size, ...
    profiles : str
        Folder with lut/ and curves/.
    at : float
        Time of the snapshot, seconds; jobs submitted by then are in it.
    cluster : str
        Nodes x GPUs : type, such as 8x4:V100,4x8:A100.
    active : str
        submitted: every job pending, without progress; policy:NAME: what is left when that policy has
        run the trace until then.
    against : str
        best-single or trace: the single-task run to which transfer ratios that the planner uses compare.
    warm_s : float or None
        Seconds of a start on GPUs that hold the model (default: as a cold one; the tables do not say).
    gpu_memory : tuple of str
        TYPE=GIB, memory of a GPU type.

    Raises
    ------
    InputError
        A file is missing or wrong (place, line and column are named), a model or task is unknown, or an
        option is.
    """
    if not math.isfinite(at):
        raise InputError("--at", f"{at} is not a finite number", "give seconds")
    if warm_s is not None and not (math.isfinite(warm_s) and warm_s >= 0):
        raise InputError("--warm-s", f"{warm_s} is not a number of 0 or more", "give seconds")
    if against not in ("best-single", "trace"):
        raise InputError("--against", f"{against[:40]!r} is unknown", "use best-single or trace")
    kind, _, policy = active.partition(":")
    if active != SUBMITTED and (kind != "policy" or not policy):
        raise InputError("--active", f"{active[:40]!r} is unknown", "use submitted or policy:NAME")
    model = JobModel(Path(profiles))
    rows = read_workload(workload)
    snapshot, notes = titan_snapshot(
        model,
        rows,
        at=at,
        cluster=cluster,
        against=against,
        warm_s=warm_s,
        gpu_memory=memory_options(gpu_memory),
    )
    if policy:
        from ymir_opt.importers.titan_state import state_under_policy

        snapshot = state_under_policy(
            snapshot, workload, model, policy, cluster, warm_s=warm_s, against=against
        )
    validate(snapshot)
    number = len(snapshot.jobs)
    if number == 0:
        notes.append(f"no job is active at {at:g} s; the first is submitted at {_first(rows)}")
    summary = (
        f"{number} of {len(rows)} jobs, {sum(node.gpus for node in snapshot.cluster.nodes)} GPUs, "
        f"{len(snapshot.profiles.throughput)} throughput and {len(snapshot.profiles.transfer)} transfer rows"
    )
    return Imported(snapshot, summary, tuple(notes))


def _first(rows: Sequence[WorkloadJob]) -> str:
    return f"{rows[0].submitted_at_s:g} s" if rows else "no time: the workload has no rows"


def titan_snapshot(
    model: JobModel,
    rows: Sequence[WorkloadJob],
    *,
    at: float,
    cluster: str,
    against: str = "best-single",
    warm_s: float | None = None,
    gpu_memory: dict[str, float] | None = None,
) -> tuple[Snapshot, list[str]]:
    """Return the snapshot with every job submitted by `at` pending, and notes on what was censored.

    The profile rows cover the whole workload, also tasks that arrive later.
    """
    given = gpu_memory or {}
    specs = parse_cluster(cluster)
    sizes: dict[str, int] = {}
    for spec in specs:
        sizes[spec.gpu_type] = max(spec.gpus, sizes.get(spec.gpu_type, 0))
    models = tuple(dict.fromkeys(row.model for row in rows))
    nodes = nodes_of(specs, given, {kind: _proven_memory(model, kind) for kind in sizes})
    jobs, notes = _jobs(model, [row for row in rows if row.submitted_at_s <= at])
    transfers = transfer_rows(model, rows, against)
    throughput = throughput_rows(model, rows, sizes, MAX_GPUS)
    snapshot = Snapshot(
        taken_at_s=at,
        cluster=Cluster(nodes=nodes),
        jobs=jobs,
        profiles=Profiles(
            throughput=tuple(throughput),
            switch_s=tuple(switch_rows(model, models, sizes, warm_s)),
            transfer=transfers.rows,
            colocation=tuple(colocation_rows(model, rows, sizes)),
        ),
        labels=_labels(transfers, against),
    )
    return snapshot, notes + _transfer_notes(transfers) + _coverage_notes(snapshot, sizes)


def _proven_memory(model: JobModel, gpu_type: str) -> float:
    """Return the most memory that any table of a GPU type was measured with, GiB."""
    tables = [model.memory_table(name, gpu_type) for name in model.models(gpu_type)]
    return max((float(table.gib[-1]) for table in tables if table is not None), default=0.0)


def _jobs(model: JobModel, rows: Sequence[WorkloadJob]) -> tuple[tuple[Job, ...], list[str]]:
    jobs, censored, capped = [], [], []
    for row in rows:
        try:
            job, reached = titan_job(model, row)
        except InputError as error:
            where = f"job {row.name[:60]!r} ({row.model[:60]}@{row.task[:60]})"
            raise type(error)(where, f"{error.place}: {error.problem}", error.remedy) from None
        jobs.append(job)
        if not reached:
            censored.append(row.name)
        if job.requested_gpus != row.requested_gpus:
            capped.append(row.name)
    notes = []
    if censored:
        notes.append(
            f"{len(censored)} jobs never reach their target in {model.max_epochs():g} epochs; "
            f"their work is censored there: {some_of(censored)}"
        )
    if capped:
        notes.append(
            f"{len(capped)} jobs request more GPUs than their batch can use; requests lowered: "
            f"{some_of(capped)}"
        )
    return tuple(jobs), notes


def titan_job(model: JobModel, row: WorkloadJob) -> tuple[Job, bool]:
    """Return a workload row as a pending job, and whether its own curve reaches the target.

    Raises
    ------
    InputError
        The model has no step times, the task no known size, or the setting no curve.
    """
    largest = model.max_gpus(row.model, row.batch_size, MAX_GPUS)
    work = model.work(row)
    setting = {"learning_rate": row.learning_rate, "accumulation_steps": row.accumulation}
    labels: dict[str, object] = dict(setting)
    if not work.reached:
        labels["target_reached"] = False
    job = Job(
        id=row.name,
        submitted_at_s=row.submitted_at_s,
        foundation_model=row.model,
        task=row.task,
        peft_type=PEFT_TYPE,
        hyperparameters_sha256=sha256(setting),
        target=Target(
            metric=model.curves.metrics.get((row.model, row.task)),
            value=row.target,
            max_samples=model.max_epochs() * model.samples_per_epoch(row.task),
        ),
        batch_size=row.batch_size,
        remaining_samples=work.samples,
        requested_gpus=min(row.requested_gpus, largest),
        min_gpus=1,
        max_gpus=largest,
        labels=labels,
    )
    return job, work.reached


def _labels(transfers: Transfers, against: str) -> dict[str, object]:
    """Say in the document itself what its transfer rows compare, and what has no row."""
    other = "trace" if against == "best-single" else "best-single"
    return {
        "source": "titan",
        "transfer_rows": f"first row of a pair against {against}, second against {other}",
        "censored_transfers": [
            {
                "mode": each.mode,
                "foundation_model": each.model,
                "source": each.source,
                "target": each.target,
                "at_least": each.at_least,
            }
            for each in transfers.censored
        ],
    }


def _transfer_notes(transfers: Transfers) -> list[str]:
    notes = []
    for mode, words in (("warm_start", "warm-start"), ("joint", "joint")):
        missed = [each for each in transfers.censored if each.mode == mode]
        if missed:
            names = [f"{each.source} -> {each.target}" for each in missed]
            notes.append(
                f"{len(missed)} {words} curves never reach the target and have no row (censored): "
                f"{some_of(names, 3)}"
            )
    if transfers.varied:
        notes.append(
            "jobs of one task with several settings or targets share a transfer row with limits: "
            f"{some_of([f'{name}@{task}' for name, task in transfers.varied])}"
        )
    return notes


def _coverage_notes(snapshot: Snapshot, sizes: dict[str, int]) -> list[str]:
    wide = [kind for kind, size in sizes.items() if size > 4]
    rows = [row for row in snapshot.profiles.throughput if row.nodes is not None and row.gpu_type in wide]
    if not rows:
        return []
    return [
        f"step times were measured on nodes of 4 GPUs: {len(rows)} rows on {', '.join(wide)} are those of "
        "more nodes than a gang would use"
    ]
