"""Backends that misbehave, for the guard; the child process imports this module by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from solver_models import greedy_point

from ymir_opt.solvers.base import Capabilities, Limits, SolveResult, Status, StoppedBy


class Overrunning:
    """Reports a better point and a bound, starts a program of its own, and never comes back."""

    name = "overrunning"
    capabilities = Capabilities(exact=False, deterministic=False, work_limit=False)

    def solve(self, model, *, incumbent=None, limits=None, seed=0, progress=None):
        assert progress is not None
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note = os.environ.get("YMIR_TEST_NOTE")
        if note:
            Path(note).write_text(str(other.pid))
        progress(greedy_point(model), float(model.offset) + 0.9)
        time.sleep(600)


class Silent:
    """Reports nothing and never comes back."""

    name = "silent"
    capabilities = Overrunning.capabilities

    def solve(self, model, *, incumbent=None, limits=None, seed=0, progress=None):
        time.sleep(600)


class Crashing:
    """Ends the process at once, like a fault in a C library."""

    name = "crashing"
    capabilities = Overrunning.capabilities

    def solve(self, model, *, incumbent=None, limits=None, seed=0, progress=None):
        os._exit(77)


class Lying:
    """Claims an optimum that breaks every row, and prints about it."""

    name = "lying"
    capabilities = Overrunning.capabilities

    def solve(self, model, *, incumbent=None, limits: Limits | None = None, seed=0, progress=None):
        os.write(1, b"noise")
        x = np.zeros(model.variables, np.int64)
        return SolveResult(Status.OPTIMAL, x, 0, 0, StoppedBy.OPTIMALITY)
