"""GPU memory of a planned group, from the estimates alone.

solo its row (else the job's ``memory_gib``); sequence the largest member; gpu_share the members'
sum; colocate the row, else the sum less (K - 1) backbones; joint the row at the summed batch.
"""

from __future__ import annotations

import math

import numpy as np

from ymir_opt.domain.snapshot import Job, Mode
from ymir_opt.estimates import Estimates, MemberKey, ThroughputKey
from ymir_opt.verify.facts import Placed

__all__ = ["MemoryNeeds"]


class MemoryNeeds:
    """Answers GiB per GPU, or None where nobody knows."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self._rows: dict[tuple[ThroughputKey, str, int, int], float | None] = {}
        self._groups: dict[int, float | None] = {}

    def of(self, placed: Placed) -> float | None:
        """Return the memory that a planned group needs on each GPU."""
        if placed.index not in self._groups:
            self._groups[placed.index] = self.need(
                placed.group.mode, placed.members, placed.group.gpu_type, placed.group.gpus
            )
        return self._groups[placed.index]

    def need(self, mode: Mode, members: tuple[Job, ...], gpu_type: str, gpus: int) -> float | None:
        """Return the memory of members on ``gpus`` GPUs of a type."""
        if not members or gpus < 1:
            return None
        if mode is Mode.JOINT:
            batch = sum(job.batch_size or 0 for job in members)
            return self._row(members[0], gpu_type, gpus, batch)
        each = [self._alone(job, gpu_type, gpus) for job in members]
        if mode is Mode.COLOCATE:
            found = self._colocated(members, gpu_type, gpus)
            if found is not None:
                return found
        known = [value for value in each if value is not None]
        if len(known) < len(each):
            return None
        if mode is Mode.SEQUENCE:
            return max(known)
        if mode is not Mode.COLOCATE:
            return sum(known)
        fm = members[0].foundation_model
        backbone = self._estimates.backbone_gib(fm) if fm is not None else None
        return None if backbone is None else sum(known) - (len(members) - 1) * backbone

    def _alone(self, job: Job, gpu_type: str, gpus: int) -> float | None:
        found = None
        if job.remaining_s is None:
            found = self._row(job, gpu_type, gpus, job.batch_size or 1)
        return job.memory_gib if found is None else found

    def _row(self, job: Job, gpu_type: str, gpus: int, batch: int) -> float | None:
        if job.foundation_model is None or batch < 1:
            return None
        key = (ThroughputKey(job.foundation_model, job.peft_type, job.config), gpu_type, gpus, batch)
        if key not in self._rows:
            _, memory, _ = self._estimates.throughput(
                key[0], gpu_type, np.array([gpus], dtype=np.int64), np.array([batch], dtype=np.int64)
            )
            value = float(memory[0])
            self._rows[key] = None if math.isnan(value) else value
        return self._rows[key]

    def _colocated(self, members: tuple[Job, ...], gpu_type: str, gpus: int) -> float | None:
        keys = []
        for job in members:
            if job.foundation_model is None or job.batch_size is None:
                return None
            keys.append(
                MemberKey(
                    ThroughputKey(job.foundation_model, job.peft_type, job.config), job.batch_size, job.task
                )
            )
        found = self._estimates.colocation.lookup(Mode.COLOCATE, gpu_type, gpus, keys)
        return found.memory_gib if found is not None else None
