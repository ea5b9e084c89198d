"""Trace-driven what-if over time: engine, workloads, metrics, bounds.

``simulate`` runs a policy on a workload; see :func:`ymir_opt.simulator.engine.simulate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ymir_opt.simulator.engine import simulate

__all__ = ["simulate"]


def __getattr__(name: str) -> Any:
    """Load the engine on first use."""
    if name != "simulate":
        raise AttributeError(f"module 'ymir_opt.simulator' has no attribute {name!r}")
    from ymir_opt.simulator.engine import simulate

    return simulate
