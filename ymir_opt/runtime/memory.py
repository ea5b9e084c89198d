"""Running out of memory: how it looks, and what is in use."""

from __future__ import annotations

import re
from pathlib import Path

import torch

__all__ = ["is_out_of_memory", "memory_gib", "release", "rss_mib"]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def release(device: torch.device) -> None:
    """Give cached memory of a GPU back."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _proc(name: str, field: str) -> int | None:
    try:
        text = Path(f"/proc/self/{name}").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def memory_gib(device: torch.device) -> float | None:
    """Return the peak of the device's memory, on a CPU the process's proportional share; None if unknown."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**30
    share = _proc("smaps_rollup", "Pss")
    return None if share is None else share / 2**20


def rss_mib() -> float | None:
    """Return the memory that the process holds; None where the system does not tell."""
    resident = _proc("status", "VmRSS")
    return None if resident is None else resident / 2**10
