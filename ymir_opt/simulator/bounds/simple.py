"""Two bounds that need no search: the cluster as one machine, and every job alone."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ymir_opt.simulator.bounds.instance import BoundInstance

__all__ = ["fastest_bound", "shortest_first_bound", "srpt_total_s"]

FloatArray = NDArray[np.float64]


def fastest_bound(instance: BoundInstance) -> float:
    """Return the mean of the jobs' least times: no job can end sooner after its submission, seconds."""
    return float(instance.fastest_s().mean()) if len(instance.submit_s) else 0.0


def shortest_first_bound(instance: BoundInstance) -> float:
    """Return the mean of completion minus submission of shortest-remaining-first on one fast machine.

    The machine does in a second what the cluster's GPUs do at their most efficient: a job takes its least
    GPU-seconds divided by the most GPUs that there ever are. Every schedule of the cluster becomes one of
    the machine that ends no job later (while a job holds g GPUs give it g / GPUs of the machine), and
    preemptive shortest-remaining-first has the least sum of completions on one machine (Schrage, 1968).
    """
    if not len(instance.submit_s):
        return 0.0
    gpus = instance.most_gpus()
    if gpus <= 0:
        return 0.0
    total = srpt_total_s(instance.submit_s, instance.area_s() / gpus)
    return total / len(instance.submit_s)


def srpt_total_s(submit_s: FloatArray, length_s: FloatArray) -> float:
    """Return the sum of completion minus submission under preemptive shortest-remaining-first."""
    order = np.argsort(submit_s, kind="stable")
    arrivals = submit_s[order].tolist()
    lengths = length_s[order].tolist()
    queue: list[float] = []
    now, total, i = 0.0, 0.0, 0
    while i < len(arrivals) or queue:
        if not queue:
            now = max(now, arrivals[i]) if i else arrivals[i]
        while i < len(arrivals) and arrivals[i] <= now:
            heapq.heappush(queue, lengths[i])
            i += 1
        shortest = heapq.heappop(queue)
        until = arrivals[i] if i < len(arrivals) else float("inf")
        if now + shortest <= until:
            now += shortest
            total += now
        else:
            heapq.heappush(queue, shortest - (until - now))
            now = until
    return total - float(submit_s.sum())
