"""Whether two plans are the same, and where they first differ."""

from __future__ import annotations

import json
from typing import Any

from ymir_opt.domain.documents import dump_json
from ymir_opt.domain.plan import Plan

__all__ = ["first_difference", "same_plan"]


def _timeless(plan: Plan) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(dump_json(plan))
    data["solver"].pop("wall_s")
    return data


def same_plan(first: Plan, second: Plan) -> bool:
    """Say whether two plans are the same byte for byte, wall_s apart."""
    return json.dumps(_timeless(first)) == json.dumps(_timeless(second))


def first_difference(first: Plan, second: Plan) -> str:
    """Return the path of the first field in which two plans differ (``field order`` if none does)."""

    def walk(a: Any, b: Any, path: str) -> str | None:
        if type(a) is not type(b):
            return path
        if isinstance(a, dict):
            for key in [*a, *(k for k in b if k not in a)]:
                here = f"{path}.{key}" if path else key
                found = here if key not in a or key not in b else walk(a[key], b[key], here)
                if found:
                    return found
            return None
        if isinstance(a, list):
            if len(a) != len(b):
                return path
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                found = walk(x, y, f"{path}[{i}]")
                if found:
                    return found
            return None
        return None if a == b else path

    return walk(_timeless(first), _timeless(second), "") or "field order"
