"""Labelled texts from local CSV, JSONL and Parquet files."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["READERS", "Example", "read_file"]

Example = tuple[str, str]
"""Text and label."""


def _csv(path: Path) -> Iterable[Mapping[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with open(path, encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t" if path.suffix == ".tsv" else ","))


def _jsonl(path: Path) -> Iterable[Mapping[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise InputError(f"{path}:{number}", "is not an object", "write one JSON object a line")
            rows.append(row)
    return rows


def _parquet(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise InputError(str(path), "needs the package pyarrow", "pip install pyarrow") from None
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


READERS: Mapping[str, Callable[[Path], Iterable[Mapping[str, Any]]]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


def read_file(path: Path, text_column: str, label_column: str) -> list[Example]:
    """Return (text, label) pairs; rows without one of them are left out.

    Raises
    ------
    NotFoundError
        If there is no such file or column.
    InputError
        If the format is unknown or the file is damaged.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(str(path), f"has the unknown ending {path.suffix!r}", f"use {', '.join(READERS)}")
    if os.path.exists(path) and not os.path.isfile(path):
        # reading a pipe would wait for its writer, reading a device might never end
        raise InputError(str(path), "is not a plain file", "give a plain file")
    try:
        rows = list(reader(path))
    except FileNotFoundError:
        raise NotFoundError(str(path), "no such file", "name an existing file") from None
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        text = " ".join(str(error).split())[:120]
        raise InputError(str(path), f"cannot be read ({text})", "correct the file") from None
    columns = {str(key) for row in rows for key in row if key is not None}
    for column in (text_column, label_column):
        if column not in columns:
            raise NotFoundError(str(path), f"has no column {column!r}", nearest(column, columns))
    return [
        (str(row[text_column]), str(row[label_column]))
        for row in rows
        if row.get(text_column) not in (None, "") and row.get(label_column) not in (None, "")
    ]
