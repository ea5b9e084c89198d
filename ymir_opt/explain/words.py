"""Figures as words: one form and one unit for each kind of number, so that reasons read alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["amount", "count_of", "gpus_of", "names", "percentage", "seconds", "worth"]


def seconds(value: float) -> str:
    """Return seconds as ``42 s``, ``7 min``, ``1 h 05 min`` or ``3 d 04 h``."""
    if not math.isfinite(value):
        return "never"
    if value < 99.5:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(value / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def count_of(number: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def gpus_of(value: float) -> str:
    """Return a number of GPUs, which of a quota may be a fraction: ``1 GPU``, ``2.5 GPUs``."""
    return f"{value:.6g} GPU" if value == 1 else f"{value:.6g} GPUs"


def amount(value: float) -> str:
    """Return a large number in groups of three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", " ")


def percentage(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:.3g} %"


def worth(value: float) -> str:
    """Return a figure in units of the objective."""
    return f"{value:.3g} of objective"


def names(items: Iterable[str], limit: int = 4, noun: str = "") -> str:
    """Return the first few names and how many more there are."""
    known: Sequence[str] = list(items)
    text = ", ".join(known[:limit])
    if len(known) > limit:
        more = len(known) - limit
        text += f" and {count_of(more, f'more {noun}')}" if noun else f" and {more} more"
    return text
