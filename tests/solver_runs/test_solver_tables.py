"""What rows of results say, and the tables, plots and document made of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_rows import (
    append_row,
    at,
    best_bound,
    code_version,
    key,
    of_last_code,
    profile_of,
    read_rows,
    size_of,
)
from solver_peers import budget_s, rounds, told
from solver_plots import exponent
from solver_tables import BEGIN, END, filled, main, ours_table, peers_table, relative, tables, verdict
from traced_solve import Terminal, cbc_log

MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "load_1min": 0.5,
    "system": "Linux x86_64",
    "python": "3.11.0",
    "packages": {"numpy": "2.0", "pulp": None},
}


def row(instance: str, method: str, **values: Any) -> dict[str, Any]:
    """Return a run's row; ``auto`` ended after 2 CPU s at 100, from a carried-over plan of 110."""
    ours = method == "auto"
    made: dict[str, Any] = {
        "instance": instance,
        "method": method,
        "seed": 0,
        "times": None if ours else 10.0,
        "most_cpu_s": None if ours else 60.0,
        "code": "1+abc",
        "budget_cpu_s": None if ours else 20.0,
        "calibration_s": 0.5,
        "machine": MACHINE,
        "process_wall_s": 3.0,
        "peak_rss_mib": 90.0,
        "planning_cpu_s": 2.0 if ours else None,
        "planning_wall_s": 2.1 if ours else None,
        "columns": 1000,
        "queue_all": 200.0,
        "carried": 110.0,
        "profile": [[0.5, 110.0, None], [2.0, 100.0, 99.99]] if ours else [],
        "value_gap": 1e-4 if ours else None,
        "ended": "gap" if ours else "CPU budget",
        "failed": None,
    }
    made |= values
    last = made["profile"][-1] if made["profile"] else [0, None, None]
    return {"objective": last[1], "bound": last[2]} | made


SLOW = row("300x240/0", "cbc", profile=[[0.5, 110.0, None], [5.0, 99.995, 99.9]])
STUCK = row("300x240/0", "cpsat", profile=[[0.5, 110.0, None]])
AHEAD = row("300x240/0", "highs", profile=[[1.0, 99.9, 99.0]])
SAME = row("300x240/0", "highs-whole", profile=[[1.5, 100.0, 99.99]], planning_cpu_s=3.0, ended="gap")
OURS = row("300x240/0", "auto")


def event(kind: str, cpu_s: float, part: int = 0, parts: int = 1, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "cpu_s": cpu_s, "part": part, "parts": parts, "wall_s": cpu_s} | values


def test_what_was_known_when() -> None:
    profile: list[list[float | None]] = [[1.0, 9.0, None], [2.0, 9.0, 4.0], [3.0, 5.0, 4.0]]
    assert at(profile, 0.9) == (None, None)
    assert at(profile, 1.0) == (9.0, None)
    assert at(profile, 2.9) == (9.0, 4.0)
    assert at(profile, 100.0) == (5.0, 4.0)


def test_points_of_a_model_that_was_stated_again_are_no_plans() -> None:
    events = [
        event("carried", 1.0, objective=10.0),
        event("point", 2.0, attempt=1, objective=5.0, bound=4.0),
        event("point", 3.0, attempt=2, objective=7.0, bound=6.0),
        event("plan", 4.0, objective=7.5, bound=6.0),
    ]
    assert profile_of(events) == [[1.0, 10.0, None], [2.0, 10.0, 4.0], [3.0, 7.0, 6.0], [4.0, 7.5, 6.0]]
    # what a process that was killed in its first attempt had is all there is
    assert profile_of(events[:2])[-1] == [2.0, 5.0, 4.0]


def test_parts_share_the_time_until_all_have_ended() -> None:
    def part(i: int, begin: float, end: float, plan: float) -> list[dict[str, Any]]:
        carried = event("carried", begin, i, 2, objective=10.0)
        return [carried, event("plan", end, i, 2, objective=plan, bound=1.0)]

    profile = profile_of([*part(0, 1.0, 2.0, 6.0), *part(1, 2.5, 8.0, 7.0)])
    # the second part has nothing before 2.5 s of its own, which are 5 s of both; together they took 10 s
    assert profile == [[5.0, 16.0, None], [10.0, 13.0, None]]
    assert profile_of(part(0, 1.0, 2.0, 6.0)) == []


def test_what_comes_after_the_budget_does_not_count() -> None:
    events = [
        event("pool", 0.4, columns=7, queue_all=12.0),
        event("carried", 0.5, objective=10.0),
        event("point", 3.0, attempt=1, objective=5.0, bound=4.0),
        event("plan", 3.2, objective=5.0, bound=4.0, value_gap=0.1, gap_scope="pool", stopped_by="gap"),
    ]
    whole = told(events, 0, "", 10.0)
    assert (whole["objective"], whole["ended"], whole["planning_cpu_s"]) == (5.0, "gap", 3.2)
    assert (whole["columns"], whole["queue_all"], whole["carried"]) == (7, 12.0, 10.0)
    cut = told(events, 0, "", 2.0)
    assert (cut["objective"], cut["bound"], cut["ended"]) == (10.0, None, "CPU budget")
    assert cut["planning_cpu_s"] is None
    assert "value_gap" not in cut
    killed = told(events[:3], -signal.SIGXCPU, "", 4.0)
    assert (killed["objective"], killed["ended"], killed["planning_cpu_s"]) == (5.0, "CPU budget", None)
    assert told(events[:2], None, "", 4.0)["ended"] == "wall clock"
    broken = told(events[:2], 1, "highs: no", 4.0)
    assert (broken["ended"], broken["failed"]) == ("failed", "highs: no")
    # CBC is a process of its own: it is stopped, and the planner then ends with an error
    spent = told([*events[:2], event("failed", 3.9)], 1, "cbc: stopped", 4.0)
    assert (spent["ended"], spent["failed"], spent["objective"]) == ("CPU budget", None, 10.0)


def test_the_budget_of_a_peer() -> None:
    assert budget_s(OURS, 10.0, 60.0) == 20.0
    assert budget_s(OURS, 10.0, 15.0) == 15.0
    assert budget_s(OURS, 10.0, 1.0) == 2.0
    assert budget_s(None, 10.0, 60.0) == 60.0


def test_seeds_end_at_a_size() -> None:
    names = [found.name for found in rounds("10x8,40x8", 2, 20, titan=False)]
    assert names == ["10x8/0", "10x8/1", "40x8/0"]


def test_relative_to_ours() -> None:
    assert relative(STUCK, OURS, 20.0) is None
    assert relative(SLOW, OURS, 2.0) is None
    assert relative(SLOW, OURS, 20.0) == pytest.approx(-5e-5)
    assert relative(SAME, OURS, 2.0) == 0.0
    # filling greedily is what the carried-over plan does: there is nothing to call none
    assert relative(STUCK | {"method": "greedy"}, OURS, 20.0) == pytest.approx(0.1)


def test_the_table_says_none_where_nothing_better_was_found() -> None:
    lines = peers_table([SLOW, STUCK, OURS, SAME]).splitlines()
    cells = {line.split(" | ")[1]: [cell.strip("| ") for cell in line.split(" | ")] for line in lines[2:]}
    assert list(cells) == ["auto", "cbc", "cpsat", "highs-whole"]
    assert cells["cbc"][7:9] == ["none", "-0.00500 %"]
    assert cells["cpsat"][7:9] == ["none", "none"]
    assert cells["highs-whole"][7:9] == ["equal", "equal"]
    assert cells["auto"][9] == "0.0100 %"


def test_the_verdict_counts_who_was_better() -> None:
    clean = verdict([OURS, STUCK, SLOW])
    assert "With the CPU time that `auto` took, none of 2 other runs had a better plan." in clean
    assert "1 of 2 other runs had a better plan (cbc), by at most 0.00500 % of the objective" in clean
    beaten = verdict([OURS, STUCK, AHEAD])
    assert "took, 1 of 2 other runs had a better plan (highs), by at most 0.10000 %" in beaten


def test_seeds_are_told_by_median_and_range() -> None:
    seeds = [row(f"100x32/{s}", "auto", planning_cpu_s=t) for s, t in enumerate((3.0, 1.0, 2.0))]
    line = ours_table([*seeds, OURS]).splitlines()[2]
    assert line.startswith("| 100/32 | 3 | 2.00 (1.00 to 3.00) | 4.0 (2.0 to 6.0) |")
    assert "| 0.0100 % |" in line
    unproven = ours_table([*seeds, row("100x32/3", "auto", value_gap=None)])
    assert "not proven" in unproven


def test_only_the_last_sources_and_the_last_of_each_run_count() -> None:
    old = row("300x240/0", "auto", code="1+old")
    again = row("300x240/0", "auto", planning_cpu_s=1.0)
    small, real = row("100x32/0", "auto"), row("titan/FM-2-vit@7200", "auto")
    assert of_last_code([old, real, OURS, STUCK, small, again]) == [small, again, STUCK, real]


def test_best_bound_and_sizes() -> None:
    assert best_bound([OURS, SLOW, STUCK]) == 99.99
    assert best_bound([STUCK]) is None
    assert size_of(OURS) == (300, 240)
    assert size_of({"instance": "titan/FM-2-vit@7200"}) is None


def test_a_line_that_was_cut_short_loses_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    assert read_rows(path) == []
    append_row(path, OURS)
    append_row(path, SLOW)
    text = path.read_text()
    path.write_text(text[:-30])
    assert read_rows(path) == [OURS]
    append_row(path, STUCK)
    assert read_rows(path) == [OURS, STUCK]
    assert key(read_rows(path)[1]) == key(STUCK) != key(SLOW)


def test_the_code_version_follows_the_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "note.txt").write_text("1")
    first = code_version(tmp_path)
    (tmp_path / "note.txt").write_text("2")
    assert code_version(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    second = code_version(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, code_version(tmp_path)}) == 3
    assert code_version().partition("+")[0]


def test_a_power_is_fitted() -> None:
    slope, level = exponent([(n, 0.5 * n**1.2) for n in (100.0, 1000.0, 10000.0)])
    assert slope == pytest.approx(1.2)
    assert level == pytest.approx(0.5)


def test_cbc_tells_what_it_found_when() -> None:
    log = """Cbc0010I After 0 nodes, 1 on tree, 1e+50 best solution, best possible 571.2 (1.10 seconds)
Cbc0038I Pass   1: suminf.    3.00000 (6) obj. 580.1 iterations 210
Cbc0012I Integer solution of 580.5 found by feasibility pump after 210 iterations and 0 nodes (1.42 seconds)
Cbc0012I Integer solution of -3e2 found by DiveCoefficient after 300 iterations and 1 nodes (1.90 seconds)
Cbc0010I After 0 nodes, 1 on tree, 1e+50 best solution, best possible -1.7976931e+308 (0.10 seconds)
"""
    assert cbc_log(log) == [(1.1, None, 571.2), (1.42, 580.5, None), (1.9, -300.0, None)]


def test_what_a_killed_program_wrote_to_the_terminal_is_kept() -> None:
    terminal = Terminal()
    code = "import os; print('found'); print('more'); os.kill(os.getpid(), 9)"
    with open(terminal.name, "w") as stream:
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=False)
    assert terminal.end() == "found\nmore\n"


def test_what_stands_between_the_marks_is_replaced() -> None:
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = filled(document, "new")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert filled(once, "new") == once
    for broken in ("nothing", f"{END}\n{BEGIN}\n", f"{BEGIN}\n"):
        with pytest.raises(SystemExit, match="the document needs"):
            filled(broken, "new")


def test_one_command_fills_the_document_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, document = tmp_path / "rows.jsonl", tmp_path / "docs" / "page.md"
    more = [row(f"{n}x32/0", "auto", planning_cpu_s=n / 500.0) for n in (1000, 3000)]
    clocked = row("300x240/0", "gavel", planning_cpu_s=0.25, ended="policy", value_gap=None)
    for one in (OURS, SLOW, STUCK, SAME, clocked, *more):
        append_row(results, one)
    document.parent.mkdir()
    document.write_text(f"# Page\n\n{BEGIN}\n{END}\n\nrest\n")
    pictures = tmp_path / "docs" / "pictures"
    command = ["solver_tables.py", str(results), "--pictures", str(pictures), "--document", str(document)]
    monkeypatch.setattr(sys, "argv", command)
    main()
    text = document.read_text()
    assert text.endswith(f"{END}\n\nrest\n")
    assert "(pictures/gap_over_time.png)" in text
    assert "| 300x240/0 | 2.00 | 0.25 |" in text
    assert tables([json.loads(line) for line in results.read_text().splitlines()]) in text
    for name in ("gap_over_time.png", "time_and_memory.png"):
        assert (pictures / name).read_bytes()[:4] == b"\x89PNG"
