"""The page of measured profiles: throughput, co-location, transfer with intervals, skill of scores."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ymir_opt.report.html import Html, asset, el, join, page
from ymir_opt.report.text import amount, duration, figure, percent, signed

__all__ = ["measured_page"]

Row = Mapping[str, Any]
WIDTH, HEIGHT, PAD = 560, 240, 46
SHADES = 12

MODES = (("warm_start", "Transfer by a warm start"), ("joint", "Transfer by training jointly"))

STYLE = """
.chart { width: 100%; max-width: 640px; display: block; }
.chart text { fill: var(--muted); font-size: 11px; }
.chart line.axis { stroke: var(--line); }
.chart polyline, .chart line.whisker { fill: none; stroke-width: 2; }
.wide { overflow-x: auto; }
table.map td, table.map th { text-align: center; padding: 6px 8px; border: 1px solid var(--line); }
table.map th { font-weight: 500; }
table.map td small { display: block; color: inherit; opacity: 0.75; }
table.map td.sure { outline: 2px solid var(--ink); outline-offset: -2px; }
""" + "".join(
    # two ramps that are told apart by lightness too: gains and losses
    f".up{i} {{ background: oklch({0.97 - 0.032 * i:.3f} {0.012 * i:.3f} 160); color: {ink}; }}\n"
    f".down{i} {{ background: oklch({0.97 - 0.032 * i:.3f} {0.012 * i:.3f} 30); color: {ink}; }}\n"
    f".line{i} {{ stroke: oklch(0.6 0.14 {(47 + 137 * i) % 360}); }}\n"
    f".dot{i} {{ fill: oklch(0.6 0.14 {(47 + 137 * i) % 360}); }}\n"
    for i in range(SHADES + 1)
    for ink in ["#1d2025"]
)


def measured_page(summary: Mapping[str, Any]) -> str:
    """Return measured profiles as one HTML page without remote parts; it needs no script.

    Parameters
    ----------
    summary : mapping
        Lists of plain rows under ``throughput``, ``colocation``, ``switch``, ``transfer``, ``skill`` and
        ``machines``; numbers ``measurements`` and ``cpu_s``.
    """
    body = join((_header(summary), el("main", *_sections(summary))))
    return page("Measured profiles", body, styles=(asset("base.css"), STYLE))


def _header(summary: Mapping[str, Any]) -> Html:
    machines = [
        ", ".join(f"{key} {value}" for key, value in sorted(machine.items()))
        for machine in summary.get("machines", ())
    ]
    count, cost = summary.get("measurements", 0), summary.get("cpu_s", 0.0)
    return el(
        "header",
        el("h1", "Measured profiles"),
        el("p", f"{amount(count)} measurements, {duration(cost)} of CPU time", class_="lead"),
        [el("p", text, class_="note") for text in machines],
    )


def _sections(summary: Mapping[str, Any]) -> list[Html]:
    made = [
        _throughput(summary.get("throughput", ())),
        _colocation(summary.get("colocation", ())),
        _switch(summary.get("switch", ())),
        *(
            _transfer([row for row in summary.get("transfer", ()) if row["mode"] == mode], title)
            for mode, title in (
                ("warm_start", "Transfer by a warm start"),
                ("joint", "Transfer by training jointly"),
            )
        ),
        _skill(summary.get("skill", ())),
    ]
    found = [section for section in made if section is not None]
    return found or [el("section", el("p", "Nothing is measured yet.", class_="empty"))]


def _section(title: str, note: str, *parts: Html) -> Html:
    return el("section", el("h2", title), el("p", note, class_="note"), *parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int) -> Html:
    def cells(tag: str, row: Sequence[str]) -> list[Html]:
        return [el(tag, text, class_="num" if i >= numbers_from else None) for i, text in enumerate(row)]

    return el(
        "div",
        el(
            "table",
            el("thead", el("tr", cells("th", head))),
            el("tbody", [el("tr", cells("td", r)) for r in rows]),
        ),
        class_="wide",
    )


def _throughput(rows: Sequence[Row]) -> Html | None:
    known = [row for row in rows if row.get("samples_per_s")]
    if not known:
        return None
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in known:
        lines[f"{row['foundation_model']} {row['peft_type']} {row['config']} {row['gpu_type']}"].append(row)
    for points in lines.values():
        points.sort(key=lambda row: row["measured_batch_size"])
    table = _table(
        ("configuration", "batch", "samples/s", "95 % interval", "memory GiB", "clock", "steps", "status"),
        [
            (
                name,
                str(row["measured_batch_size"]),
                figure(row["samples_per_s"], 3),
                f"{figure(row['samples_per_s_low'], 3)} to {figure(row['samples_per_s_high'], 3)}",
                figure(row.get("memory_gib"), 3),
                row["clock"],
                str(row["steps"]),
                row["status"],
            )
            for name, points in lines.items()
            for row in points
        ],
        1,
    )
    return _section(
        "Throughput",
        "Samples per second over the batch size, both on logarithmic axes; bars are 95 % intervals.",
        _curves(lines),
        table,
    )


def _curves(lines: Mapping[str, Sequence[Row]]) -> Html:
    points = [row for rows in lines.values() for row in rows]
    xs = [math.log(row["measured_batch_size"]) for row in points]
    ys = [math.log(row[k]) for row in points for k in ("samples_per_s_low", "samples_per_s_high")]
    x_low, x_span = min(xs), (max(xs) - min(xs)) or 1.0
    y_low, y_span = min(ys), (max(ys) - min(ys)) or 1.0

    def x(value: float) -> float:
        return PAD + (math.log(value) - x_low) / x_span * (WIDTH - PAD - 16)

    def y(value: float) -> float:
        return HEIGHT - 28 - (math.log(value) - y_low) / y_span * (HEIGHT - 44)

    marks: list[Html] = []
    for batch in sorted({row["measured_batch_size"] for row in points}):
        marks.append(el("text", str(batch), x=f"{x(batch):.1f}", y=str(HEIGHT - 8), text_anchor="middle"))
    for value in (math.exp(y_low), math.exp(y_low + y_span / 2), math.exp(y_low + y_span)):
        at = f"{y(value):.1f}"
        marks.append(el("text", figure(value, 3), x=str(PAD - 6), y=at, text_anchor="end"))
        marks.append(el("line", x1=str(PAD), x2=str(WIDTH - 8), y1=at, y2=at, class_="axis"))
    legend = []
    for number, (name, rows) in enumerate(lines.items()):
        shade = number % (SHADES + 1)
        path = " ".join(f"{x(r['measured_batch_size']):.1f},{y(r['samples_per_s']):.1f}" for r in rows)
        marks.append(el("polyline", points=path, class_=f"line{shade}"))
        for row in rows:
            at = f"{x(row['measured_batch_size']):.1f}"
            low, high = f"{y(row['samples_per_s_low']):.1f}", f"{y(row['samples_per_s_high']):.1f}"
            title = el(
                "title", f"{name}: batch {row['measured_batch_size']}, {figure(row['samples_per_s'], 3)}/s"
            )
            marks.append(el("line", x1=at, x2=at, y1=low, y2=high, class_=f"whisker line{shade}"))
            marks.append(
                el("circle", title, cx=at, cy=f"{y(row['samples_per_s']):.1f}", r="3.5", class_=f"dot{shade}")
            )
        dot = el("svg", el("circle", cx="5", cy="5", r="4", class_=f"dot{shade}"), width="10", height="10")
        legend.append(el("p", dot, f" {name}", class_="note"))
    label = "Throughput over the batch size; the table below has the figures"
    chart = el("svg", marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img", aria_label=label)
    return join((chart, *legend))


def _shade(value: float, largest: float) -> str:
    level = round(SHADES * min(abs(value) / largest, 1.0)) if largest > 0 else 0
    return f"{'up' if value >= 0 else 'down'}{level}"


def _colocation(rows: Sequence[Row]) -> Html | None:
    known = [row for row in rows if row.get("aggregate")]
    if not known:
        return None
    maps: dict[str, list[Row]] = defaultdict(list)
    for row in known:
        maps[f"{row['mode']}, {row['foundation_model']}, {row['config']}, {row['gpu_type']}"].append(row)
    parts = []
    for name, found in maps.items():
        counts = sorted({len(row["speed_ratio"]) for row in found})
        sizes = sorted({row["batch_size"] for row in found})
        at = {(len(row["speed_ratio"]), row["batch_size"]): row for row in found}
        largest = max(math.log(1.5), *(abs(math.log(row["aggregate"])) for row in found))
        body = [
            el(
                "tr",
                el("th", f"{count} members", scope="row"),
                [_ratio_cell(at.get((count, size)), largest) for size in sizes],
            )
            for count in counts
        ]
        head = el("tr", el("th", "batch of each"), [el("th", str(size), scope="col") for size in sizes])
        table = el("table", el("thead", head), el("tbody", body), class_="map")
        parts.append(join((el("h3", name), el("div", table, class_="wide"))))
    return _section(
        "Co-location",
        "All members' samples per second together, over one alone on the same device (small: a member's own "
        "share of its speed alone). Above 1, sharing does more work than taking turns.",
        *parts,
    )


def _ratio_cell(row: Row | None, largest: float) -> Html:
    if row is None:
        return el("td", "–", class_="empty")
    ratios = row["speed_ratio"]
    share = f"{figure(sum(ratios) / len(ratios), 2)} each"
    return el(
        "td",
        figure(row["aggregate"], 3),
        el("small", share),
        class_=_shade(math.log(row["aggregate"]), largest),
    )


def _switch(rows: Sequence[Row]) -> Html | None:
    if not rows:
        return None
    parts = ("cold_s", "warm_s", "add_s", "first_step_s", "load_s", "restore_optimiser_s", "write_s")
    table = _table(
        ("model", "device", *(part[:-2].replace("_", " ") + " s" for part in parts), "clock"),
        [
            (row["foundation_model"], row["gpu_type"], *(figure(row.get(p), 3) for p in parts), row["clock"])
            for row in rows
        ],
        2,
    )
    return _section("Switching", "From a start to the first step, and the parts of a warm switch.", table)


def _transfer(rows: Sequence[Row], title: str) -> Html | None:
    if not rows:
        return None
    parts = []
    for model in dict.fromkeys(row["foundation_model"] for row in rows):
        found = [row for row in rows if row["foundation_model"] == model]
        sources = sorted({row["source"] for row in found})
        targets = sorted({row["target"] for row in found})
        at = {(row["source"], row["target"]): row for row in found}
        largest = max(0.05, *(abs(row["gain"]) for row in found))
        head = el("tr", el("th", "from \\ to"), [el("th", name, scope="col") for name in targets])
        body = [
            el(
                "tr",
                el("th", source, scope="row"),
                [_gain_cell(at.get((source, t)), largest) for t in targets],
            )
            for source in sources
        ]
        table = el("table", el("thead", head), el("tbody", body), class_="map")
        parts.append(join((el("h3", model), el("div", table, class_="wide"), _pairs(found))))
    detected = sum(row["gain"] > (row["minimal_detectable_effect"] or math.inf) for row in rows)
    return _section(
        title,
        f"Difference of the final metric with its 95 % interval, in points; framed: above the minimal "
        f"detectable effect ({detected} of {len(rows)} pairs). Runs are paired by seed and test row and "
        f"alike in every hyper-parameter.",
        *parts,
    )


def _points(value: float | None) -> str:
    return signed(None if value is None else 100 * value, 2)


def _gain_cell(row: Row | None, largest: float) -> Html:
    if row is None:
        return el("td", "–", class_="empty")
    sure = row["minimal_detectable_effect"] is not None and row["gain"] > row["minimal_detectable_effect"]
    interval = f"{_points(row['gain_low'])} to {_points(row['gain_high'])}"
    shade = _shade(row["gain"], largest)
    return el("td", _points(row["gain"]), el("small", interval), class_=f"{shade} sure" if sure else shade)


def _pairs(rows: Sequence[Row]) -> Html:
    return _table(
        (
            "source",
            "target",
            "seeds",
            "gain",
            "detectable",
            "work ratio",
            "80 % interval",
            "P(benefit)",
            "censored",
        ),
        [
            (
                row["source"],
                row["target"],
                str(row["seeds"]),
                _points(row["gain"]),
                _points(row["minimal_detectable_effect"]),
                figure(row["work_ratio"], 3),
                f"{figure(row['low'], 3)} to {figure(row['high'], 3)}",
                percent(row["p_benefit"]),
                f"{row['censored'][0]} alone, {row['censored'][1]} after",
            )
            for row in sorted(rows, key=lambda r: -r["gain"])
        ],
        2,
    )


def _skill(rows: Sequence[Row]) -> Html | None:
    if not rows:
        return None
    table = _table(
        ("score", "mode", "pairs", "rank correlation", "95 % interval", "within a target", "CPU s a pair"),
        [
            (
                row["score"],
                row["mode"].replace("_", " "),
                str(row["pairs"]),
                figure(row["correlation"], 2),
                f"{figure(row['low'], 2)} to {figure(row['high'], 2)}",
                figure(row["within_target"], 2),
                figure(row["cost_s"], 3),
            )
            for row in rows
        ],
        2,
    )
    return _section(
        "Skill of scores",
        "Spearman's rank correlation of a cheap score with the measured gain. An interval that holds 0 is no "
        "evidence of skill.",
        table,
    )
