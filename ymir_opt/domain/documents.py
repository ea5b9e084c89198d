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
from pydantic.json_schema import GenerateJsonSchema

from ymir_opt.domain.base import FrozenDict, Model, first_error, nearest, short
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.memo import LastOne
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.request import JobRequest
from ymir_opt.domain.snapshot import Job, Profiles, Snapshot
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
SCHEMAS: Mapping[str, type[Model]] = {
    "snapshot": Snapshot,
    "plan": Plan,
    "job": Job,
    "request": JobRequest,
}

M = TypeVar("M", bound=Model)


def _parse(model: type[M], text: str | bytes, name: str) -> M:
    if len(text) > MAX_BYTES:
        raise InputError(name, f"{len(text)} bytes are more than {MAX_BYTES}", "split the document")
    if isinstance(text, bytes):
        text = _decoded(text, name)
    try:
        # only the contract's names: Python's own, such as from_, are for code
        parsed = model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        fault = first_error(error, model)
        detail = error.errors(include_url=False, include_context=False)[0]
        if detail["type"] == "json_invalid":
            problem = detail["msg"][0].lower() + detail["msg"][1:]
            raise InputError(
                name, problem.replace("invalid JSON", "is not valid JSON"), fault.remedy
            ) from None
        if fault.place == "the document":
            raise InputError(name, fault.problem, fault.remedy) from None
        raise fault from None
    _refuse_duplicates(text, name)
    return parsed


def _decoded(text: bytes, name: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start} is not UTF-8", "save the file as UTF-8") from None


class _DuplicateKeyError(Exception):
    pass


def _refuse_duplicates(text: str, name: str) -> None:
    """Refuse a document in which an object names a key twice: which value counts would be a guess."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise _DuplicateKeyError(key)
                seen.add(key)

    try:
        json.loads(text, object_pairs_hook=once)
    except _DuplicateKeyError as error:
        key = str(error.args[0])
        raise InputError(name, f"an object has the key {short(key)} twice", "keep one of them") from None


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


def _rounded_literal(literal: str) -> float:
    # twelve digits and a point cannot carry more than twelve significant digits
    return float(literal) if len(literal) <= 13 else float(f"{float(literal):.12g}")


def _plain(model: Model, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """Return the model as plain JSON values, floats at 12 significant digits."""
    text = model.model_dump_json(by_alias=True, exclude_defaults=exclude_defaults)
    data: dict[str, Any] = json.loads(text, parse_float=_rounded_literal)
    return data


def dump_json(model: Model, *, indent: int | None = None, exclude_defaults: bool = False) -> str:
    """Return the document as JSON, floats at 12 significant digits, fields in their order."""
    data = _plain(model, exclude_defaults=exclude_defaults)
    schema_name = getattr(model, "schema_", None)
    if exclude_defaults and schema_name is not None:
        data = {"schema": schema_name, **data}
    return json.dumps(data, ensure_ascii=False, indent=indent, allow_nan=False) + "\n"


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _sorted_json(value: Any) -> str:
    return _ENCODER.encode(value)


def canonical_json(value: Any) -> str:
    """Return sorted-key JSON without spaces, floats at 12 digits: what hashes are taken of."""
    return _sorted_json(rounded(value))


def sha256(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a JSON-able structure."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def snapshot_sha256(snapshot: Snapshot) -> str:
    """Return the hash that binds a plan to its snapshot (sorted keys, defaults filled in)."""
    before = _JOB_TEXTS.known
    fresh = tuple(job for job in snapshot.jobs if id(job) not in before)
    data = _plain(snapshot.model_copy(update={"profiles": _NO_PROFILES, "jobs": fresh}))
    written = zip(fresh, data.pop("jobs"), strict=True)
    texts = {id(job): (job, _sorted_json(values)) for job, values in written}
    _JOB_TEXTS.known = known = {id(job): texts.get(id(job)) or before[id(job)] for job in snapshot.jobs}
    text = {key: _sorted_json(value) for key, value in data.items()}
    text["jobs"] = f"[{','.join(known[id(job)][1] for job in snapshot.jobs)}]"
    # the largest part seldom changes between rounds
    text["profiles"] = _PROFILES_TEXT.get(snapshot.profiles, lambda: _sorted_json(_plain(snapshot.profiles)))
    joined = ",".join(f'"{key}":{text[key]}' for key in sorted(text))
    return hashlib.sha256(f"{{{joined}}}".encode()).hexdigest()


class _JobTexts:
    """Canonical JSON of the jobs of the last snapshot asked about, by identity.

    What a plan makes of a snapshot shares with it the jobs that nothing happened to. The jobs are held,
    so that an identity is never reused meanwhile.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[Job, str]] = {}


_NO_PROFILES = Profiles()
_PROFILES_TEXT: LastOne[str] = LastOne()
_JOB_TEXTS = _JobTexts()


class _SchemaGenerator(GenerateJsonSchema):
    """Writes the defaults of immutable mappings, which pydantic cannot."""

    def encode_default(self, dft: Any) -> Any:
        return dict(dft) if isinstance(dft, FrozenDict) else super().encode_default(dft)


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of ``snapshot``, ``plan``, ``job`` or ``request``.

    Raises
    ------
    NotFoundError
        If there is no such document.
    """
    if name not in SCHEMAS:
        raise NotFoundError("schema", f"{name!r} is unknown", nearest(name, set(SCHEMAS)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SCHEMAS[name].model_json_schema(
            by_alias=True, mode="validation", schema_generator=_SchemaGenerator
        ),
    }


def write_atomic(path: Path, text: str) -> None:
    """Write a text file completely or not at all (temporary file in the same folder, then rename).

    A link is followed; a device or pipe is written to directly, never replaced.
    """
    path = Path(path)
    try:
        path = path.resolve()
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    except (OSError, RuntimeError) as error:
        # a loop of links is a RuntimeError up to Python 3.12
        problem = getattr(error, "strerror", None) or str(error)
        raise InputError(str(path), f"cannot be written ({problem})", "name a writable folder") from None
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
