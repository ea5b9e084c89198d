"""Reading Slurm's JSON whatever its version: plain scalars, ``{set, infinite, number}``, lists.

What is not understood is treated as not given and noted with the field's name, never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError

__all__ = ["KNOWN_PARSERS", "Notes", "Record", "records", "version_note"]

KNOWN_PARSERS = ("0.0.37", "0.0.38", "0.0.39", "0.0.40", "0.0.41", "0.0.42")
"""Data parsers whose fields are known (Slurm 21.08 to 24.11)."""


class Notes:
    """Remarks on fields, each field once with the number of its occurrences."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def field(self, place: str, problem: str) -> None:
        """Note that a field was not understood; indices in the place do not tell fields apart."""
        key = re.sub(r"\[\d+\]", "[]", place)
        self._first.setdefault(key, f"{place}: {problem}")
        self._count[key] = self._count.get(key, 0) + 1

    def texts(self) -> list[str]:
        """Return one line a field."""
        return [
            text if self._count[key] == 1 else f"{text} (and {self._count[key] - 1} more)"
            for key, text in self._first.items()
        ]


class Record:
    """One object of a document, read field by field.

    Parameters
    ----------
    place : str
        Where it is, ``jobs[3]``.
    data : mapping
    notes : Notes
    """

    def __init__(self, place: str, data: Mapping[str, Any], notes: Notes) -> None:
        self.place = place
        self.data = data
        self.notes = notes

    def unclear(self, field: str, value: Any) -> None:
        """Note a value that is not understood."""
        self.notes.field(f"{self.place}.{field}", f"{short(value)} is not understood and left out")

    def number(self, *fields: str) -> float | None:
        """Return the first of the fields that is set, inf where it is infinite, None where none is."""
        for field in fields:
            value = self.data.get(field)
            if isinstance(value, Mapping):
                if value.get("infinite") is True:
                    return math.inf
                if value.get("set") is False:
                    continue
                value = value.get("number", value)
            if value is None or value == "":
                continue
            try:
                if isinstance(value, bool | Mapping | list):
                    raise ValueError
                found = float(value)
            except (TypeError, ValueError):
                self.unclear(field, value)
                continue
            if math.isnan(found):
                self.unclear(field, value)
                continue
            return found
        return None

    def count(self, *fields: str) -> int | None:
        """Return a whole number of at least 1, or None."""
        found = self.number(*fields)
        return None if found is None or not 1 <= found <= 10**6 else int(found)

    def text(self, *fields: str) -> str:
        """Return the first of the fields that is a text and not empty, else an empty text."""
        for field in fields:
            value = self.data.get(field)
            if isinstance(value, str):
                if value:
                    return value
            elif isinstance(value, list) and all(isinstance(item, str) for item in value):
                if value:
                    return ",".join(value)
            elif value is not None:
                if isinstance(value, int) and not isinstance(value, bool):
                    return str(value)
                self.unclear(field, value)
        return ""

    def words(self, *fields: str) -> frozenset[str]:
        """Return all texts of the fields (lists, or separated by ``,`` or ``+``), in capitals."""
        found: set[str] = set()
        for field in fields:
            value = self.data.get(field)
            parts = [value] if isinstance(value, str) else value
            if parts is None:
                continue
            if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
                self.unclear(field, value)
                continue
            for part in parts:
                found |= {word.strip(" *~#!%$@^-").upper() for word in re.split(r"[,+]", part)}
        return frozenset(found - {""})


def records(document: Any, name: str, key: str, notes: Notes) -> list[Record]:
    """Return the objects of a list of a document.

    Raises
    ------
    InputError
        The document has no such list, or something else in it.
    """
    found = document.get(key) if isinstance(document, Mapping) else None
    if not isinstance(found, list):
        raise InputError(name, f"has no list {key!r}", f"give the JSON document that lists {key}")
    out = []
    for i, data in enumerate(found):
        if not isinstance(data, Mapping):
            raise InputError(f"{name}: {key}[{i}]", f"{short(data)} is not an object", "correct the document")
        out.append(Record(f"{key}[{i}]", data, notes))
    return out


def version_note(document: Mapping[str, Any], name: str) -> str | None:
    """Return a warning that names the field if the document's data parser is not a known one."""
    meta = document.get("meta")
    plugin = meta.get("plugin") if isinstance(meta, Mapping) else None
    if not isinstance(plugin, Mapping):
        return f"{name}: meta.plugin is missing; the version of the data is unknown"
    for field in ("data_parser", "name", "type"):
        text = str(plugin.get(field, ""))
        match = re.search(r"v?(\d+\.\d+\.\d+)", text)
        if match is not None:
            if match[1] in KNOWN_PARSERS:
                return None
            return (
                f"{name}: meta.plugin.{field} {short(text)} is not known (known: {KNOWN_PARSERS[0]} to "
                f"{KNOWN_PARSERS[-1]}); fields that changed are named below"
            )
    return f"{name}: meta.plugin names no version; known: {KNOWN_PARSERS[0]} to {KNOWN_PARSERS[-1]}"
