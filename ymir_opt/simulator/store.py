"""Active jobs in two stores that are kept apart: what may be seen, and what is true.

``columns`` (:class:`~ymir_opt.policies.view.JobColumns`) holds observations and estimates and is what views
are made of; :class:`~ymir_opt.simulator.state.Truth` never leaves the simulator. Progress is piecewise
linear: between two changes of a group every member has one rate, so nothing is advanced step by step.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.view import JobColumns
from ymir_opt.simulator.estimates import Estimates
from ymir_opt.simulator.state import Truth
from ymir_opt.simulator.workload import TraceJob, Workload

__all__ = ["JobStore"]

SHARING = ("none", "backbone", "tenant", "all")
LEAST_LEFT = 1e-3
"""An estimate of what is left never falls below this share of the estimated total."""


class JobStore:
    """Slots of active jobs."""

    def __init__(self, workload: Workload, estimates: Estimates, types: tuple[str, ...]) -> None:
        self.workload = workload
        self.estimates = estimates
        self.types = types
        self.columns = JobColumns()
        self.truth = Truth(self.columns.capacity)
        self.jobs: list[TraceJob | None] = [None] * self.columns.capacity
        self.fails_left: dict[int, int] = {}
        self.free_slots: list[int] = list(range(self.columns.capacity - 1, -1, -1))
        # slots of finished jobs; not used again before `order` has forgotten them
        self.retired: list[int] = []
        self.order: NDArray[np.int64] = np.zeros(self.columns.capacity, dtype=np.int64)
        self.listed = 0
        self.alive: NDArray[np.bool_] = np.zeros(self.columns.capacity, dtype=np.bool_)
        self.active = 0
        self.first_submission_s = math.inf
        self._queue = {name: i for i, name in enumerate(workload.queues)}
        self._keys = {name: i for i, name in enumerate(estimates.speed.names)}

    def job(self, slot: int) -> TraceJob:
        """Return the trace's job in a slot."""
        job = self.jobs[slot]
        if job is None:
            raise AssertionError(f"slot {slot} is empty")
        return job

    def arrive(self, job: TraceJob, serial: int) -> int:
        """Add a job; return its slot."""
        slot = self._take_slot()
        self.put(slot, job)
        self.first_submission_s = min(self.first_submission_s, job.submitted_at_s)
        data, truth = self.columns.data, self.truth.data
        for values in (*data.values(), *truth.values()):
            values[slot] = 0
        total = self.estimates.total(job)
        for name, value in (
            ("serial", serial),
            ("submitted_at_s", job.submitted_at_s),
            ("weight", job.weight),
            ("deadline_s", job.deadline_s),
            ("not_before_s", -math.inf),
            ("min_runtime_s", job.min_runtime_s),
            ("first_start_s", math.nan),
            ("last_start_s", math.nan),
            ("requested_gpus", job.requested_gpus),
            ("min_gpus", job.min_gpus),
            ("max_gpus", job.max_gpus),
            ("key", -1 if job.rigid else self._keys.get((job.model, job.batch_size), -1)),
            ("kind", job.kind),
            ("priority", job.priority),
            ("queue", self._queue.get(job.queue, 0)),
            ("type_mask", self._type_mask(job)),
            ("gpu_type", -1),
            ("group", -1),
            ("movable", job.movable),
            ("sharing", SHARING.index(job.sharing)),
            ("estimated_total", total),
            ("remaining", total),
        ):
            data[name][slot] = value
        truth["work"][slot] = job.work
        truth["held_since"][slot] = job.submitted_at_s
        if job.failing_starts:
            self.fails_left[slot] = job.failing_starts
        return slot

    def _type_mask(self, job: TraceJob) -> int:
        if job.gpu_types is None:
            return (1 << len(self.types)) - 1
        return sum(1 << t for t, name in enumerate(self.types) if name in job.gpu_types)

    def put(self, slot: int, job: TraceJob) -> None:
        """Occupy a slot with a job, its columns untouched."""
        self.jobs[slot] = job
        self.columns.ids[slot] = job.id
        self.alive[slot] = True
        if self.listed == len(self.order):
            self.active_slots()
        if self.listed == len(self.order):
            self.order = np.concatenate([self.order, np.zeros_like(self.order)])
        self.order[self.listed] = slot
        self.listed += 1
        self.active += 1

    def _take_slot(self) -> int:
        if not self.free_slots and self.retired:
            self.active_slots()
        if not self.free_slots:
            old = self.columns.capacity
            self.grow()
            self.free_slots = list(range(2 * old - 1, old - 1, -1))
        return self.free_slots.pop()

    def grow(self) -> None:
        """Double the capacity."""
        old = self.columns.capacity
        self.columns.grow()
        self.truth.grow()
        self.jobs.extend([None] * old)
        self.alive = np.concatenate([self.alive, np.zeros(old, dtype=np.bool_)])

    def forget(self, slot: int) -> None:
        """Give a finished job's slot back."""
        self.alive[slot] = False
        self.jobs[slot] = None
        self.fails_left.pop(slot, None)
        self.retired.append(slot)
        self.active -= 1

    def active_slots(self) -> NDArray[np.int64]:
        """Return the slots of the active jobs in order of arrival."""
        slots = self.order[: self.listed]
        if self.listed != self.active:
            slots = slots[self.alive[slots]]
            self.listed = len(slots)
            self.order[: self.listed] = slots
            self.free_slots.extend(self.retired)
            self.retired.clear()
        return slots.copy()

    # ------------------------------------------------------------- progress

    def settle(self, slots: NDArray[np.int64], now: float) -> None:
        """Bring progress and attained service of the slots up to `now`."""
        truth, data = self.truth.data, self.columns.data
        since, share = truth["since"][slots], truth["share"][slots]
        passed = np.where(share > 0, np.maximum(0.0, now - since), 0.0)
        truth["done"][slots] = np.minimum(
            truth["work"][slots], truth["done"][slots] + passed * truth["rate"][slots]
        )
        truth["since"][slots] = np.maximum(since, now)
        data["productive_s"][slots] += passed
        data["attained_gpu_s"][slots] += passed * share
        data["held_gpu_s"][slots] += (now - truth["held_since"][slots]) * share
        truth["held_since"][slots] = now
        data["done"][slots] = truth["done"][slots]
        total = data["estimated_total"][slots]
        data["remaining"][slots] = np.maximum(total - data["done"][slots], LEAST_LEFT * total)

    def settle_one(self, slot: int, now: float) -> None:
        """Bring one slot up to `now`."""
        truth, data = self.truth.data, self.columns.data
        since, share = truth["since"][slot], truth["share"][slot]
        if share > 0 and now > since:
            passed = now - since
            truth["done"][slot] = min(truth["work"][slot], truth["done"][slot] + passed * truth["rate"][slot])
            truth["since"][slot] = now
            data["productive_s"][slot] += passed
            data["attained_gpu_s"][slot] += passed * share
        data["held_gpu_s"][slot] += (now - truth["held_since"][slot]) * share
        truth["held_since"][slot] = now
        data["done"][slot] = truth["done"][slot]
        self._refresh(slot)

    def _refresh(self, slot: int) -> None:
        data = self.columns.data
        total = data["estimated_total"][slot]
        data["remaining"][slot] = max(total - data["done"][slot], LEAST_LEFT * total)

    def amounts(self, slot: int) -> tuple[float, float, float]:
        """Return (true work, true progress, estimated total)."""
        truth = self.truth.data
        total = self.columns.data["estimated_total"][slot]
        return float(truth["work"][slot]), float(truth["done"][slot]), float(total)

    def reset_amounts(self, slot: int, amounts: tuple[float, float, float]) -> None:
        """Go back to earlier amounts (a merge is rolled back)."""
        truth, data = self.truth.data, self.columns.data
        truth["work"][slot], truth["done"][slot], data["estimated_total"][slot] = amounts
        data["done"][slot] = truth["done"][slot]
        self._refresh(slot)

    def scale_left(self, slot: int, true: float, estimated: float) -> None:
        """Multiply what is left, in truth and estimate (entering or leaving joint training)."""
        truth, data = self.truth.data, self.columns.data
        done = truth["done"][slot]
        truth["work"][slot] = done + true * (truth["work"][slot] - done)
        data["estimated_total"][slot] = done + estimated * max(data["estimated_total"][slot] - done, 0.0)
        self._refresh(slot)

    def begin_anew(self, slot: int, true: float, estimated: float) -> None:
        """Start from other weights: own progress is discarded, work is ratio x (done + left)."""
        truth, data = self.truth.data, self.columns.data
        truth["work"][slot] *= true
        data["estimated_total"][slot] *= estimated
        truth["done"][slot] = data["done"][slot] = 0.0
        self._refresh(slot)
