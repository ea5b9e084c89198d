"""``ymir-plan diff``: what changed between two plans."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit, read_plan, require_once
from ymir_opt.cli.formats import figure, placement_text
from ymir_opt.cli.options import Json
from ymir_opt.domain.plan import Plan

__all__ = ["differences", "register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff")(diff)


def _situations(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return for each job what the plan decides: group mode, partners, GPUs, or nothing."""
    found: dict[str, dict[str, Any]] = {
        action.job: {
            "mode": "profile" if action.to is not None and action.to.group is None else None,
            "with": [],
            "gpu_type": action.to.gpu_type if action.to is not None else None,
            "gpus": action.to.gpus if action.to is not None else 0,
            "placement": {node: list(gpus) for node, gpus in action.to.placement.items()}
            if action.to is not None
            else {},
        }
        for action in plan.actions
    }
    for group in plan.groups:
        for name in group.jobs:
            found[name] = {
                "mode": group.mode.value,
                "with": [other for other in group.jobs if other != name],
                "gpu_type": group.gpu_type,
                "gpus": group.gpus,
                "placement": {node: list(gpus) for node, gpus in group.placement.items()},
            }
    return found


def differences(first: Plan, second: Plan) -> list[dict[str, Any]]:
    """Return the jobs whose situation differs, each with ``job``, ``before`` and ``after`` (or null)."""
    before, after = _situations(first), _situations(second)
    return [
        {"job": name, "before": before.get(name), "after": after.get(name)}
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _text(situation: dict[str, Any] | None) -> str:
    if situation is None:
        return "not in the plan"
    if situation["mode"] is None:
        return "no GPUs"
    text = f"{situation['mode']} {situation['gpus']} x {situation['gpu_type']}"
    if situation["with"]:
        text += " with " + ", ".join(situation["with"])
    return f"{text} on {placement_text(situation['placement'])}"


def diff(
    first: Annotated[str, typer.Argument(metavar="PLAN", help="The earlier plan, or - for standard input.")],
    second: Annotated[str, typer.Argument(metavar="PLAN", help="The later plan, or - for standard input.")],
    as_json: Json = False,
) -> None:
    """Show what two plans decide differently."""
    require_once(first, second)
    a, b = read_plan(first), read_plan(second)
    rows = differences(a, b)
    out = Output(json=as_json)
    if out.wants_json:
        answer = {
            "same_snapshot": a.snapshot_sha256 == b.snapshot_sha256,
            "objective": [a.solver.objective, b.solver.objective],
            "value_gap": [a.solver.value_gap, b.solver.value_gap],
            "jobs": rows,
        }
        emit(json.dumps(answer, ensure_ascii=False) + "\n")
    if out.wants_tables:
        from rich.text import Text

        from ymir_opt.cli.tables import diff_table

        console = out.console()
        if rows:
            lines = [(r["job"], _text(r["before"]), _text(r["after"])) for r in rows]
            console.print(diff_table(lines, ("before", "after")))
        else:
            console.print(Text("0 differences"))
        note = "" if a.snapshot_sha256 == b.snapshot_sha256 else "  (different snapshots: not comparable)"
        console.print(Text(f"objective {figure(a.solver.objective)} -> {figure(b.solver.objective)}{note}"))
