"""Independent runs as Ray tasks, for sweeps over policies, traces and seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ymir_opt.domain.errors import NotFoundError
from ymir_opt.executors.ray import connect

__all__ = ["ADDRESS", "sweep"]

Task = TypeVar("Task")
Answer = TypeVar("Answer")

ADDRESS = "YMIR_RAY_ADDRESS"
"""Environment variable with the address of a running cluster; its nodes must see the working folder."""


def sweep(
    work: Callable[[Task], Answer],
    tasks: Sequence[Task],
    workers: int,
    done: Callable[[Task, Answer], None],
) -> None:
    """Run every task on one core of a Ray cluster; report each as it ends, in that order.

    Parameters
    ----------
    work : callable
        A function of a module that every node can import.
    tasks : sequence
    workers : int
        Cores of the instance that is started on this machine where no cluster is named.
    done : callable
        Called with a task and what became of it; what it raises ends the sweep.

    Raises
    ------
    NotFoundError
        Ray is not installed.
    InputError
        No cluster answers at the address.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise NotFoundError("--engine ray", "ray is not installed", "install the extra ray") from None
    own = not ray.is_initialized()
    if own:
        connect(os.environ.get(ADDRESS), ADDRESS, {"num_cpus": workers})
    running: dict[Any, Task] = {}
    try:
        remote = ray.remote(num_cpus=1, max_retries=2)(work)
        running = {remote.remote(task): task for task in tasks}
        while running:
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                done(running.pop(reference), ray.get(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if own:
            ray.shutdown()
