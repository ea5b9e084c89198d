"""Shared pieces of the validated models: strict immutable base, field types, one-line errors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ymir_opt.domain.errors import InputError

__all__ = [
    "MAX_COUNT",
    "MAX_MAGNITUDE",
    "MIN_POSITIVE",
    "Count",
    "FrozenDict",
    "Id",
    "Labels",
    "Model",
    "NonNegative",
    "Placement",
    "Positive",
    "Real",
    "first_error",
    "freeze",
    "nearest",
    "short",
]

MAX_MAGNITUDE = 1e18
# what must be above 0: quotients of such figures stay far from the limits of doubles
MIN_POSITIVE = 1 / MAX_MAGNITUDE
MAX_COUNT = 1_000_000


class FrozenDict(dict[Any, Any]):
    """A dictionary that refuses to change, so that a frozen model is frozen all the way down."""

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this mapping is part of an immutable model; make a copy with dict()")

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        """Hash the items; models that hold the mapping stay hashable."""
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[Any, Any]]]:
        return (FrozenDict, (dict(self),))


def freeze(value: Mapping[Any, Any]) -> FrozenDict:
    """Return the mapping as one that cannot change."""
    return value if isinstance(value, FrozenDict) else FrozenDict(value)


def _deep_frozen(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"contains {value}, which JSON cannot hold")
    if isinstance(value, Mapping):
        return FrozenDict({str(key): _deep_frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_deep_frozen(item) for item in value)
    return value


def _freeze_free(value: Mapping[str, Any]) -> FrozenDict:
    """Freeze free labels all the way down, refusing figures that no JSON document can carry."""
    frozen: FrozenDict = value if isinstance(value, FrozenDict) else _deep_frozen(value)
    return frozen


def _check_id(value: str) -> str:
    if not value.isprintable():
        raise ValueError("contains a line break or another control character")
    if value != value.strip():
        raise ValueError("begins or ends with a space")
    if "<" in value or ">" in value:
        raise ValueError("contains < or >")
    if ".." in value and ".." in value.replace("\\", "/").split("/"):
        raise ValueError("contains a '..' path component")
    return value


Id = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_check_id)]
Text = Annotated[str, Field(max_length=4096)]
Real = Annotated[float, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
NonNegative = Annotated[float, Field(ge=0, le=MAX_MAGNITUDE)]
Positive = Annotated[float, Field(ge=MIN_POSITIVE, le=MAX_MAGNITUDE)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Labels = Annotated[Mapping[str, str], AfterValidator(freeze)]
FreeLabels = Annotated[Mapping[str, Any], AfterValidator(_freeze_free)]
Placement = Annotated[Mapping[Id, tuple[Count, ...]], AfterValidator(freeze)]


class Model(BaseModel):
    """Immutable, strict base: unknown fields, wrong types, NaN and infinities are errors."""

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        populate_by_name=True,
        ser_json_inf_nan="null",
    )


def nearest(name: str, known: Sequence[str] | set[str]) -> str:
    """Return ``did you mean 'x'?`` for the closest known name, or a list of what is known."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"did you mean {short(close[0])}?"
    names = ", ".join(sorted(known)[:12])
    return f"known: {names}" if names else "none is defined"


def short(value: object, limit: int = 60) -> str:
    """Return a one-line, length-limited representation of a value for a message."""
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return str(value)
    text = repr(value) if isinstance(value, str) else str(value)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(ch if ch.isprintable() else "?" for ch in text)


def _place(loc: Sequence[int | str], root: str) -> str:
    place = root
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part == "[key]":
            place += " (key)"
        else:
            place += f".{part}" if place else part
    return place


def _known_fields(model: type[BaseModel], loc: Sequence[int | str]) -> set[str]:
    """Walk the annotations along an error's path and return the field names known there."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(part)
            if field is None:
                by_alias = [f for f in current.model_fields.values() if f.alias == part]
                field = by_alias[0] if by_alias else None
            current = _inner_model(field.annotation) if field else None
        if current is None:
            return set()
    if isinstance(current, type) and issubclass(current, BaseModel):
        return {field.alias or name for name, field in current.model_fields.items()}
    return set()


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for arg in getattr(annotation, "__args__", ()):
        found = _inner_model(arg)
        if found is not None:
            return found
    return None


_REMEDIES = {
    "missing": "add the field",
    "finite_number": "give a finite number",
    "json_invalid": "give a complete JSON document",
}


def first_error(error: ValidationError, model: type[BaseModel], root: str = "") -> InputError:
    """Turn the first of pydantic's errors into one line with place, value and remedy."""
    detail = error.errors(include_url=False, include_context=False)[0]
    loc = tuple(part for part in detail["loc"])
    kind = detail["type"]
    place = _place(loc, root)
    if kind == "extra_forbidden":
        name = str(loc[-1])
        return InputError(
            _place(loc[:-1], root) or "the document",
            f"unknown field {short(name)}",
            nearest(name, _known_fields(model, loc[:-1])),
        )
    if kind == "missing":
        return InputError(
            _place(loc[:-1], root) or "the document",
            f"field {short(loc[-1])} is missing",
            _REMEDIES["missing"],
        )
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    value = detail.get("input")
    shown = "" if isinstance(value, dict | list) else f"{short(value)}: "
    return InputError(place or "the document", shown + message, _REMEDIES.get(kind, "correct the value"))
