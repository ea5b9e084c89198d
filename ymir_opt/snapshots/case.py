"""A case: one planning round in one JSON document (schema ``ymir.case/1``).

It holds the snapshot, how the planner was asked, what came out (a plan, or a failure), and the
versions that decide what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from ymir_opt.domain.base import FrozenDict, Model, Positive, Text, first_error, freeze
from ymir_opt.domain.documents import MAX_BYTES
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.domain.validate import validate

__all__ = ["CASE_SCHEMA", "Case", "Failure", "Replay", "Request", "parse_case"]

CASE_SCHEMA: Final = "ymir.case/1"
_NONE: FrozenDict = FrozenDict()


class Request(Model):
    """How the planner was asked; the arguments of ``solve``."""

    policy: Text = "ymir"
    backend: Text = "auto"
    time_limit_s: Positive | None = None
    gap: Annotated[float, Field(ge=0, le=1)] | None = None
    measured_only: bool = False
    prove_global: bool = False
    seed: int = 0


class Failure(Model):
    """An error instead of a plan: its class, its message, and where it was raised."""

    kind: Text
    message: Text
    where: Text | None = None


class Case(Model):
    """One planning round: exactly one of ``plan`` and ``failure`` is given."""

    schema_: Annotated[Literal["ymir.case/1"], Field(alias="schema")] = CASE_SCHEMA
    note: Text = ""
    request: Request = Request()
    snapshot: Snapshot
    previous: Plan | None = None
    plan: Plan | None = None
    failure: Failure | None = None
    versions: Annotated[Mapping[str, str], AfterValidator(freeze)] = _NONE


@dataclass(frozen=True)
class Replay:
    """What planning a case again showed.

    Attributes
    ----------
    same : bool
        The same plan byte for byte, ``solver.wall_s`` apart, or the same failure.
    difference : str or None
        Path of the first field that differs, or what happened instead.
    plan : Plan or None
        The plan made now.
    versions : tuple of str
        What changed between the versions of the case and those here.
    notes : tuple of str
        Why equality could not be expected, where it could not.
    """

    same: bool
    difference: str | None
    plan: Plan | None
    versions: tuple[str, ...]
    notes: tuple[str, ...]


def parse_case(text: str | bytes, name: str = "case") -> Case:
    """Parse and validate a case.

    Raises
    ------
    InputError
        Naming place, value and remedy of the first fault.
    """
    if len(text) > MAX_BYTES:
        raise InputError(name, f"{len(text)} bytes are more than {MAX_BYTES}", "split the document")
    try:
        case = Case.model_validate_json(text)
    except ValidationError as error:
        fault = first_error(error, Case)
        place = name if fault.place == "the document" else fault.place
        raise InputError(place, fault.problem, fault.remedy) from None
    try:
        validate(case.snapshot)
    except InputError as error:
        raise InputError(f"snapshot.{error.place}", error.problem, error.remedy) from None
    if (case.plan is None) == (case.failure is None):
        raise InputError(
            "plan",
            "both a plan and a failure are given" if case.plan else "neither a plan nor a failure is given",
            "give exactly one",
        )
    return case
