"""Reading CSV tables with errors that name file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["count", "finite", "positive", "read_rows", "text"]

Converter = Callable[[str], Any]


def text(value: str) -> str:
    """Return the value without surrounding blanks; refuse an empty one."""
    value = value.strip()
    if not value:
        raise ValueError("is empty")
    return value


def finite(value: str) -> float:
    """Return a finite float."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number


def positive(value: str) -> float:
    """Return a finite float above zero."""
    number = finite(value)
    if number <= 0:
        raise ValueError("is not positive")
    return number


def count(value: str) -> int:
    """Return an integer of at least one; ``2.0`` is accepted as 2."""
    number = finite(value)
    if number != int(number) or number < 1:
        raise ValueError("is not a positive whole number")
    return int(number)


def read_rows(path: Path, columns: Mapping[str, Converter]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield ``(line, values)`` with the named columns converted, in the order of `columns`.

    Parameters
    ----------
    path : Path
        A CSV file with a header line; further columns are ignored.
    columns : mapping of str to callable
        Column name to converter; a converter raises ValueError for a bad value.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    InputError
        A column is missing, a row is too short, or a value is wrong; file, line and column are named.
    """
    try:
        handle = path.open(newline="", encoding="utf-8")
    except OSError as error:
        raise NotFoundError(str(path), f"cannot be read ({error.strerror})", "check the path") from error
    with handle:
        reader = csv.reader(handle)
        try:
            header = [name.strip() for name in next(reader)]
        except StopIteration:
            raise InputError(str(path), "is empty", "give a CSV file with a header line") from None
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: line 1", f"is not CSV text ({error})", "give a CSV file") from error
        missing = [name for name in columns if name not in header]
        if missing:
            raise InputError(
                f"{path}: line 1",
                f"column {missing[0]} is missing",
                f"the header needs {', '.join(columns)}",
            )
        where = [header.index(name) for name in columns]
        plan = list(zip(columns.items(), where, strict=True))
        try:
            for row in reader:
                if not row:
                    continue
                yield reader.line_num, _convert(path, reader.line_num, row, plan)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: line {reader.line_num + 1}", f"is not CSV text ({error})", "correct the row"
            ) from error


def _convert(
    path: Path, line: int, row: list[str], plan: list[tuple[tuple[str, Converter], int]]
) -> tuple[Any, ...]:
    values = []
    for (name, convert), index in plan:
        if index >= len(row):
            raise InputError(f"{path}: line {line}, column {name}", "is missing", "complete the row")
        try:
            values.append(convert(row[index]))
        except ValueError as error:
            problem = str(error)
            if not problem.startswith("is "):
                problem = "is not a number"
            raise InputError(
                f"{path}: line {line}, column {name}", f"{row[index][:60]!r} {problem}", "correct the value"
            ) from error
    return tuple(values)
