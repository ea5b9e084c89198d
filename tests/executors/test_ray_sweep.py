"""A comparison on Ray gives what processes give, and a failing run ends it in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray on this machine"),
]

SWF = "\n".join(
    f"{i} {i * 40} 0 {60 + 37 * (i % 5)} {1 + i % 4} -1 -1 {1 + i % 4} 600 -1 1 1 1 1 1 1 -1 -1"
    for i in range(1, 9)
)


def compare(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    trace = folder / "eight.swf"
    trace.write_text(SWF + "\n")
    command = [sys.executable, "-m", "ymir_opt", "compare", str(trace), "--cluster", "1x4:V100", "--json"]
    return subprocess.run(
        [*command, *more], capture_output=True, text=True, timeout=300, env={**os.environ}, check=False
    )


def figures(answer: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert answer.returncode == 0, answer.stderr
    return [{k: v for k, v in row.items() if "wall" not in k} for row in json.loads(answer.stdout)]


def test_a_comparison_on_ray_is_the_same_as_in_processes(tmp_path: Path) -> None:
    wanted = ("--policies", "fifo,srtf", "--seeds", "2", "--quick-bound", "--jobs", "2")
    here = figures(compare(tmp_path, *wanted))
    assert len(here) == 4
    assert figures(compare(tmp_path, *wanted, "--engine", "ray")) == here


def test_no_cluster_at_the_address_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YMIR_RAY_ADDRESS", "127.0.0.1:1")
    answer = compare(tmp_path, "--policies", "fifo", "--engine", "ray", "--quick-bound")
    assert answer.returncode == 2
    assert (
        answer.stderr.strip()
        .splitlines()[-1]
        .startswith("ymir-plan: YMIR_RAY_ADDRESS: no Ray cluster answers")
    )
