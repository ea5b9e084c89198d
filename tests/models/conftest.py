"""The full evaluations, made once and used by every test of figures and of the documentation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from ymir_models.evaluation import Row
from ymir_models.registry import find

Evaluated = Callable[[str], list[Row]]


@pytest.fixture(scope="session")
def evaluated(data_dir: Path) -> Evaluated:
    """Return the rows of the full evaluation of a kind (tens of CPU seconds, once a session)."""

    @cache
    def rows(kind: str) -> list[Row]:
        found = find(kind)
        return list(found.evaluate(data_dir / found.data))

    return rows
