"""What a figure was measured on, and what the process uses of it."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Spent", "describe", "gpu_type_of", "load_average", "memory_gib", "spending", "wait_for"]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe(device: str) -> dict[str, Any]:
    """Return the facts of this machine that a figure depends on; no names of hosts or users."""
    import torch

    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def gpu_type_of(device: str) -> str:
    """Return the name under which figures of a device are kept, such as ``NVIDIA-H100`` or ``CPU``."""
    if not device.startswith("cuda"):
        return "CPU"
    import torch

    return re.sub(r"[^\w.]+", "-", str(torch.cuda.get_device_name(device))).strip("-")


def load_average() -> float:
    """Return the load of the last minute, nan where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return float("nan")


def memory_gib(device: str) -> float | None:
    """Return the peak of the device's memory, on a CPU the process's proportional share; None if unknown."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.max_memory_allocated(device)) / 2**30
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) / 2**20 if found else None


def wait_for(device: str) -> None:
    """Wait until the device has done what was asked of it."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


@dataclass
class Spent:
    """Seconds of one block: of this process's CPU time and of the clock."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@contextmanager
def spending(device: str = "cpu") -> Iterator[Spent]:
    """Measure a block; the figures are there after it."""
    spent = Spent()
    wait_for(device)
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        wait_for(device)
        spent.cpu_s, spent.wall_s = time.process_time() - cpu, time.perf_counter() - wall
