"""In continuous integration a test may skip only for what is really absent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

TESTS = """
import pytest

def test_data(data_dir): pass
def test_gpu(): pytest.skip("no GPU on this machine")
def test_laziness(): pytest.skip("takes too long")
def test_package(): pytest.importorskip("a_package_that_is_not_there")
@pytest.mark.skipif(True, reason="no Slurm (slurmctld) on this machine")
def test_slurm(): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False
"""


def outcomes(folder: Path, *, strict: bool, shared: Path | None = None) -> dict[str, str]:
    tests = folder / "tests"
    tests.mkdir()
    shutil.copy(HERE / "conftest.py", tests / "conftest.py")
    (tests / "test_some.py").write_text(TESTS)
    tools = folder / "bin"
    tools.mkdir()
    names = ("YMIR_SHARED", "YMIR_CI_STRICT", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    # an empty search path: neither Slurm nor a GPU's tool is there
    environment |= {"PATH": str(tools), "YMIR_CI_STRICT": "1" if strict else "0"}
    if shared is not None:
        environment["YMIR_SHARED"] = str(shared)
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q", str(tests)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {}
    for line in child.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "FAILED", "XFAIL", "ERROR") and "::" in rest:
            found[rest.split("::")[1].split(" ")[0]] = word
    for name in ("data", "gpu", "laziness", "package", "slurm", "known"):
        found.setdefault(f"test_{name}", "SKIPPED")
    return found


def test_only_real_absence_skips(tmp_path: Path) -> None:
    assert outcomes(tmp_path, strict=True) == {
        "test_data": "SKIPPED",
        "test_gpu": "FAILED" if Path("/dev/nvidia0").exists() else "SKIPPED",
        "test_laziness": "FAILED",
        "test_package": "FAILED",
        "test_slurm": "SKIPPED",
        "test_known": "XFAIL",
    }


def test_elsewhere_everything_may_skip(tmp_path: Path) -> None:
    found = outcomes(tmp_path, strict=False)
    assert found.pop("test_known") == "XFAIL"
    assert set(found.values()) == {"SKIPPED"}


def test_data_that_is_there_is_read(tmp_path: Path) -> None:
    shared = tmp_path / "elsewhere"
    (shared / "data").mkdir(parents=True)
    assert outcomes(tmp_path, strict=True, shared=shared)["test_data"] == "PASSED"
