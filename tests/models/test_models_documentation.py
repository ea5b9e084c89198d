"""The tables of docs/models.md are what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ymir_models.evaluation import Row, markdown, summary
from ymir_models.registry import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def block(kind: str) -> str:
    text = (DOCS / "models.md").read_text()
    found = re.search(
        rf"<!-- begin evaluate {kind} -->\n\n(.*?)\n<!-- end evaluate {kind} -->", text, re.DOTALL
    )
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_evaluation_is_documented_and_no_miss_is_hidden(kind: str) -> None:
    assert "| ours |" in block(kind)
    assert "control: shuffled" in block(kind)
    assert "**missed**" not in block(kind)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_tables_are_what_the_command_prints(kind: str, evaluated: object) -> None:
    rows: list[Row] = evaluated(kind)  # type: ignore[operator]
    assert block(kind) == markdown(summary(rows))
