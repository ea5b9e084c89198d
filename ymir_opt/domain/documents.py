"""JSON in and out: loading with one-line errors, canonical hashes, schemas, atomic files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ymir_opt.domain.base import Model, first_error, nearest
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Job, Snapshot
from ymir_opt.domain.validate import validate

__all__ = [
    "canonical_json",
    "dump_json",
    "parse_job",
    "parse_plan",
    "parse_snapshot",
    "rounded",
    "schema",
    "sha256",
    "snapshot_sha256",
    "write_atomic",
]

MAX_BYTES = 1 << 30
SCHEMAS: Mapping[str, type[Model]] = {"snapshot": Snapshot, "plan": Plan, "job": Job}

M = TypeVar("M", bound=Model)


def _parse(model: type[M], text: str | bytes, name: str) -> M:
    if len(text) > MAX_BYTES:
        raise InputError(name, f"{len(text)} bytes are more than {MAX_BYTES}", "split the document")
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        fault = first_error(error, model)
        if error.errors(include_url=False, include_context=False)[0]["type"] == "json_invalid":
            raise InputError(name, fault.problem, fault.remedy) from None
        raise fault from None


def parse_snapshot(text: str | bytes, name: str = "snapshot") -> Snapshot:
    """Parse and validate a snapshot.

    Parameters
    ----------
    text : str or bytes
        A JSON document of schema ``ymir.snapshot/1``.
    name : str
        What to call the document in an error about the whole of it.

    Raises
    ------
    InputError
        Naming place, value and remedy of the first fault.
    """
    snapshot = _parse(Snapshot, text, name)
    validate(snapshot)
    return snapshot


def parse_plan(text: str | bytes, name: str = "plan") -> Plan:
    """Parse a plan of schema ``ymir.plan/1``; raises `InputError`."""
    return _parse(Plan, text, name)


def parse_job(text: str | bytes, name: str = "job") -> Job:
    """Parse one job of a snapshot (not a job request); raises `InputError`."""
    return _parse(Job, text, name)


def rounded(value: Any) -> Any:
    """Return the structure with every float at 12 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def dump_json(model: Model, *, indent: int | None = None, exclude_defaults: bool = False) -> str:
    """Return the document as JSON, floats at 12 significant digits, fields in their order."""
    data = model.model_dump(mode="json", by_alias=True, exclude_defaults=exclude_defaults)
    schema_name = getattr(model, "schema_", None)
    if exclude_defaults and schema_name is not None:
        data = {"schema": schema_name, **data}
    return json.dumps(rounded(data), ensure_ascii=False, indent=indent, allow_nan=False) + "\n"


def canonical_json(value: Any) -> str:
    """Return sorted-key JSON without spaces: what hashes are taken of."""
    return json.dumps(
        rounded(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )


def sha256(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a JSON-able structure."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def snapshot_sha256(snapshot: Snapshot) -> str:
    """Return the hash that binds a plan to its snapshot (sorted keys, defaults filled in)."""
    return sha256(snapshot.model_dump(mode="json", by_alias=True))


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of ``snapshot``, ``plan`` or ``job``.

    Raises
    ------
    NotFoundError
        If there is no such document.
    """
    if name not in SCHEMAS:
        raise NotFoundError("schema", f"{name!r} is unknown", nearest(name, set(SCHEMAS)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SCHEMAS[name].model_json_schema(by_alias=True, mode="validation"),
    }


def write_atomic(path: Path, text: str) -> None:
    """Write a text file completely or not at all (temporary file in the same folder, then rename)."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be written ({error.strerror})", "name a writable folder"
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise InputError(
            str(path), f"cannot be written ({error.strerror})", "free space or name another file"
        ) from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
