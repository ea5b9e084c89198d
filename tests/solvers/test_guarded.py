"""The wall-clock guard holds whatever the solver does, and loses nothing that was found."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from solver_models import greedy_point, packing_model, queue_all

from ymir_opt.domain.errors import NotFoundError, SolverError
from ymir_opt.formulation.linear import UNBOUNDED, ModelBuilder
from ymir_opt.solvers import exchange, registry
from ymir_opt.solvers.base import Limits, SolveResult, Status, StoppedBy
from ymir_opt.solvers.guarded import solve_guarded

MODEL = packing_model(0)
GUARD_S = 3.0
"""Enough to start the child on a loaded machine; the backends below would take ten minutes."""


@pytest.fixture(autouse=True, params=["forked", "spawned"])
def _child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "spawned":
        monkeypatch.setattr("ymir_opt.solvers.guarded.may_fork", lambda: False)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.mark.parametrize("name", ["highs", "cpsat"])
def test_the_child_gives_the_answer_of_this_process(name: str) -> None:
    here = registry.get(name).solve(MODEL, seed=3)
    there = solve_guarded(name, MODEL, limits=Limits(wall_s=120.0), seed=3)
    assert there.status is Status.OPTIMAL
    assert there.x is not None
    assert here.x is not None
    assert np.array_equal(there.x, here.x)
    assert (there.objective, there.bound, there.stopped_by) == (here.objective, here.bound, here.stopped_by)


def test_without_a_wall_clock_it_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ymir_opt.solvers.guarded._run", lambda *_: pytest.fail("a child was started"))
    assert solve_guarded("highs", MODEL).status is Status.OPTIMAL


def test_an_overrunning_solver_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    note = tmp_path / "note"
    monkeypatch.setenv("YMIR_TEST_NOTE", str(note))
    start = queue_all(MODEL)
    result = solve_guarded(
        "overrunning_backends:Overrunning", MODEL, incumbent=start, limits=Limits(wall_s=GUARD_S)
    )
    assert result.stopped_by is StoppedBy.WALL_CLOCK
    assert result.status is Status.FEASIBLE
    assert result.x is not None
    assert np.array_equal(result.x, greedy_point(MODEL))
    assert result.bound is not None
    assert result.bound <= MODEL.offset + 1
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.glob("ymir-solve-*"))
    assert _gone(int(note.read_text()))


def _gone(process: int) -> bool:
    """Return whether a process has ended, waiting a little for the system to reap it."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_the_incumbent_survives_silence_and_crashes() -> None:
    start = greedy_point(MODEL)
    silent = solve_guarded(
        "overrunning_backends:Silent", MODEL, incumbent=start, limits=Limits(wall_s=GUARD_S / 3)
    )
    assert silent.stopped_by is StoppedBy.WALL_CLOCK
    assert silent.bound is None
    crashed = solve_guarded(
        "overrunning_backends:Crashing", MODEL, incumbent=start, limits=Limits(wall_s=60.0)
    )
    assert "exit code 77" in crashed.note
    for result in (silent, crashed):
        assert result.status is Status.FEASIBLE
        assert result.x is not None
        assert np.array_equal(result.x, start)
        assert result.objective == MODEL.objective(start)
    with pytest.raises(SolverError, match="exit code 77"):
        solve_guarded("overrunning_backends:Crashing", MODEL, limits=Limits(wall_s=60.0))
    nothing = solve_guarded("overrunning_backends:Silent", MODEL, limits=Limits(wall_s=0.0))
    assert (nothing.status, nothing.x, nothing.bound) == (Status.NO_SOLUTION, None, None)


def test_a_false_claim_is_not_believed(capfd: pytest.CaptureFixture[str]) -> None:
    start = queue_all(MODEL)
    result = solve_guarded("overrunning_backends:Lying", MODEL, incumbent=start, limits=Limits(wall_s=60.0))
    assert result.status is Status.FEASIBLE
    assert result.x is not None
    assert np.array_equal(result.x, start)
    assert "breaks the integer model" in result.note
    assert capfd.readouterr() == ("", "")


def test_errors_cross_the_process_border() -> None:
    with pytest.raises(NotFoundError, match="did you mean"):
        solve_guarded("higs", MODEL, limits=Limits(wall_s=60.0))
    builder = ModelBuilder()
    x = builder.variables(np.array([2**50]), upper=UNBOUNDED)
    builder.row(x, 1, 1, UNBOUNDED, "cover")
    with pytest.raises(SolverError, match="62 bits"):
        solve_guarded("cpsat", builder.build(), limits=Limits(wall_s=60.0))


def test_models_and_results_survive_the_files(tmp_path: Path) -> None:
    for model in (MODEL, ModelBuilder(offset=-7).build()):
        exchange.write_model(tmp_path, model)
        back = exchange.read_model(tmp_path)
        assert back.offset == model.offset
        assert back.row_family == model.row_family
        for name in (
            "cost",
            "lower",
            "upper",
            "relaxable",
            "row_start",
            "index",
            "value",
            "row_lower",
            "row_upper",
        ):
            assert np.array_equal(getattr(back, name), getattr(model, name)), name
            assert getattr(back, name).dtype == getattr(model, name).dtype
    result = SolveResult(Status.NO_SOLUTION, None, None, 2**62 + 1, StoppedBy.WALL_CLOCK, "note")
    exchange.write_result(tmp_path, result)
    assert exchange.read_result(tmp_path) == result


def test_highs_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from solver_models import packing_model\n"
        "from ymir_opt.solvers import registry\n"
        "from ymir_opt.solvers.base import Limits\n"
        "model = packing_model(0)\n"
        "registry.choose(model, 40).solve(model, limits=Limits(work=1.0))\n"
        "heavy = {'scipy', 'pulp', 'ortools', 'networkx', 'sklearn', 'pandas', 'torch', 'plotly'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr == ""
