"""The policy of docs/howto-policy.md works as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path

from sim_kit import rigid, rigid_workload

from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import Engine, simulate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto-policy.md"


def test_the_documented_policy_runs_and_resumes(tmp_path: Path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(compile(code[1], str(PAGE), "exec"), names)
    lottery = names["Lottery"]
    jobs = [rigid(f"j{i}", 10.0 * i, 500.0, 1 + i % 4) for i in range(12)]

    def engine(seed: int) -> Engine:
        return Engine(rigid_workload(jobs), parse_cluster("1x4:V100"), lottery(seed=seed))  # type: ignore[operator]

    whole = engine(1).run()
    assert whole.unfinished == ()
    first = engine(1)
    first.run(stop_after_rounds=4)
    first.save(tmp_path / "run.json")
    second = engine(1)
    second.restore(tmp_path / "run.json")
    assert second.run().jobs == whole.jobs
    other = simulate(rigid_workload(jobs), parse_cluster("1x4:V100"), lottery(seed=2))  # type: ignore[operator]
    assert other.jobs != whole.jobs
