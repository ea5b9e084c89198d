"""What the documentation says of the evaluations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def documented() -> Callable[[str], str]:
    """Return a function from the kind of an evaluation to its tables in docs/models.md."""

    def block(kind: str) -> str:
        text = (DOCS / "models.md").read_text()
        begin, end = f"<!-- begin evaluate {kind} -->", f"<!-- end evaluate {kind} -->"
        found = re.search(rf"{begin}\n\n(.*?)\n{end}", text, re.DOTALL)
        assert found is not None
        return found[1]

    return block
