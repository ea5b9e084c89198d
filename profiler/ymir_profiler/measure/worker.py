"""A process of its own, for cold starts and for jobs that share a device as separate processes.

``cold RECIPE FOLDER`` loads the model and takes one step. ``share RECIPE FOLDER NUMBER ROWS LENGTH CORE``
warms up, writes ``ready-NUMBER``, waits for ``go``, steps until ``stop`` exists and writes its figures
to ``result-NUMBER``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ymir_opt.domain.documents import write_atomic
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.machine import wait_for
from ymir_profiler.measure.steps import lora_stepper
from ymir_profiler.recipe import Recipe, recipe_from

__all__ = ["main"]

POLL_S = 0.01


def _bench(path: str) -> tuple[Recipe, Bench]:
    recipe = recipe_from(json.loads(Path(path).read_text(encoding="utf-8")))
    return recipe, Bench(recipe)


def _cold(recipe: str) -> None:
    _, bench = _bench(recipe)
    lora_stepper(bench.runtime, bench.backbone, bench.spec(0), 1, 1, 32)()
    wait_for(bench.device)


def _share(recipe: str, folder: Path, number: str, rows: int, length: int, core: int) -> None:
    if core >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    _, bench = _bench(recipe)
    step = lora_stepper(bench.runtime, bench.backbone, bench.spec(0), 1, rows, length)
    for _ in range(3):
        step()
    wait_for(bench.device)
    write_atomic(folder / f"ready-{number}", "")
    while not (folder / "go").exists():
        time.sleep(POLL_S)
    cpu, wall, steps = time.process_time(), time.perf_counter(), 0
    while not (folder / "stop").exists():
        step()
        wait_for(bench.device)
        steps += 1
    figures = {
        "steps": steps,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
    }
    write_atomic(folder / f"result-{number}", json.dumps(figures))


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say."""
    what, recipe, folder, *rest = arguments
    if what == "cold":
        _cold(recipe)
    else:
        number, rows, length, core = rest
        _share(recipe, Path(folder), number, int(rows), int(length), int(core))


if __name__ == "__main__":
    main(sys.argv[1:])
