"""Remembers the answer for the last object asked about, by identity.

A simulation asks thousands of snapshots that share one immutable ``profiles`` object; what depends on
it alone is then computed once. Objects are held strongly, so an identity is never reused meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["LastOne"]

T = TypeVar("T")


class LastOne(Generic[T]):
    """Memo of one entry: an immutable object, and further arguments compared by value."""

    def __init__(self) -> None:
        self._entry: tuple[Any, Hashable, T] | None = None

    def get(self, key: Any, make: Callable[[], T], more: Hashable = None) -> T:
        """Return the remembered answer for this very object, else make and remember it."""
        entry = self._entry
        if entry is None or entry[0] is not key or entry[1] != more:
            entry = (key, more, make())
            self._entry = entry
        return entry[2]
