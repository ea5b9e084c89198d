"""Ymir-opt: the optimisation-solver scheduling core for foundation-model fine-tuning jobs.

The names below load on first use, so that ``import ymir_opt`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ymir_opt.api import solve
    from ymir_opt.domain.errors import YmirError
    from ymir_opt.domain.outcome import outcome
    from ymir_opt.domain.plan import Plan
    from ymir_opt.domain.snapshot import Snapshot
    from ymir_opt.verify import check

__all__ = ["Plan", "Snapshot", "YmirError", "check", "outcome", "simulate", "solve"]

_HOMES = {
    "Plan": "ymir_opt.domain.plan",
    "Snapshot": "ymir_opt.domain.snapshot",
    "YmirError": "ymir_opt.domain.errors",
    "check": "ymir_opt.verify",
    "outcome": "ymir_opt.domain.outcome",
    "simulate": "ymir_opt.simulator",
    "solve": "ymir_opt.api",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("ymir-opt")
    if name not in _HOMES:
        raise AttributeError(f"module 'ymir_opt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
