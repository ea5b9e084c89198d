"""Tables and plots from the lines that ``solver_peers.py`` wrote.

Run ``python solver_runs/solver_tables.py RESULTS.jsonl [--pictures FOLDER] [--document FILE.md]``. Without
``--document`` the tables are printed; with it they replace what stands between the two marks in that file,
with links to the pictures. Only runs of the sources that ran last count.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from run_rows import CLOCKED, OURS, Row, at, of_last_code, read_rows, size_of

from ymir_opt.domain.documents import write_atomic

BEGIN = "<!-- begin: written by solver_runs/solver_tables.py -->"
END = "<!-- end: written by solver_runs/solver_tables.py -->"
PICTURES = (
    ("time_and_memory.png", "CPU time and memory over the number of jobs"),
    ("gap_over_time.png", "Distance of the best plan known from the best bound, over CPU time"),
)
HEURISTIC = ("greedy", "matching")
"""Methods that make a carried-over plan themselves; nothing to compare it with."""
SAME = 1e-9
"""Relative differences of objectives below this are rounding."""
LEGEND = (
    "Powers are fitted to the sizes from 1000 jobs on. Distances are relative to what planning gains over "
    "queueing everything, and drawn at 1e-7 where they are less. A line begins with the carried-over plan, "
    "and ends in a dot where the method ended by itself."
)
Table = list[list[str]]


def shown(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.4f} %"


def spread(values: Iterable[float | None], digits: int = 2) -> str:
    """Return the median, and least and largest where there are several."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    middle, least, most = (shown(value, digits) for value in (median(known), known[0], known[-1]))
    return middle if len(known) == 1 else f"{middle} ({least} to {most})"


def markdown(head: list[str], body: Table) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def by_round(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """Return the rows of every round by method, ours first."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["instance"], {})[row["method"]] = row
    return {
        name: dict(sorted(methods.items(), key=lambda item: item[0] != OURS))
        for name, methods in found.items()
        if OURS in methods
    }


def relative(row: Row, ours: Row, cpu_s: float) -> float | None:
    """Return by how much a run's plan is worse than ours after so many CPU seconds, relative to ours.

    None: the run had nothing better than the plan that is carried over if no solver answers.
    """
    objective = at(row["profile"], cpu_s)[0]
    if objective is None or ours["objective"] is None:
        return None
    carried = ours["carried"]
    if row["method"] not in HEURISTIC and carried is not None and objective >= carried * (1 - SAME):
        return None
    difference = (objective - ours["objective"]) / abs(ours["objective"])
    return 0.0 if abs(difference) < SAME else float(difference)


def ours_table(rows: list[Row]) -> str:
    """Return our planner over sizes and seeds."""
    sizes: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        size = size_of(row)
        if row["method"] == OURS and size is not None and row["objective"] is not None:
            sizes.setdefault(size, []).append(row)
    body = []
    for (jobs, gpus), found in sorted(sizes.items()):
        gaps = [row["value_gap"] for row in found if row["value_gap"] is not None]
        body.append(
            [
                f"{jobs}/{gpus}",
                str(len(found)),
                spread(row["planning_cpu_s"] for row in found),
                spread((row["planning_cpu_s"] / row["calibration_s"] for row in found), 1),
                spread(row["planning_wall_s"] for row in found),
                percent(max(gaps)) if len(gaps) == len(found) else "not proven",
                shown(max(row["peak_rss_mib"] for row in found), 0),
                spread((row["columns"] for row in found), 0),
            ]
        )
    head = ["jobs/GPUs", "seeds", "planning CPU s", "CPU / calibration", "planning wall s"]
    return markdown([*head, "largest value gap", "MiB", "columns"], body)


def peers_table(rows: list[Row]) -> str:
    """Return every run of a round with peers: what each has at the CPU time of ours, and in the end."""
    body = []
    for name, methods in by_round(rows).items():
        peers = {method: row for method, row in methods.items() if method not in CLOCKED}
        if len(peers) < 2:
            continue
        ours = peers[OURS]
        for method, row in peers.items():
            mine = method == OURS
            first = "" if mine else _against(row, ours, ours["planning_cpu_s"])
            last = "" if mine else _against(row, ours, row["budget_cpu_s"] or float("inf"))
            body.append(
                [
                    name if mine else "",
                    method,
                    shown(row["budget_cpu_s"], 1),
                    shown(row["planning_cpu_s"]),
                    shown(row["process_wall_s"], 1),
                    shown(row["peak_rss_mib"], 0),
                    shown(row["objective"], 4),
                    first,
                    last,
                    percent(own_gap(row, ours)),
                    row["failed"] or row["ended"],
                ]
            )
    head = ["round", "method", "CPU s given", "CPU s", "process wall s", "MiB", "objective"]
    head += ["against `auto`, same CPU time", "against `auto`, CPU s given", "own value gap", "ended"]
    return markdown(head, body)


def _against(row: Row, ours: Row, cpu_s: float) -> str:
    difference = relative(row, ours, cpu_s)
    if difference is None:
        return "none"
    return f"{100 * difference:+.5f} %" if difference else "equal"


def own_gap(row: Row, ours: Row) -> float | None:
    """Return the value gap that a run proved itself."""
    if row["objective"] is None or row["bound"] is None or ours["queue_all"] is None:
        return None
    value = ours["queue_all"] - row["bound"]
    return max(row["objective"] - row["bound"], 0.0) / value if value > 0 else None


def verdict(rows: list[Row]) -> str:
    """Return in words whether a peer had a better plan than ours."""
    runs = [
        (row, methods[OURS])
        for methods in by_round(rows).values()
        for method, row in methods.items()
        if method != OURS and method not in CLOCKED and methods[OURS]["planning_cpu_s"] is not None
    ]
    same = _better(runs, lambda row, ours: float(ours["planning_cpu_s"]))
    more = _better(runs, lambda row, ours: float(row["budget_cpu_s"] or "inf"))
    times = max((row["times"] for row, _ in runs if row["times"]), default=None)
    most = max((row["most_cpu_s"] for row, _ in runs if row["most_cpu_s"]), default=None)
    text = f"With the CPU time that `auto` took, {_in_words(same, len(runs))}. "
    limits = f"up to {times:g} times as much, at most {most:g} CPU s" if times else "more"
    return text + f"With what they were given ({limits}), {_in_words(more, len(runs))}."


def _better(runs: list[tuple[Row, Row]], when: Callable[[Row, Row], float]) -> list[tuple[float, Row]]:
    found = [(relative(row, ours, when(row, ours)), row) for row, ours in runs]
    return sorted(((d, row) for d, row in found if d is not None and d < 0), key=lambda item: item[0])


def _in_words(better: list[tuple[float, Row]], runs: int) -> str:
    if not better:
        return f"none of {runs} other runs had a better plan"
    most, row = better[0]
    who = sorted({found["method"] for _, found in better})
    return (
        f"{len(better)} of {runs} other runs had a better plan ({', '.join(who)}), by at most "
        f"{-100 * most:.5f} % of the objective ({row['method']} on {row['instance']})"
    )


def clocked_table(rows: list[Row]) -> str:
    """Return the times of methods with objectives of their own."""
    methods = [method for method in CLOCKED if any(row["method"] == method for row in rows)]
    body = []
    for name, found in by_round(rows).items():
        if any(method in found for method in methods):
            body.append([name, *(_clocked(found.get(method)) for method in (OURS, *methods))])
    return markdown(["round", *(f"{method}, CPU s" for method in (OURS, *methods))], body) if body else ""


def _clocked(row: Row | None) -> str:
    if row is None:
        return ""
    if row["planning_cpu_s"] is None:
        return "failed" if row["failed"] else f"more than {shown(row['budget_cpu_s'], 1)}"
    return shown(row["planning_cpu_s"])


def machine_line(rows: list[Row]) -> str:
    """Return where and how loaded the runs were."""
    last = rows[-1]["machine"]
    loads = [row["machine"]["load_1min"] for row in rows]
    pieces = [row["calibration_s"] for row in rows]
    packages = ", ".join(f"{name} {number}" for name, number in last["packages"].items() if number)
    return (
        f"{len(rows)} runs on {last['processor']} ({last['cores']} cores, {last['system']}, "
        f"Python {last['python']}; {packages}), load {min(loads):.1f} to {max(loads):.1f}; "
        f"the calibration took {min(pieces):.2f} to {max(pieces):.2f} CPU s. Sources `{rows[-1]['code']}`."
    )


def tables(rows: list[Row]) -> str:
    """Return everything as Markdown."""
    parts = [machine_line(rows), ours_table(rows)]
    if any(row["method"] not in (OURS, *CLOCKED) for row in rows):
        parts += [verdict(rows), peers_table(rows)]
    clocked = clocked_table(rows)
    if clocked:
        parts += ["By objectives of their own, so that only times compare:", clocked]
    return "\n\n".join(parts)


def filled(document: str, text: str) -> str:
    """Return a document with what stands between the marks replaced.

    Raises
    ------
    SystemExit
        A mark is missing, or they stand the wrong way round.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the document needs a line {BEGIN!r} and below it a line {END!r}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--pictures", type=Path, help="folder for the plots")
    parser.add_argument("--document", type=Path, help="fill this document in")
    options = parser.parse_args()
    rows = read_rows(options.results)
    if not rows:
        raise SystemExit(f"{options.results} holds no results; run solver_peers.py first")
    rows = of_last_code(rows)
    text = tables(rows)
    if options.pictures is not None:
        from solver_plots import plot_gaps, plot_sizes

        options.pictures.mkdir(parents=True, exist_ok=True)
        plot_sizes(rows, options.pictures / PICTURES[0][0])
        plot_gaps(rows, options.pictures / PICTURES[1][0])
    if options.document is None:
        print(text)
        return
    if options.pictures is not None:
        folder = os.path.relpath(options.pictures, options.document.parent)
        links = "\n".join(f"![{title}]({folder}/{name})" for name, title in PICTURES)
        text += f"\n\n{links}\n\n{LEGEND}"
    write_atomic(options.document, filled(options.document.read_text(encoding="utf-8"), text))


if __name__ == "__main__":
    main()
