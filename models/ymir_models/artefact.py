"""Fitted parameters on disk: one JSON document a model, with a checksum; never pickle.

A file is refused if it is cut off, altered, of another kind or of another format version. Floats
are written with ten significant digits, keys sorted, so that refitting gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["SCHEMA", "Artefact", "Fields", "read_artefact", "render"]

SCHEMA = "ymir.model/1"
MAX_BYTES = 64 << 20
DIGITS = 10
REFIT = "fit it again with `ymir-plan fit`"


@dataclass(frozen=True)
class Artefact:
    """One fitted model as read from disk.

    Attributes
    ----------
    kind : str
        Which model it is for, such as ``throughput``.
    version : int
        Version of that model's parameters.
    parameters : mapping
    source : mapping
        Where the training data came from, its licence and its checksum.
    sha256 : str
        Checksum of the document without this field.
    place : str
        The file, for messages.
    """

    kind: str
    version: int
    parameters: Mapping[str, Any]
    source: Mapping[str, Any]
    sha256: str
    place: str

    def fields(self) -> Fields:
        """Return typed access to the parameters."""
        return Fields(self.parameters, self.place)


def _plain(value: Any) -> Any:
    """Return JSON types with floats rounded to ten significant digits."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        rounded = float(f"{value:.{DIGITS}g}")
        return 0.0 if rounded == 0 else rounded
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be part of an artefact")


def _canonical(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def render(kind: str, version: int, parameters: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    """Return the document of a fitted model, with its checksum; non-finite numbers become null."""
    body = {
        "schema": SCHEMA,
        "kind": kind,
        "version": version,
        "parameters": _plain(parameters),
        "source": _plain(source),
    }
    body["sha256"] = hashlib.sha256(_canonical(body).encode()).hexdigest()
    return _canonical(body) + "\n"


def read_artefact(path: Path, kind: str, version: int) -> Artefact:
    """Read and check one fitted model.

    Raises
    ------
    NotFoundError
        If the file does not exist or cannot be read.
    InputError
        If it is cut off, altered, or of another kind or version.
    """
    place = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise NotFoundError(
            place, f"cannot be read ({error.strerror})", "name a folder with fitted models"
        ) from None
    if len(raw) > MAX_BYTES:
        raise InputError(place, f"is larger than {MAX_BYTES >> 20} MiB", REFIT)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError(place, "is cut off or not JSON", REFIT) from None
    if not isinstance(body, dict) or not isinstance(body.get("sha256"), str):
        raise InputError(place, "is not a fitted model (no checksum)", REFIT)
    if body.get("schema") != SCHEMA:
        raise InputError(
            place, f"has format {str(body.get('schema'))[:40]!r}, this version reads {SCHEMA!r}", REFIT
        )
    claimed = body.pop("sha256")
    try:
        actual = hashlib.sha256(_canonical(body).encode()).hexdigest()
    except ValueError:
        raise InputError(place, "contains a number that is not finite", REFIT) from None
    if claimed != actual:
        raise InputError(place, "was altered after it was fitted (its checksum differs)", REFIT)
    if body.get("kind") != kind:
        raise InputError(place, f"is a model of kind {str(body.get('kind'))[:40]!r}, not {kind!r}", REFIT)
    if body.get("version") != version:
        raise InputError(
            place,
            f"holds version {str(body.get('version'))[:20]} of {kind}, this version reads {version}",
            REFIT,
        )
    parameters, source = body.get("parameters"), body.get("source")
    if not isinstance(parameters, dict) or not isinstance(source, dict):
        raise InputError(place, "has no parameters or no source", REFIT)
    return Artefact(kind, version, parameters, source, actual, place)


class Fields:
    """Typed access to an artefact's parameters; every miss is one line that names the field."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values = values
        self.place = place

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise InputError(self.place, f"parameter {name!r} is missing", REFIT)
        return self._values[name]

    def _bad(self, name: str, wanted: str) -> InputError:
        return InputError(self.place, f"parameter {name!r} is not {wanted}", REFIT)

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(name, "a number")
        return float(value)

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self._bad(name, "text")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string or None."""
        return None if self._get(name) is None else self.text(name)

    def count(self, name: str) -> int:
        """Return a whole number of at least one."""
        value = self.number(name)
        if value < 1 or value != int(value):
            raise self._bad(name, "a whole number of at least one")
        return int(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._bad(name, "a list of texts")
        return tuple(value)

    def array(self, name: str, *shape: int) -> NDArray[np.float64]:
        """Return a numeric array; null becomes NaN.

        Parameters
        ----------
        name : str
        *shape : int
            Expected length of every dimension, -1 for any; one dimension of any length by default.
        """
        shape = shape or (-1,)
        value = self._get(name)
        try:
            found = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise self._bad(name, "a numeric array") from None
        if found.size == 0 and len(shape) > 1 and shape[0] == -1:
            return found.reshape((0, *(max(size, 0) for size in shape[1:])))
        wanted = " x ".join("n" if size < 0 else str(size) for size in shape)
        if found.ndim != len(shape) or any(
            w >= 0 and w != f for w, f in zip(shape, found.shape, strict=True)
        ):
            raise self._bad(name, f"a numeric array of size {wanted}")
        return found

    def indices(self, name: str, below: int) -> NDArray[np.int64]:
        """Return a list of whole numbers from 0 to ``below`` - 1."""
        found = self.array(name)
        whole = np.nan_to_num(found, nan=-1.0).astype(np.int64)
        if (whole != found).any() or (whole < 0).any() or (whole >= below).any():
            raise self._bad(name, f"a list of whole numbers from 0 to {below - 1}")
        return whole

    def keys(self, name: str) -> list[tuple[str, str | None, str]]:
        """Return a list of (foundation model, PEFT type or None, configuration)."""
        value = self._get(name)
        keys = []
        for item in value if isinstance(value, list) else [None]:
            if (
                not isinstance(item, list)
                or len(item) != 3
                or not isinstance(item[0], str)
                or not isinstance(item[1], str | None)
                or not isinstance(item[2], str)
            ):
                raise self._bad(name, "a list of model, PEFT type and configuration")
            keys.append((item[0], item[1], item[2]))
        return keys

    def is_null(self, name: str) -> bool:
        """Say whether a parameter is there but empty."""
        return self._get(name) is None

    def part(self, name: str) -> Fields:
        """Return a nested group of parameters."""
        value = self._get(name)
        if not isinstance(value, dict):
            raise self._bad(name, "a group of parameters")
        return Fields(value, f"{self.place}: {name}")

    def parts(self, name: str) -> list[Fields]:
        """Return a list of nested groups."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._bad(name, "a list of groups of parameters")
        return [Fields(item, f"{self.place}: {name}[{i}]") for i, item in enumerate(value)]

    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters, sorted."""
        return tuple(sorted(self._values))
