"""What the checker reports."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Violation"]


@dataclass(frozen=True, order=True)
class Violation:
    """One broken invariant.

    Attributes
    ----------
    invariant : int
        Its number, 1 to 8.
    place : str
        Where in the plan, such as ``groups[3].placement``.
    message : str
        One line with the numbers and their units.
    """

    invariant: int
    place: str
    message: str
