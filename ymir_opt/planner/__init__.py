"""The planner: estimates, candidates, formulation, solver, placement, check, reasons; one round at a time."""

from ymir_opt.planner.pipeline import solve

__all__ = ["solve"]
