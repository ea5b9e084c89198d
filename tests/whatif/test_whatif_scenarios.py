"""What if I add two nodes, this job, drop that node, forbid merging: who starts, who is delayed, and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scenario_kit import NOW, job, node, running, share_rows, snapshot

from ymir_opt.domain.documents import dump_json
from ymir_opt.domain.snapshot import Mode, Sharing, Snapshot
from ymir_opt.whatif.changes import add_job, add_nodes, drop_node, set_field
from ymir_opt.whatif.compare import Change, Comparison, Difference, compare, plan_scenario


def asked(
    made: Snapshot, changed: Snapshot, *, rounds: int = 0, policy: str = "ymir", other: str = "ymir"
) -> Comparison:
    return compare(
        [
            plan_scenario("now", policy, made, rounds=rounds),
            plan_scenario("then", other, changed, rounds=rounds),
        ]
    )


def rows(found: Comparison) -> dict[str, Difference]:
    return {row.job: row for row in found.differences[0]}


# -- W1 ---------------------------------------------------------------------------------------------


def test_w1_two_more_nodes_start_the_waiting_job_now_and_say_what_held_it_back() -> None:
    busy = running(job("busy", 8, hours=2, movable=False), {"n0": tuple(range(8))})
    made = snapshot([node("n0")], [busy, job("waiting", 16, hours=0.5)])
    found = asked(made, add_nodes(made, "2x8:A100"))
    assert found.comparable == (True, True)
    row = rows(found)["waiting"]
    assert (row.change, row.before.runs, row.after.runs) == (Change.STARTS, False, True)
    assert row.after.text == "16 x A100"
    assert row.why.startswith("on new0, new1, which are new; before: A100: needs 16 GPUs of 8")
    assert "busy" not in rows(found)
    totals = [scenario.plan.metrics.gpus_total for scenario in found.scenarios]
    assert totals == [8, 24]
    objectives: list[Any] = [scenario.plan.solver.objective for scenario in found.scenarios]
    assert objectives[1] < objectives[0]


def test_w1_an_urgent_job_names_whom_it_stops_and_delays() -> None:
    held = [running(job(f"long{i}", 4, hours=40), {"n0": tuple(range(4 * i, 4 * i + 4))}) for i in range(2)]
    made = snapshot([node("n0")], held)
    urgent = job("urgent", 4, hours=0.05, weight=50, submitted_at_s=NOW)
    found = asked(made, add_job(made, urgent), rounds=6)
    assert found.comparable == (True, False)
    changes = {row.job: row.change for row in found.differences[0]}
    assert changes.pop("urgent") is Change.ADDED
    (stopped,) = changes
    assert changes[stopped] is Change.PREEMPTED
    row = rows(found)[stopped]
    assert row.before.text == "4 x A100"
    assert "its GPUs go to urgent" in row.why
    assert rows(found)["urgent"].why.startswith(f"on GPUs that {stopped} had")
    # it comes back as soon as the urgent one is done, three minutes of work and a minute of start
    assert row.after.start_s is not None
    assert 240.0 <= row.after.start_s <= 360.0


def test_w1_a_node_that_goes_takes_its_jobs_along() -> None:
    jobs = [running(job(f"r{i}", 8, hours=1 + i), {f"n{i}": tuple(range(8))}) for i in range(2)]
    made = snapshot([node("n0"), node("n1")], jobs)
    found = asked(made, drop_node(made, "n1"), rounds=4)
    row = rows(found)["r1"]
    assert row.change is Change.PREEMPTED
    assert row.why == "GPUs that it held left with n1"
    assert row.after.start_s == pytest.approx(3600.0)  # when r0 is done, a round's beginning
    assert row.after.finish_s is not None
    assert row.before.finish_s is not None
    assert row.after.finish_s > row.before.finish_s


def test_a_look_ahead_tells_the_round_in_which_a_waiting_job_starts() -> None:
    jobs = [
        running(job("a", 4, hours=0.25), {"n0": (0, 1, 2, 3)}),
        running(job("b", 4, hours=1.0, movable=False), {"n0": (4, 5, 6, 7)}),
        job("wide", 8, hours=0.5),
        job("small", 4, hours=0.5),
    ]
    made = snapshot([node("n0")], jobs)
    scenario = plan_scenario("now", "ymir", made, rounds=8)
    assert {a.job: a.action.value for a in scenario.plan.actions}["small"] == "wait"
    # a ends after 900 s, which is in the eighth round of 120 s; b and then small end before wide starts
    assert scenario.outlook["small"].start_s == pytest.approx(960.0)
    assert scenario.outlook["wide"].start_s == pytest.approx(3600.0)
    assert scenario.outlook["wide"].finish_s == pytest.approx(3600.0 + 60.0 + 1800.0, rel=0.02)
    assert scenario.outlook["b"].start_s == 0.0
    nothing = plan_scenario("now", "ymir", made, rounds=0)
    assert nothing.outlook["small"].start_s is None


def test_forbidding_merges_shows_who_pays_for_it() -> None:
    jobs = [job(f"j{i}", 1, sharing=Sharing.ALL) for i in range(3)]
    made = snapshot(
        [node("n0", 2, memory=23.0)], jobs, profiles={"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.8),)}
    )
    found = asked(made, made, other="ymir-no-merge")
    assert found.comparable == (True, True)
    changes = [row.change for row in found.differences[0]]
    assert changes.count(Change.WAITS) == 1
    assert set(changes) == {Change.WAITS, Change.MOVED}
    waits = next(row for row in found.differences[0] if row.change is Change.WAITS)
    assert (waits.before.runs, waits.after.runs) == (True, False)
    assert "needs 1 GPU, 0 of 2 GPUs are free" in waits.why
    moved = next(row for row in found.differences[0] if row.change is Change.MOVED)
    assert "gpu_share with" in moved.before.text
    assert moved.after.text == "1 x A100"
    assert moved.why.startswith("before: would finish in")
    assert moved.loss is not None


def test_a_changed_field_changes_only_what_follows_from_it() -> None:
    held = running(job("long", 4, hours=40), {"n0": (0, 1, 2, 3)})
    made = snapshot([node("n0", 4)], [held, job("short", 4, hours=0.05, weight=50)])
    found = rows(asked(made, set_field(made, "long.movable=false")))
    assert found["long"].change is Change.KEPT
    assert found["short"].change is Change.WAITS
    assert "held by long (4 GPUs)" in found["short"].why
    assert not asked(made, made).differences[0]


def test_policies_are_compared_on_the_same_snapshot() -> None:
    jobs = [job("long", 1, hours=9, submitted_at_s=NOW - 900), job("short", 1, hours=0.1)]
    found = asked(
        snapshot([node("n0", 1)], jobs), snapshot([node("n0", 1)], jobs), policy="fifo", other="srtf"
    )
    changes = {row.job: row.change for row in found.differences[0]}
    assert changes == {"long": Change.WAITS, "short": Change.STARTS}


# -- W2 ---------------------------------------------------------------------------------------------

CHILD = """
import json, sys
from pathlib import Path
from ymir_opt.cli.main import run
sys.exit(run(["what-if", sys.argv[1], "--add-nodes", "1x4:A100", "--ahead", "2", "--json"]))
"""


def test_w2_the_same_snapshot_gives_the_same_plan_anywhere(tmp_path: Path) -> None:
    jobs = [job(f"j{i}", 1 + i % 2, hours=0.2 * (i + 1), sharing=Sharing.ALL) for i in range(6)]
    made = snapshot([node("n0", 4)], jobs, profiles={"colocation": (share_rows(Mode.GPU_SHARE, 2, 0.8),)})
    answers = []
    for where, seed in (("a", "1"), ("b", "77")):
        folder = tmp_path / where
        folder.mkdir()
        (folder / "s.json").write_text(dump_json(made, exclude_defaults=True))
        child = subprocess.run(
            [sys.executable, "-c", CHILD, "s.json"],
            cwd=folder,
            env={
                "PYTHONHASHSEED": seed,
                "PATH": "/usr/bin:/bin",
                "TZ": "UTC" if where == "a" else "Asia/Tokyo",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        answers.append(child.stdout)
    assert answers[0] == answers[1]
