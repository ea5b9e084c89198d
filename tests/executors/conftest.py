"""Workers that a test leaves behind are ended, by the folder that only this test used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_kit import end_workers

from ymir_opt.executors.folder import JobsFolder


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of the test's own."""
    yield tmp_path
    end_workers(JobsFolder(tmp_path / "jobs-dir"))
