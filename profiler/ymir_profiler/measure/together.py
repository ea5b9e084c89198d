"""Speed of K members together over alone: on one backbone, and as separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.memory import is_out_of_memory
from ymir_profiler.measure.base import Outcome
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.machine import load_average, memory_gib, spending
from ymir_profiler.measure.runs import FLOPS
from ymir_profiler.measure.speed import config_of
from ymir_profiler.measure.steps import lora_stepper
from ymir_profiler.measure.timing import clock_of, interval

__all__ = ["Colocate", "GpuShare"]

BLOCKS = 9
START_S = 300
WINDOW_S = 4.0


def _subject(bench: Bench, mode: str, members: int, batch_size: int, length: int) -> dict[str, Any]:
    return {
        "mode": mode,
        "members": members,
        "batch_size": batch_size,
        "length": length,
        "config": config_of(bench, length),
        "gpu_type": bench.gpu_type,
        "machine": dict(bench.machine),
    }


def _estimate(bench: Bench, members: int, batch_size: int, length: int) -> float:
    parameters = bench.multiplied
    rows = batch_size * (members + 1)
    return 0.5 + (BLOCKS + 1) * (0.1 + 6 * parameters * rows * length / FLOPS / 3)


@dataclass(frozen=True)
class Colocate:
    """K adapters on one frozen backbone in one process, all rows in one batch.

    Steps alone and together alternate, so that a disturbance meets both; the ratio is the median of the
    pairs' ratios.
    """

    members: int
    batch_size: int
    length: int
    kind: str = "colocation"

    @property
    def title(self) -> str:
        """A few words."""
        return f"colocate {self.members} x batch {self.batch_size}"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return _subject(bench, "colocate", self.members, self.batch_size, self.length)

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return _estimate(bench, self.members, self.batch_size, self.length)

    def measure(self, bench: Bench) -> Outcome:
        """Measure."""
        clock = clock_of(bench.device, 1)
        runtime, spec = bench.runtime, bench.spec(0)
        if bench.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(bench.device)
        try:
            rows = (self.batch_size, self.length)
            together = lora_stepper(runtime, bench.backbone, spec, self.members, *rows)
            alone = lora_stepper(runtime, bench.backbone, spec, 1, *rows)
            ratios, singles = [], []
            together()
            memory = memory_gib(bench.device)
            for block in range(BLOCKS + 1):
                with spending(bench.device) as one:
                    alone()
                with spending(bench.device) as many:
                    together()
                a, k = (one.cpu_s, many.cpu_s) if clock == "cpu" else (one.wall_s, many.wall_s)
                if block:  # the first warms up
                    ratios.append(a / k)
                    singles.append(a)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return Outcome({"members": self.members}, "out-of-memory")
        finally:
            runtime.adapters.clear()
        ratio, low, high = interval(ratios)
        return Outcome(
            {
                "clock": clock,
                "speed_ratio": [ratio] * self.members,
                "speed_ratio_low": low,
                "speed_ratio_high": high,
                "aggregate": ratio * self.members,
                "alone_step_s": float(np.median(singles)),
                "memory_gib": memory,
                "load": load_average(),
            }
        )


@dataclass(frozen=True)
class GpuShare:
    """K processes, each with its own copy of the model, on the same device.

    On a CPU all are bound to one core, and a member's rate is counted per CPU second of that core that
    all of them used, so that other users of the machine do not enter; on a GPU the wall clock counts.
    """

    members: int
    batch_size: int
    length: int
    kind: str = "colocation"

    @property
    def title(self) -> str:
        """A few words."""
        return f"gpu_share {self.members} x batch {self.batch_size}"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return _subject(bench, "gpu_share", self.members, self.batch_size, self.length)

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return (self.members + 1) * 10.0 + 2 * WINDOW_S

    def measure(self, bench: Bench) -> Outcome:
        """Measure alone, then together."""
        clock = clock_of(bench.device, 1)
        (alone,) = self._window(bench, 1)
        figures = self._window(bench, self.members)
        if clock == "cpu":
            busy = sum(f["cpu_s"] for f in figures)
            rates = [f["steps"] / busy for f in figures]
            base = alone["steps"] / alone["cpu_s"]
        else:
            rates = [f["steps"] / f["wall_s"] for f in figures]
            base = alone["steps"] / alone["wall_s"]
        ratios = [rate / base for rate in rates]
        return Outcome(
            {
                "clock": clock,
                "speed_ratio": ratios,
                "aggregate": sum(ratios),
                "alone_step_s": 1 / base,
                "memory_gib": None,
                "load": load_average(),
            }
        )

    def _window(self, bench: Bench, members: int) -> list[dict[str, float]]:
        bound = bench.device == "cpu" and hasattr(os, "sched_getaffinity")
        core = min(os.sched_getaffinity(0)) if bound else -1
        with tempfile.TemporaryDirectory(prefix="ymir-share-") as name:
            folder = Path(name)
            recipe = folder / "recipe.json"
            recipe.write_text(json.dumps(bench.recipe.model_dump(mode="json")), encoding="utf-8")
            command = [sys.executable, "-m", "ymir_profiler.measure.worker", "share", str(recipe), name]
            shape = [str(self.batch_size), str(self.length), str(core)]
            children = [
                subprocess.Popen(
                    [*command, str(number), *shape],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
                for number in range(members)
            ]
            try:
                _wait(children, [folder / f"ready-{n}" for n in range(members)], may_end=False)
                (folder / "go").touch()
                time.sleep(WINDOW_S * (members if bench.device == "cpu" else 1))
                (folder / "stop").touch()
                results = [folder / f"result-{n}" for n in range(members)]
                _wait(children, results, may_end=True)
                return [json.loads(path.read_text(encoding="utf-8")) for path in results]
            finally:
                for child in children:
                    child.kill()
                    child.wait()


def _wait(children: Sequence[subprocess.Popen[bytes]], paths: Sequence[Path], *, may_end: bool) -> None:
    end = time.monotonic() + START_S
    while not all(path.exists() for path in paths):
        ended = [c.poll() for c in children if c.poll() is not None]
        if any(ended) or (ended and not may_end) or time.monotonic() > end:
            raise InputError("gpu_share", "a member's process ended early", "see whether memory suffices")
        time.sleep(0.02)
