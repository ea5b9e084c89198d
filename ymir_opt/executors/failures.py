"""Starts that fail: waiting longer each time, and quarantine."""

from __future__ import annotations

from ymir_opt.executors.base import Options
from ymir_opt.executors.records import JobPhase, JobRecord

__all__ = ["backoff_s", "note_failure"]


def backoff_s(failed_starts: int, options: Options) -> float:
    """Return how long to wait after so many failed starts in a row: it doubles, up to a limit."""
    if failed_starts < 1:
        return 0.0
    return float(min(options.backoff_most_s, options.backoff_s * 2.0 ** min(failed_starts - 1, 60)))


def note_failure(job: JobRecord, why: str, now: float, options: Options) -> bool:
    """Note that a job's worker ended without being asked to.

    A job that has a newer checkpoint than at its last failure made progress: it may start again at once.

    Parameters
    ----------
    job : JobRecord
        Changed in place.
    why : str
    now : float
    options : Options

    Returns
    -------
    bool
        Whether this was a failed start.
    """
    job.rate = None
    if job.checkpoint_samples > max(0.0, job.samples_at_failure):
        job.samples_at_failure = job.checkpoint_samples
        job.failed_starts = 0
        job.not_before_s = None
        job.reason = f"starts again from its checkpoint: {why}"
        return False
    job.failed_starts += 1
    if job.failed_starts >= options.quarantine_after:
        job.phase = JobPhase.QUARANTINED
        job.finished_at_s = now
        job.not_before_s = None
        job.reason = f"quarantined after {job.failed_starts} failed starts: {why}"
        return True
    job.not_before_s = now + backoff_s(job.failed_starts, options)
    job.reason = f"failed start {job.failed_starts}: {why}"
    return True
