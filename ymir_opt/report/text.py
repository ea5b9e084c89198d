"""Figures as short text for pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

__all__ = ["amount", "count_of", "duration", "figure", "gpu_ranges", "percent", "placement_text", "signed"]

NONE = "–"


def duration(seconds: float | None) -> str:
    """Return seconds as text: ``42 s``, ``7 min``, ``1 h 05 min``, ``3 d 04 h``; a dash for None."""
    if seconds is None:
        return NONE
    sign, left = ("−", -seconds) if seconds < 0 else ("", seconds)
    if left < 99.5:
        return f"{sign}{left:.0f} s"
    minutes = round(left / 60)
    if minutes < 60:
        return f"{sign}{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{sign}{hours} h {minutes:02d} min"
    days, hours = divmod(round(left / 3600), 24)
    return f"{sign}{days} d {hours:02d} h"


def figure(value: float | None, digits: int = 4) -> str:
    """Return a number at some significant digits; a dash for None."""
    if value is None:
        return NONE
    text = f"{value:.{digits}g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def signed(value: float | None, digits: int = 3) -> str:
    """Return a number with its sign; a dash for None."""
    if value is None:
        return NONE
    return ("+" if value > 0 else "") + figure(value, digits)


def amount(value: float | None) -> str:
    """Return a large number in groups of three digits, ``12 300``; small ones at three digits."""
    if value is None:
        return NONE
    if abs(value) < 1000:
        return figure(value, 3)
    return f"{value:,.0f}".replace(",", " ").replace("-", "−")


def percent(value: float | None) -> str:
    """Return a fraction as a percentage; a dash for None."""
    if value is None:
        return NONE
    return "0 %" if value == 0 else f"{figure(100 * value, 3)} %"


def gpu_ranges(gpus: Iterable[int]) -> str:
    """Return GPU indices as ranges: ``0–3, 6``."""
    runs = groupby(enumerate(sorted(gpus)), key=lambda item: item[1] - item[0])
    parts = []
    for _, run in runs:
        numbers = [number for _, number in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}")
    return ", ".join(parts)


def placement_text(placement: Mapping[str, Iterable[int]]) -> str:
    """Return nodes with their GPUs, ``n0: 0–3; n1: 0``."""
    return "; ".join(f"{node}: {gpu_ranges(gpus)}" for node, gpus in placement.items())


def count_of(number: int, noun: str) -> str:
    """Return ``1 job``, ``2 jobs``."""
    return f"{amount(number)} {noun}" if number == 1 else f"{amount(number)} {noun}s"
