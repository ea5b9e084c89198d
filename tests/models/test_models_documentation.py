"""Every evaluation is in docs/models.md, with its control, and no missed target is hidden.

That the tables are what the commands print is asserted where the evaluations run: once each, in the slow
tests of the kinds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ymir_models.registry import KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_evaluation_is_documented(kind: str, documented: Callable[[str], str]) -> None:
    tables = documented(kind)
    assert "| ours |" in tables
    assert "control: shuffled" in tables
    assert tables.count(": reached") >= 2
    assert "**missed**" not in tables
