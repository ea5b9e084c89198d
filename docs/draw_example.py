"""Draws ``docs/pictures/example.svg``: the example's cluster before and after its plan.

Run ``python docs/draw_example.py`` after the example or the planner changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from ymir_opt import Plan, Snapshot, solve
from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.plan import ActionKind, GapScope, SolverStatus
from ymir_opt.domain.snapshot import JobState, Mode, Node, NodeState

DOCS = Path(__file__).resolve().parent
CELL_W, CELL_H, GAP = 98, 64, 4
LABEL_W, TOP, ROW = 62, 92, 78
PANEL_W = LABEL_W + 4 * (CELL_W + GAP) + 24
COLOURS = {
    Mode.SOLO.value: ("#dbe9f6", "#3b76af"),
    Mode.GPU_SHARE.value: ("#fdebc8", "#c98500"),
    Mode.COLOCATE.value: ("#d3f0e0", "#00875f"),
    Mode.JOINT.value: ("#eadcf3", "#8247a5"),
    Mode.SEQUENCE.value: ("#fbdcd6", "#c04a2b"),
    "profile": ("#ffffff", "#555555"),
}
MEANING = {
    "solo": "alone",
    "gpu_share": "separate processes, one GPU",
    "colocate": "one backbone, many adapters",
    "joint": "one multi-task run",
    "sequence": "the next starts from these weights",
    "profile": "measure first",
}


@dataclass(frozen=True)
class Box:
    """What lies on some GPUs."""

    mode: str
    lines: tuple[str, ...]
    placement: Mapping[str, Sequence[int]]


def before(snapshot: Snapshot) -> list[Box]:
    """Return what runs now."""
    jobs = {job.id: job for job in snapshot.jobs}
    boxes = [
        Box(group.mode.value, group.jobs, jobs[group.jobs[0]].allocation or {}) for group in snapshot.groups
    ]
    grouped = {name for group in snapshot.groups for name in group.jobs}
    boxes += [
        Box(Mode.SOLO.value, (job.id,), job.allocation or {})
        for job in snapshot.jobs
        if job.state is JobState.RUNNING and job.id not in grouped
    ]
    return boxes


def after(plan: Plan) -> list[Box]:
    """Return what the plan puts where."""
    boxes = []
    for group in plan.groups:
        lines = [
            f"then {name}" if group.mode is Mode.SEQUENCE and i else name for i, name in enumerate(group.jobs)
        ]
        lines += [f"from {s.adapter}" for s in group.starts_from.values() if s.adapter]
        boxes.append(Box(group.mode.value, tuple(lines), group.placement))
    boxes += [
        Box("profile", (action.job,), action.to.placement)
        for action in plan.actions
        if action.action is ActionKind.PROFILE and action.to is not None
    ]
    return boxes


def runs(gpus: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, length) of neighbouring GPUs."""
    for _, members in groupby(enumerate(sorted(gpus)), key=lambda item: item[1] - item[0]):
        found = [gpu for _, gpu in members]
        yield found[0], len(found)


def text(x: float, y: float, words: str, size: int = 12, **style: str) -> str:
    """Return one line of text."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}"{attributes}>{escape(words)}</text>'


def rect(x: float, y: float, w: float, h: float, fill: str, stroke: str, **style: str) -> str:
    """Return a rounded rectangle."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{h:.0f}" rx="5" '
        f'fill="{fill}" stroke="{stroke}"{attributes}/>'
    )


def panel(left: float, title: str, nodes: Sequence[Node], boxes: Sequence[Box]) -> Iterator[str]:
    """Draw the nodes and what lies on them."""
    yield text(left, TOP - 16, title, 16, font_weight="bold")
    for row, node in enumerate(nodes):
        y = TOP + row * ROW
        yield text(left, y + 28, node.id, 12, font_weight="bold")
        note = "draining" if node.state is NodeState.DRAINING else f"{node.gpu_memory_gib:.0f} GiB"
        yield text(left, y + 44, note, 11, fill="#666666")
        for gpu in range(node.gpus):
            x = left + LABEL_W + gpu * (CELL_W + GAP)
            broken = gpu in node.unavailable_gpus
            yield rect(x, y, CELL_W, CELL_H, "#e8e8e8" if broken else "#f7f7f7", "#cccccc")
            if broken:
                yield text(x + CELL_W / 2, y + 36, "broken", 11, text_anchor="middle", fill="#777777")
        for box in boxes:
            for first, length in runs(box.placement.get(node.id, ())):
                yield from draw_box(left + LABEL_W + first * (CELL_W + GAP), y, length, box)


def draw_box(x: float, y: float, length: int, box: Box) -> Iterator[str]:
    """Draw one group on neighbouring GPUs."""
    fill, stroke = COLOURS[box.mode]
    width = length * (CELL_W + GAP) - GAP
    dashes = {"stroke_dasharray": "4 3"} if box.mode == "profile" else {}
    yield rect(x, y, width, CELL_H, fill, stroke, stroke_width="1.5", **dashes)
    middle = y + CELL_H / 2 + 4 - 8 * (len(box.lines) - 1)
    for i, line in enumerate(box.lines):
        small = line.startswith(("then ", "from "))
        yield text(x + width / 2, middle + 16 * i, line, 11 if small else 12, text_anchor="middle")


def legend(y: float) -> Iterator[str]:
    """Draw the modes' colours with their meaning."""
    x = 16.0
    for mode, meaning in MEANING.items():
        fill, stroke = COLOURS[mode]
        dashes = {"stroke_dasharray": "3 2"} if mode == "profile" else {}
        yield rect(x, y - 11, 14, 14, fill, stroke, **dashes)
        yield text(x + 20, y, mode, 11, font_weight="bold")
        yield text(x + 20, y + 14, meaning, 10, fill="#555555")
        x += 44 + 5.1 * max(len(meaning), len(mode) + 4)


def waiting(plan: Plan, y: float) -> Iterator[str]:
    """List who gets no GPU, and why."""
    placed = {name for group in plan.groups for name in group.jobs}
    rows = [
        f"{action.job}: {plan.explanations[action.job].reason.value}"
        for action in plan.actions
        if action.job not in placed and action.to is None
    ]
    yield text(16, y, "No GPU this round", 13, font_weight="bold")
    yield text(150, y, "  ·  ".join(rows), 11)


def draw(snapshot: Snapshot, plan: Plan) -> str:
    """Return the whole picture."""
    nodes = snapshot.cluster.nodes
    bottom = TOP + len(nodes) * ROW
    width, height = 2 * PANEL_W + 8, bottom + 84
    solver = plan.solver
    scope = "proven optimal" if solver.gap_scope is GapScope.GLOBAL else "optimal among all candidates"
    proof = scope if solver.status is SolverStatus.OPTIMAL else f"by {solver.backend}"
    title = f"{len(snapshot.jobs)} jobs, {plan.metrics.gpus_total} GPUs, one round, {proof}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        text(16, 34, title, 18, font_weight="bold"),
        *panel(16, "Now", nodes, before(snapshot)),
        *panel(16 + PANEL_W, "Planned", nodes, after(plan)),
        *waiting(plan, bottom + 20),
        *legend(bottom + 54),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Solve the example and write its picture."""
    snapshot = parse_snapshot((DOCS.parent / "examples" / "small.json").read_bytes())
    target = DOCS / "pictures" / "example.svg"
    target.parent.mkdir(exist_ok=True)
    target.write_text(draw(snapshot, solve(snapshot)))


if __name__ == "__main__":
    main()
