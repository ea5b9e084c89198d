"""What every measurement is, and what comes out of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ymir_profiler.measure.bench import Bench

__all__ = ["Measurement", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """A value with its status: ``ok``, ``non-finite`` or ``out-of-memory``."""

    value: Mapping[str, Any]
    status: str = "ok"


class Measurement(Protocol):
    """One thing to measure."""

    @property
    def kind(self) -> str:
        """Kind of record."""
        ...

    @property
    def title(self) -> str:
        """A few words for progress and dry runs."""
        ...

    def subject(self, bench: Bench) -> Mapping[str, Any]:
        """Return what is measured, with every condition that the result depends on."""
        ...

    def estimate_cpu_s(self, bench: Bench) -> float:
        """Return a rough cost in CPU seconds, before anything like it was measured."""
        ...

    def measure(self, bench: Bench) -> Outcome:
        """Measure."""
        ...
