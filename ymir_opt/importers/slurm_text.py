"""Slurm's small languages: host lists, index lists, GRES and TRES strings."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Gres", "expand_hosts", "expand_indices", "gpus_of", "split_outside"]

MAX_EXPANDED = 200_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")


@dataclass(frozen=True)
class Gres:
    """GPUs of one type in a GRES or TRES string.

    Attributes
    ----------
    kind : str or None
        Type, None where the string has none.
    count : int
    indices : tuple of int or None
        GPU numbers on the node, None where they are not given.
    """

    kind: str | None
    count: int
    indices: tuple[int, ...] | None = None


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Split at a separator that is not inside brackets or parentheses."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in (*parts, text[start:]) if part]


def expand_indices(text: str) -> tuple[int, ...]:
    """Return the numbers of ``0-3,5``; empty for ``N/A``.

    Raises
    ------
    ValueError
        The text is not such a list, or is implausibly long.
    """
    if not text or text == "N/A":
        return ()
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is no index range")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low + len(found) > MAX_EXPANDED:
            raise ValueError(f"{part!r} is no index range")
        found += range(low, high + 1)
    return tuple(found)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of ``cn[001-003,7],gpu1`` (several brackets multiply).

    Raises
    ------
    ValueError
        Brackets do not match, or the list is implausibly long.
    """
    hosts: list[str] = []
    for part in split_outside(text):
        names = [""]
        rest = part
        while rest:
            head, bracket, tail = rest.partition("[")
            names = [name + head for name in names]
            if not bracket:
                break
            inside, closed, rest = tail.partition("]")
            if not closed:
                raise ValueError(f"{part!r} has no closing bracket")
            numbers = [text for piece in inside.split(",") for text in _numbers(piece)]
            if len(names) * len(numbers) > MAX_EXPANDED:
                raise ValueError(f"{part[:60]!r} names too many hosts")
            names = [name + number for name in names for number in numbers]
        hosts += names
    return tuple(hosts)


def _numbers(piece: str) -> list[str]:
    match = _RANGE.match(piece.strip())
    if match is None:
        raise ValueError(f"{piece!r} is no host range")
    low, high = match[1], match[2] or match[1]
    if int(high) < int(low) or int(high) - int(low) > MAX_EXPANDED:
        raise ValueError(f"{piece!r} is no host range")
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]


def gpus_of(text: str) -> tuple[Gres, ...]:
    """Return the GPUs of a GRES or TRES string, other resources left out.

    Understands ``gpu:h100:2(S:0-1)``, ``gpu:4``, ``gpu``, ``gres/gpu:h100:1``, ``gres:gpu:2``,
    ``gres/gpu=4``, ``gres/gpu:h100=4`` and ``gpu:h100:2(IDX:0-1)``. Where a string gives a total and the
    types (``gres/gpu=4,gres/gpu:h100=4``), the total is left out.

    Raises
    ------
    ValueError
        A GPU count or index list is not understood.
    """
    found: list[Gres] = []
    for part in split_outside(text):
        body, _, note = part.strip().partition("(")
        body = re.sub(r"^gres[/:]", "", body.strip())
        words = re.split(r"[:=]", body)
        if words[0] != "gpu":
            continue
        kind = words[1] if len(words) > 1 and not words[1].isdigit() and words[1] else None
        figures = words[2:] if kind is not None else words[1:]
        if len(figures) > 1 or (figures and not figures[0].isdigit()):
            raise ValueError(f"{part!r} has no GPU count")
        indices = re.search(r"IDX:([^)]*)", note)
        found.append(
            Gres(
                kind,
                int(figures[0]) if figures else 1,
                expand_indices(indices[1]) if indices else None,
            )
        )
    typed = [each for each in found if each.kind is not None]
    return tuple(typed if typed and len(typed) < len(found) else found)
