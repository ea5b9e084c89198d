"""Shared fixtures: where the real data lies, and which skips continuous integration accepts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# In continuous integration the same commit gives the same answer; `make fuzz` looks for new cases.
settings.register_profile("steady", derandomize=True)
if os.environ.get("YMIR_CI_STRICT") == "1":
    settings.load_profile("steady")

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


@pytest.fixture(scope="session")
def examples() -> Path:
    """Return the folder with the examples."""
    return ROOT / "examples"


def _no_gpu() -> bool:
    return shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists()


def _no_command(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is None


def _no_module(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is None


# reason of the skip -> whether what it says is absent really is
MAY_BE_ABSENT: Mapping[str, Callable[[], bool]] = {
    r"shared data folder is absent": lambda: shared_root() is None,
    r"\bno (CUDA|GPU)\b": _no_gpu,
    r"\bno Slurm\b": _no_command("slurmctld"),
    r"\bno Ray\b": _no_module("ray"),
    r"\bno Kubernetes\b": _no_module("kubernetes"),
}


def _acceptable(reason: str) -> bool:
    return any(re.search(pattern, reason) and absent() for pattern, absent in MAY_BE_ABSENT.items())


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where YMIR_CI_STRICT=1 and nothing is absent that explains it."""
    if os.environ.get("YMIR_CI_STRICT") != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    if not _acceptable(reason):
        report.outcome = "failed"
        report.longrepr = f"a skip that continuous integration does not accept: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
