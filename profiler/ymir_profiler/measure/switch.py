"""What it costs to change from one job to another: from nothing, and with a warm backbone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.checkpoint import load_adapter, save_adapter
from ymir_profiler.measure.base import Outcome
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.machine import spending
from ymir_profiler.measure.steps import lora_stepper
from ymir_profiler.measure.timing import clock_of

__all__ = ["Switch"]

ROWS, LENGTH = 1, 32
REPEATS = 5
TIMEOUT_S = 600


@dataclass(frozen=True)
class Switch:
    """Cold start to the first step in a new process; warm: add, load, restore, write, swap."""

    kind: str = "switch"

    @property
    def title(self) -> str:
        """A few words."""
        return "cold and warm switches"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return {
            "gpu_type": bench.gpu_type,
            "machine": dict(bench.machine),
            "rows": ROWS,
            "length": LENGTH,
            "r": bench.recipe.adapter.r,
            "dtype": bench.recipe.model.dtype,
        }

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return 15.0

    def measure(self, bench: Bench) -> Outcome:
        """Measure every part; warm parts are medians of several tries."""
        clock = clock_of(bench.device, 1)
        cold_cpu, cold_wall = _cold(bench)
        runtime, spec = bench.runtime, bench.spec(0)
        step = lora_stepper(runtime, bench.backbone, spec, 2, ROWS, LENGTH)
        step()

        def repeated(action: Callable[[], object]) -> float:
            figures = []
            for _ in range(REPEATS):
                with spending(bench.device) as spent:
                    action()
                figures.append(spent.cpu_s if clock == "cpu" else spent.wall_s)
            return median(figures)

        with tempfile.TemporaryDirectory(prefix="ymir-switch-") as folder:
            whole, bare = Path(folder) / "whole", Path(folder) / "bare"
            adapter = runtime.adapters["timed 0"]
            value: dict[str, Any] = {
                "clock": clock,
                "cold_cpu_s": cold_cpu,
                "cold_wall_s": cold_wall,
                "write_s": repeated(lambda: save_adapter(adapter, whole)),
                "load_with_optimiser_s": repeated(lambda: load_adapter(runtime, whole, "loaded")),
            }
            save_adapter(adapter, bare, optimiser=False)
            value["load_s"] = repeated(lambda: load_adapter(runtime, bare, "loaded"))
            value["restore_optimiser_s"] = max(0.0, value["load_with_optimiser_s"] - value["load_s"])
        runtime.adapters.clear()
        value["add_s"] = repeated(lambda: runtime.add("new", spec).add_head("synthetic", 4))
        value["first_step_s"] = _first_step(bench, repeated)
        value["cold_s"] = cold_cpu if clock == "cpu" else cold_wall
        value["warm_s"] = value["load_with_optimiser_s"] + value["first_step_s"]
        runtime.adapters.clear()
        return Outcome(value)


def _first_step(bench: Bench, repeated: Callable[[Callable[[], object]], float]) -> float:
    def first() -> None:
        lora_stepper(bench.runtime, bench.backbone, bench.spec(0), 1, ROWS, LENGTH)()

    return repeated(first)


def _cold(bench: Bench) -> tuple[float, float]:
    """Return CPU and wall seconds of a new process that loads the model and takes one step."""
    with tempfile.TemporaryDirectory(prefix="ymir-cold-") as folder:
        recipe = Path(folder) / "recipe.json"
        recipe.write_text(json.dumps(bench.recipe.model_dump(mode="json")), encoding="utf-8")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-m", "ymir_profiler.measure.worker", "cold", str(recipe), folder],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        wall = time.perf_counter() - started
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        problem = f"the new process failed ({last[:160]})"
        raise InputError("cold start", problem, "see whether the model loads")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall
