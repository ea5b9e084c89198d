"""Figures and places as short text for tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["count_of", "duration", "figure", "gpu_ranges", "percent", "placement_text", "printable"]


def duration(seconds: float | None) -> str:
    """Return seconds as text: ``42 s``, ``7 min``, ``1 h 05 min``, ``3 d 04 h``; ``-`` for None."""
    if seconds is None:
        return "-"
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left < 99.5:
        return f"{sign}{left:.0f} s"
    minutes = round(left / 60)
    if minutes < 60:
        return f"{sign}{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{sign}{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{sign}{days} d {hours:02d} h"


def figure(value: float | None, digits: int = 6) -> str:
    """Return a number at some significant digits, or ``none`` where it is not known."""
    return "none" if value is None else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage, or ``none``."""
    if value is None:
        return "none"
    return "0 %" if value == 0 else f"{100 * value:.3g} %"


def gpu_ranges(gpus: Iterable[int]) -> str:
    """Return GPU indices as ranges: ``0-3,6``."""
    parts: list[str] = []
    ordered = sorted(gpus)
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            first, last = ordered[start], ordered[i - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = i
    return ",".join(parts)


def placement_text(placement: Mapping[str, Iterable[int]]) -> str:
    """Return nodes with their GPUs, ``n0:0-3 n1:0``."""
    return " ".join(f"{node}:{gpu_ranges(gpus)}" for node, gpus in placement.items())


def printable(text: str) -> str:
    """Return a text as one line that cannot steer a terminal: control characters are written out."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def count_of(number: int, noun: str) -> str:
    """Return ``1 job``, ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
