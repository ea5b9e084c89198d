"""Errors that a user can act on: every one names the place, the value and the remedy."""

from __future__ import annotations

__all__ = ["InputError", "InvalidPlanError", "NotFoundError", "SolverError", "YmirError"]


class YmirError(Exception):
    """Base of every error that the package raises on purpose.

    Parameters
    ----------
    place : str
        Where the fault is, such as ``jobs[3].max_gpus`` or a file name with a line.
    problem : str
        What is wrong, with the offending value.
    remedy : str
        What the user can do about it.
    """

    exit_code = 2

    def __init__(self, place: str, problem: str, remedy: str = "") -> None:
        self.place = place
        self.problem = problem
        self.remedy = remedy
        super().__init__(self.one_line())

    def one_line(self) -> str:
        """Return ``place: problem; remedy`` on a single line without control characters."""
        text = f"{self.place}: {self.problem}" if self.place else self.problem
        if self.remedy:
            text += f"; {self.remedy}"
        return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


class InputError(YmirError):
    """The input is wrong: a file, a field or an option (exit code 2)."""


class NotFoundError(InputError):
    """A named thing does not exist: a policy, a solver, a job, a file (exit code 2)."""


class InvalidPlanError(YmirError):
    """A plan breaks an invariant, or nothing feasible was found (exit code 1)."""

    exit_code = 1


class SolverError(YmirError):
    """A solver failed in a way that is not the input's fault (exit code 1)."""

    exit_code = 1
