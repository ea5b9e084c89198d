"""Shared fixtures: where the real data lies, and the reasons for skipping when it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_root() -> Path | None:
    """Return the folder with the real traces and profiles, or None where it is absent."""
    named = os.environ.get("YMIR_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder if (folder / "data").is_dir() else None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return ``shared/data`` or skip with the reason."""
    root = shared_root()
    if root is None:
        pytest.skip("the shared data folder is absent (set YMIR_SHARED or put it at ../shared)")
    return root / "data"
