"""A job's speed alone and in company, in the shape of a snapshot's profiles; bounded to a few seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from ymir_opt.domain.request import SubmittedJob
from ymir_opt.runtime.backbone import Backbone
from ymir_opt.runtime.dataset import JobData, Stream
from ymir_opt.runtime.memory import is_out_of_memory, memory_gib, release
from ymir_opt.runtime.session import Rows, Runtime
from ymir_opt.runtime.settings import Settings, settings_of

__all__ = ["gpu_type_of", "profile_rows"]

COMPANY = (2, 4)
SECONDS = 2.0
LEAST, MOST = 3, 12


def gpu_type_of(device: torch.device) -> str:
    """Return the name under which figures of a device are kept, such as ``NVIDIA-H100`` or ``CPU``."""
    if device.type != "cuda":
        return "CPU"
    return re.sub(r"[^\w.]+", "-", str(torch.cuda.get_device_name(device))).strip("-")


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type != "cuda":
        # the thread's CPU time: neighbours on a shared machine disturb it little
        return time.thread_time

    def wall() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return wall


class _Company:
    """K copies of a job's adapter, each with rows of its own, in one step."""

    def __init__(self, runtime: Runtime, settings: Settings, data: JobData, members: int) -> None:
        self.runtime = runtime
        self.names = [f"profile:{k}" for k in range(members)]
        stream = Stream(0, len(data.train.labels))
        self.rows = []
        for k, name in enumerate(self.names):
            runtime.add(name, settings.spec, settings.targets).add_head("profile", len(data.classes))
            taken = data.train.take(stream.take(k * settings.batch_size, settings.batch_size))
            self.rows.append(Rows(name, "profile", taken.inputs, taken.labels))

    def step(self, members: int) -> None:
        self.runtime.step(self.rows[:members])

    def close(self) -> None:
        for name in self.names:
            self.runtime.remove(name)


def _timed(company: _Company, clock: Callable[[], float], sizes: Sequence[int]) -> dict[int, list[float]]:
    """Time steps of several sizes in turn, so that a disturbance meets all of them."""
    for size in sizes:
        company.step(size)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    end = time.perf_counter() + SECONDS * len(sizes)
    for number in range(MOST):
        for size in sizes:
            start = clock()
            company.step(size)
            seconds[size].append(clock() - start)
        if number + 1 >= LEAST and time.perf_counter() > end:
            break
    return seconds


def profile_rows(
    runtime: Runtime, backbone: Backbone | None, request: SubmittedJob, data: JobData, cold_s: float | None
) -> dict[str, list[dict[str, Any]]]:
    """Measure a job's step alone and with 1 and 3 copies of itself on the same backbone.

    Returns
    -------
    dict
        ``throughput``, ``colocation``, ``switch_s`` and ``backbone_gib`` rows of a snapshot's profiles.
        A company that does not fit into memory has no row.

    Raises
    ------
    InputError
        If the request names no trainable adapter.
    """
    settings = settings_of(request, len(data.train.labels))
    device, clock = runtime.device, _clock(runtime.device)
    gpu_type = gpu_type_of(device)
    key = {
        "foundation_model": request.model.label,
        "peft_type": request.peft.peft_type,
        "config": request.config,
        "batch_size": settings.batch_size,
    }
    started = clock()
    first = _Company(runtime, settings, data, 1)
    try:
        first.step(1)
    finally:
        first.close()
    warm_s = clock() - started
    times: dict[int, list[float]] = {}
    memory: dict[int, float | None] = {}
    for sizes in ((1, 2), (4,)):
        company = _Company(runtime, settings, data, max(sizes))
        try:
            times.update(_timed(company, clock, sizes))
            memory.update(dict.fromkeys(sizes, memory_gib(device)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            release(device)
            break
        finally:
            company.close()
    if 1 not in times:
        company = _Company(runtime, settings, data, 1)
        try:
            times.update(_timed(company, clock, (1,)))
            memory[1] = memory_gib(device)
        finally:
            company.close()
    alone = median(times[1])
    rows: dict[str, list[dict[str, Any]]] = {
        "throughput": [
            {
                **key,
                "gpu_type": gpu_type,
                "gpus": 1,
                "samples_per_s": settings.batch_size / alone,
                "memory_gib": memory[1],
            }
        ],
        "colocation": [
            {
                "mode": "colocate",
                "gpu_type": gpu_type,
                "gpus": 1,
                "members": [dict(key)] * size,
                "speed_ratio": [alone / median(times[size])] * size,
                "memory_gib": memory[size],
            }
            for size in COMPANY
            if size in times
        ],
        "switch_s": [],
        "backbone_gib": [],
    }
    if cold_s is not None:
        figures = {"cold_s": cold_s, "warm_s": warm_s}
        rows["switch_s"] = [{"foundation_model": request.model.label, "gpu_type": gpu_type, **figures}]
    if backbone is not None:
        rows["backbone_gib"] = [{"foundation_model": request.model.label, "gib": backbone.gib}]
    return rows
