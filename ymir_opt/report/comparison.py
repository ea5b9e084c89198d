"""The page of a comparison: policies on traces, beside a bound that nothing can beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ymir_opt.report.html import Html, asset, el, join, page
from ymir_opt.report.run_data import comparison_data
from ymir_opt.report.text import NONE, amount, count_of, figure, percent
from ymir_opt.simulator.bootstrap import interval_factor
from ymir_opt.simulator.bounds import JctBound
from ymir_opt.simulator.results import SimulationResult

__all__ = ["comparison_page"]

Row = Mapping[str, Any]


def comparison_page(
    rows: Sequence[Row], results: Sequence[SimulationResult], bounds: Sequence[JctBound | None]
) -> str:
    """Return the runs of a comparison as one HTML page without remote parts.

    The figures are a table in the markup; the charts are drawn by plotly, which is part of the page.

    Parameters
    ----------
    rows : sequence of mapping
        As ``compare --json`` prints them; seed 0 is shown, other seeds give intervals.
    results : sequence of SimulationResult
        The rows' runs; GPUs over time are drawn where segments were recorded.
    bounds : sequence of JctBound or None
        The rows' lower bounds.
    """
    from plotly.offline import get_plotlyjs

    data = comparison_data(rows, results, bounds)
    policies = list(dict.fromkeys(run["policy"] for trace in data for run in trace["runs"]))
    body = join(
        (
            el(
                "header",
                el("h1", "Comparison of policies"),
                el("p", _lead(data, policies), class_="lead"),
                _tabs(data),
            ),
            el("main", [_figures(k, trace) for k, trace in enumerate(data)], _charts(), _gpus())
            if data
            else el("main", el("p", "There are no runs.", class_="empty")),
        )
    )
    return page(
        "Comparison of policies",
        body,
        styles=(asset("base.css") + asset("comparison.css"),),
        scripts=(get_plotlyjs(), asset("why.js"), asset("comparison.js")) if data else (),
        data={"data": {"traces": data, "policies": policies}},
        inline_styles=True,
    )


def _lead(data: Sequence[Mapping[str, Any]], policies: Sequence[str]) -> str:
    seeds = max((trace["seeds"] for trace in data), default=1)
    number = f"{len(policies)} {'policy' if len(policies) == 1 else 'policies'}"
    text = f"{number} on {count_of(len(data), 'trace')}"
    if seeds > 1:
        text += f", each also resampled {count_of(seeds - 1, 'time')}"
        text += "; intervals are of 95 %" if interval_factor(seeds) else ": too few for intervals"
    return text + "."


def _tabs(data: Sequence[Mapping[str, Any]]) -> Html | None:
    if len(data) < 2:
        return None
    return el(
        "div",
        [
            el(
                "button",
                _short(trace["trace"]),
                type="button",
                class_="tab",
                role="tab",
                data_trace=k,
                aria_selected="true" if k == 0 else "false",
                title=trace["trace"],
            )
            for k, trace in enumerate(data)
        ],
        class_="tabs",
        role="tablist",
        aria_label="Trace",
    )


def _short(trace: str) -> str:
    """Return the part of a trace's path that tells it from others."""
    parts = [part for part in trace.replace("\\", "/").split("/") if part]
    if len(parts) > 1 and parts[-1].startswith("workload-"):
        return parts[-2]
    return parts[-1] if parts else trace


def _short_time(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    return f"{figure(seconds, 3)} s" if seconds >= 1 else f"{figure(1000 * seconds, 3)} ms"


def _hours(seconds: float | None) -> str:
    return NONE if seconds is None else f"{figure(seconds / 3600, 3)} h"


# Heading, key, text of a value, and whether smaller (-1) or larger (1) is better; 0: neither.
_COLUMNS: tuple[tuple[str, str, Callable[[Any], str], int], ...] = (
    ("mean JCT", "mean_jct_s", _hours, -1),
    ("p50", "p50_jct_s", _hours, -1),
    ("p95", "p95_jct_s", _hours, -1),
    ("p99", "p99_jct_s", _hours, -1),
    ("makespan", "makespan_s", _hours, -1),
    ("mean rho", "mean_rho", lambda v: figure(v, 3), -1),
    ("max rho", "max_rho", lambda v: figure(v, 3), -1),
    ("Jain", "jain", lambda v: figure(v, 3), 1),
    ("preempted", "preemptions", amount, 0),
    ("GPU-h", "gpu_hours_used", lambda v: figure(v, 4), 0),
    ("switching", "gpu_hours_switching", lambda v: figure(v, 3), 0),
    ("in use", "utilisation", percent, 0),
    ("merges", "merges", str, 0),
    ("plan p99", "plan_wall_p99_s", _short_time, 0),
    ("value gap", "max_value_gap", percent, 0),
)


def _figures(k: int, trace: Mapping[str, Any]) -> Html:
    runs = sorted(
        trace["runs"], key=lambda run: (run["row"]["mean_jct_s"] is None, run["row"]["mean_jct_s"] or 0.0)
    )
    bound = trace["bound"]
    best = {
        key: (min if sense < 0 else max)(values)
        for _, key, _, sense in _COLUMNS
        if sense and (values := [run["row"][key] for run in runs if run["row"].get(key) is not None])
    }
    heads = ["policy", *(["of the bound"] if bound else []), *(name for name, _, _, _ in _COLUMNS)]
    return el(
        "section",
        el(
            "h2",
            _short(trace["trace"]),
            el(
                "span", f"{count_of(trace['jobs'], 'job')} on {count_of(trace['gpus'], 'GPU')}", class_="note"
            ),
        ),
        el("p", _verdict(runs, bound)),
        el(
            "div",
            el(
                "table",
                el(
                    "thead",
                    el(
                        "tr",
                        [el("th", head, class_=None if i == 0 else "num") for i, head in enumerate(heads)],
                    ),
                ),
                el("tbody", [_line(run, bound, best) for run in runs]),
                class_="figures",
            ),
            class_="wide",
        ),
        _unfinished(runs),
        class_="trace",
        data_trace=k,
        hidden=k > 0,
    )


def _line(run: Mapping[str, Any], bound: Mapping[str, Any] | None, best: Mapping[str, float]) -> Html:
    row = run["row"]
    cells = [el("td", el("i", class_="dot", data_policy=run["policy"]), run["policy"])]
    if bound:
        ratio = None if row["mean_jct_s"] is None or not bound["mean"] else row["mean_jct_s"] / bound["mean"]
        shown: list[Any] = [NONE if ratio is None else f"{figure(ratio, 3)} ×"]
        shown.append(_plus_minus(run["ratio_interval"], 1.0))
        cells.append(el("td", shown, class_="num"))
    for _, key, text, sense in _COLUMNS:
        value = row.get(key)
        shown = [text(value), _plus_minus(run["mean_interval"], 3600.0) if key == "mean_jct_s" else None]
        top = sense and value is not None and value == best.get(key)
        cells.append(el("td", shown, class_="num best" if top else "num"))
    return el("tr", cells)


def _plus_minus(limits: tuple[float, float] | None, unit: float) -> Html | None:
    if limits is None:
        return None
    return el("span", f" ± {figure((limits[1] - limits[0]) / 2 / unit, 2)}", class_="note")


def _verdict(runs: Sequence[Mapping[str, Any]], bound: Mapping[str, Any] | None) -> str:
    ranked = [run for run in runs if run["row"]["mean_jct_s"] is not None]
    if not ranked:
        return "No job finished."
    first = ranked[0]
    text = f"{first['policy']} has the least mean completion time, {_hours(first['row']['mean_jct_s'])}"
    if len(ranked) > 1:
        lead = 1 - first["row"]["mean_jct_s"] / ranked[1]["row"]["mean_jct_s"]
        text += f", {percent(round(lead, 3))} below {ranked[1]['policy']}"
    text += "."
    if bound and bound["mean"]:
        over = first["row"]["mean_jct_s"] / bound["mean"] - 1
        text += f" No schedule without merging can be below {_hours(bound['mean'])}"
        text += (
            f"; this is {percent(round(over, 3))} above." if over >= 0 else "; merging saved work beyond it."
        )
    return text


def _unfinished(runs: Sequence[Mapping[str, Any]]) -> Html | None:
    left = {run["policy"]: run["row"].get("unfinished", 0) for run in runs if run["row"].get("unfinished", 0)}
    if not left:
        return None
    text = ", ".join(f"{policy} {amount(count)}" for policy, count in left.items())
    return el("p", f"Jobs that never finished and are in no figure: {text}.", class_="warn")


def _charts() -> Html:
    charts = (
        ("cdf", "Completion times", "Share of jobs completed within a time after submission"),
        ("bound", "Distance to the bound", "Mean completion time, and what nothing can beat"),
        ("queue", "Queue", "Jobs without GPUs, means of short intervals"),
        ("utilisation", "Utilisation", "GPUs held, of those there are, means of short intervals"),
        ("fairness", "Fairness", "Completion time over time alone on the requested GPUs (rho)"),
        ("fragmentation", "Fragmentation", "1 − largest gang that one node can take, of what it could"),
    )
    return el(
        "div",
        [
            el(
                "section",
                el("h2", title, el("span", note, class_="note")),
                el("div", id=name, class_="chart"),
            )
            for name, title, note in charts
        ],
        class_="charts",
    )


def _gpus() -> Html:
    return el(
        "section",
        el(
            "h2",
            "GPUs over time",
            el("span", "coloured by group; striped groups are shared; dark ends are starts", class_="note"),
        ),
        el(
            "div",
            el("label", "Policy ", el("select", id="policy")),
            el("span", id="dropped", class_="note"),
            class_="bar-of",
        ),
        el(
            "div",
            el("div", id="gpus", class_="chart"),
            el("aside", el("p", "Choose a stretch to see why it began and ended.", class_="empty"), id="why"),
            class_="split",
        ),
    )
