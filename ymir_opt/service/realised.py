"""Predicted against realised: a line for each job that shared or started from other weights.

The lines are what fitted models learn from later (``realised.jsonl`` of the jobs folder).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from ymir_opt.domain.errors import YmirError
from ymir_opt.executors.base import Happening
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.records import GroupRecord, JobRecord

__all__ = ["row_of", "write_rows"]


def row_of(pool: WorkerPool, job: JobRecord, group: GroupRecord, event: Happening) -> dict[str, Any]:
    """Return what was predicted of a member and what became of it."""
    request = pool.state.request(job.key)
    others = [key for key in group.jobs if key != job.key]
    source = group.sources.get(job.key)
    began = max(group.started_at_s, job.last_start_s or 0.0)
    seconds = max(1e-9, float(event["at_s"]) - began)
    samples = job.samples - job.samples_at_start
    return {
        "at_s": event["at_s"],
        "event": event["event"],
        "mode": group.mode,
        "group": group.id,
        "job": job.id,
        "task": request.task_name,
        "foundation_model": request.model.label,
        "config": request.config,
        "batch_size": request.training.global_batch_size,
        "others": [pool.state.request(key).task_name for key in others],
        "source": None if source is None else pool.state.request(source[1]).task_name,
        "predicted": group.predicted.get(job.key, {}),
        "realised": {
            "samples": samples,
            "seconds": seconds,
            "samples_per_s": samples / seconds,
            "metric": job.metric,
            "state": str(job.phase),
            "reason": job.reason,
        },
    }


def write_rows(pool: WorkerPool, news: tuple[Happening, ...]) -> int:
    """Append a line for every member of a merge, or starter from other weights, that ended or was split."""
    rows = []
    for event in news:
        group = pool.state.groups.get(str(event.get("group")))
        if group is None or event["event"] not in ("ended", "split"):
            continue
        ids = [event["job"]] if event["event"] == "ended" else event["jobs"]
        for name in ids:
            job = pool.state.by_id(str(name))
            if (
                job is not None
                and job.key in group.jobs
                and (len(group.jobs) > 1 or job.key in group.sources)
            ):
                # what is said of a job whose request is damaged would be worth nothing
                with suppress(YmirError):
                    rows.append(row_of(pool, job, group, event))
    if rows:
        with open(pool.folder.realised, "a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    return len(rows)
