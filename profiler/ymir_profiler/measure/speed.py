"""Throughput of one configuration, and the size of the backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ymir_opt.runtime.memory import is_out_of_memory
from ymir_profiler.measure.base import Outcome
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.machine import memory_gib
from ymir_profiler.measure.runs import FLOPS
from ymir_profiler.measure.steps import make_stepper
from ymir_profiler.measure.timing import clock_of, time_steps

__all__ = ["BackboneSize", "Throughput", "config_of"]


def config_of(bench: Bench, length: int, threads: int = 1) -> str:
    """Return the canonical text of what else a rate depends on: precision, length, rank, threads."""
    parts = [bench.recipe.model.dtype, f"len{length}", f"r{bench.recipe.adapter.r}"]
    return "-".join([*parts, f"t{threads}"] if bench.device == "cpu" else parts)


@dataclass(frozen=True)
class Throughput:
    """Samples per second of one PEFT type at a batch size, sequence length and number of threads."""

    peft_type: str
    batch_size: int
    length: int
    threads: int
    kind: str = "throughput"

    @property
    def title(self) -> str:
        """A few words."""
        return f"{self.peft_type}, batch {self.batch_size}, {self.length} tokens, {self.threads} threads"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return {
            "peft_type": self.peft_type,
            "batch_size": self.batch_size,
            "length": self.length,
            "threads": self.threads,
            "config": config_of(bench, self.length, self.threads),
            "gpu_type": bench.gpu_type,
            "machine": dict(bench.machine),
        }

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        steps = min(bench.recipe.throughput.max_steps, 12)
        parameters = bench.multiplied
        return 0.5 + steps * 6 * parameters * self.batch_size * self.length / FLOPS / 3

    def measure(self, bench: Bench) -> Outcome:
        """Time steps; where memory runs out the batch is halved until it does not."""
        options = bench.recipe.throughput
        clock = clock_of(bench.device, self.threads)
        rows = self.batch_size
        torch.set_num_threads(self.threads)
        try:
            while True:
                try:
                    if bench.device.startswith("cuda"):
                        torch.cuda.reset_peak_memory_stats(bench.device)
                    step = make_stepper(bench, self.peft_type, rows, self.length)
                    times = time_steps(
                        step,
                        device=bench.device,
                        clock=clock,
                        warmup=options.warmup_steps,
                        relative_width=options.relative_width,
                        most=options.max_steps,
                    )
                    break
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error) or rows == 1:
                        raise
                    rows //= 2
                    if bench.device.startswith("cuda"):
                        torch.cuda.empty_cache()
        finally:
            torch.set_num_threads(1)
            bench.runtime.adapters.clear()
        value = {
            **times.summary(clock, rows),
            "measured_batch_size": rows,
            "memory_gib": memory_gib(bench.device),
        }
        return Outcome(value, "ok" if rows == self.batch_size else "out-of-memory")


@dataclass(frozen=True)
class BackboneSize:
    """Memory of one copy of the frozen model."""

    kind: str = "backbone"

    @property
    def title(self) -> str:
        """A few words."""
        return "size of the backbone"

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured."""
        return {"dtype": bench.recipe.model.dtype}

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost."""
        return 0.0

    def measure(self, bench: Bench) -> Outcome:
        """Add up the weights."""
        return Outcome({"gib": bench.backbone.gib})
