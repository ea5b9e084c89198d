"""Solve the model in a folder and leave the answer there: ``python -m ymir_opt.solvers.child FOLDER``.

Improvements and bounds are written while the solver runs, so that they survive a kill.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import YmirError
from ymir_opt.solvers import exchange
from ymir_opt.solvers.base import Limits
from ymir_opt.solvers.registry import load

__all__ = ["main"]

BOUND_EVERY_S = 0.05
BAD_INPUT = 2


class _Stream:
    """Writes the best point and the best bound so far; the bound at most 20 times a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bound: float | None = None
        self.written = 0.0

    def __call__(self, x: NDArray[np.int64] | None, bound: float | None) -> None:
        if x is not None:
            exchange.write_point(self.folder / exchange.BEST, x)
        if bound is None or (self.bound is not None and bound <= self.bound):
            return
        now = time.monotonic()
        if x is None and now - self.written < BOUND_EVERY_S:
            return
        self.bound, self.written = bound, now
        exchange.write_json(self.folder / exchange.BOUND, {"bound": bound})


def main(folder: Path) -> int:
    """Solve what the folder holds; returns an exit code."""
    task = exchange.read_json(folder / exchange.TASK)
    if task is None:
        return BAD_INPUT
    try:
        backend = load(task["backend"])
        model = exchange.read_model(folder)
        incumbent = exchange.read_point(folder / exchange.INCUMBENT)
        # the solver's own limit strikes before the parent's kill, so that its bound comes home
        left = max(0.0, (task["deadline"] - time.monotonic()) * task["share"])
        limits = Limits(task["gap_quanta"], task["work"], left)
        result = backend.solve(
            model, incumbent=incumbent, limits=limits, seed=task["seed"], progress=_Stream(folder)
        )
    except YmirError as error:
        parts = {"place": error.place, "problem": error.problem, "remedy": error.remedy}
        exchange.write_json(folder / exchange.ERROR, parts)
        return error.exit_code
    exchange.write_result(folder, result)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
