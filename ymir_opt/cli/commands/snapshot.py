"""``ymir-plan snapshot``: capture a planning round as one file, plan it again, take the names out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import (
    STDIO,
    emit,
    read_bytes,
    read_plan,
    read_snapshot,
    require_once,
    require_writable,
    write_text,
)
from ymir_opt.cli.options import Backend, Json, Models, SnapshotPath, finite, load_estimator

if TYPE_CHECKING:
    from ymir_opt.domain.plan import Plan
    from ymir_opt.snapshots import Case, Request

__all__ = ["register"]

CasePath = Annotated[str, typer.Argument(metavar="CASE", help="Case file, or - for standard input.")]


def register(app: typer.Typer) -> None:
    """Add the command and its three subcommands."""
    group = typer.Typer(
        help="Keep a planning round in one file, plan it again, take the names out.", rich_markup_mode=None
    )
    group.command("capture")(capture)
    group.command("replay")(replay)
    group.command("anonymize")(anonymize)
    app.add_typer(group, name="snapshot")


def _say(text: str, *, to_stdout: bool = False) -> None:
    from rich.text import Text

    Output(to_stdout=to_stdout).console().print(Text(text), soft_wrap=True)


def capture(
    snapshot: SnapshotPath,
    plan: Annotated[
        str | None,
        typer.Argument(metavar="[PLAN]", help="The plan in question; without one the planner is asked now."),
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="CASE", help="Write the case here; - for stdout.")
    ] = STDIO,
    previous: Annotated[
        str | None, typer.Option(metavar="PLAN", help="The previous round's plan, if one was given.")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Who decides.")] = None,
    backend: Backend = "auto",
    time_limit: Annotated[
        float | None, typer.Option(metavar="S", help="Wall-clock guard in seconds.")
    ] = None,
    gap: Annotated[float | None, typer.Option(metavar="G", help="Stop at this value gap.")] = None,
    prove_global: Annotated[
        bool, typer.Option("--prove-global", help="Prove the gap against every group of at most four.")
    ] = False,
    models: Models = None,
    measured_only: Annotated[bool, typer.Option("--measured-only", help="Refuse predicted figures.")] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of every random choice.")] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What is wrong with the plan.")] = "",
) -> None:
    """Put a snapshot, its plan, the request and the installed versions into one file.

    Policy, seed and backend are the plan's where a plan is given; the other options must be those with
    which it was made.
    """
    require_once(snapshot, plan or "", previous or "")
    require_writable(output)
    from ymir_opt.domain.documents import dump_json
    from ymir_opt.snapshots import capture as captured

    source = read_snapshot(snapshot)
    made = read_plan(plan) if plan is not None else None
    case = captured(
        source,
        made,
        previous=read_plan(previous) if previous is not None else None,
        request=_request(
            made,
            policy=policy,
            backend=backend,
            time_limit_s=finite("--time-limit", time_limit, above_zero=True),
            gap=finite("--gap", gap, above_zero=False),
            prove_global=prove_global,
            measured_only=measured_only,
            seed=seed,
        ),
        estimator=load_estimator(models),
        note=note,
    )
    write_text(output, dump_json(case, exclude_defaults=True))
    _say(_described(case), to_stdout=output == STDIO)


def _request(
    plan: Plan | None,
    *,
    policy: str | None,
    backend: str,
    time_limit_s: float | None,
    gap: float | None,
    prove_global: bool,
    measured_only: bool,
    seed: int | None,
) -> Request:
    from ymir_opt.domain.errors import InputError
    from ymir_opt.snapshots import Request

    if gap is not None and gap > 1:
        raise InputError("--gap", f"{gap} is more than 1", "give a fraction such as 0.001")
    if plan is not None:
        policy = policy if policy is not None else plan.planner.policy
        seed = seed if seed is not None else plan.planner.seed
        backend = backend if backend != "auto" else plan.solver.backend
    return Request(
        policy=policy or "ymir",
        backend=backend,
        time_limit_s=time_limit_s,
        gap=gap,
        measured_only=measured_only,
        prove_global=prove_global,
        seed=seed or 0,
    )


def _described(case: Case) -> str:
    jobs = f"{len(case.snapshot.jobs)} jobs, {len(case.snapshot.cluster.nodes)} nodes"
    if case.failure is not None:
        return f"case with {jobs} and a failure: {case.failure.message}"
    objective = None if case.plan is None else case.plan.solver.objective
    return f"case with {jobs} and a plan" + ("" if objective is None else f", objective {objective:.9g}")


def replay(
    case: CasePath,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="PLAN", help="Write the plan made now.")
    ] = None,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Plan a case again: exit code 0 for the same plan byte for byte (wall_s apart), else 1."""
    require_writable(output)
    from ymir_opt.domain.documents import dump_json
    from ymir_opt.snapshots import parse_case
    from ymir_opt.snapshots import replay as planned_again

    source = parse_case(read_bytes(case), "standard input" if case == STDIO else case)
    found = planned_again(source, load_estimator(models))
    if output is not None and found.plan is not None:
        write_text(output, dump_json(found.plan))
    out = Output(json=as_json, to_stdout=output == STDIO)
    if output != STDIO and out.wants_json:
        answer = {
            "same": found.same,
            "difference": found.difference,
            "versions": list(found.versions),
            "notes": list(found.notes),
        }
        emit(json.dumps(answer, ensure_ascii=False) + "\n")
    if out.wants_tables:
        what = "failure" if source.failure is not None else "plan"
        lines = [f"the same {what}" if found.same else f"not the same {what}: {found.difference}"]
        lines += [f"version: {text}" for text in found.versions]
        lines += [f"note: {text}" for text in found.notes]
        for line in lines:
            _say(line, to_stdout=output == STDIO)
    if not found.same:
        raise typer.Exit(1)


def anonymize(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Snapshot or case, or - for standard input.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Write it here; - for stdout.")
    ] = STDIO,
    models: Models = None,
) -> None:
    """Replace ids, names, paths and labels by pseudonyms that keep equalities and order.

    The key of the hash is random and dropped. Numbers and times stay. A case is planned again.
    """
    require_writable(output)
    from ymir_opt.domain.documents import dump_json, parse_snapshot
    from ymir_opt.snapshots import anonymize_case, anonymize_snapshot, parse_case

    data = read_bytes(source)
    name = "standard input" if source == STDIO else source
    if not _is_case(data):
        hidden = anonymize_snapshot(parse_snapshot(data, name))
        write_text(output, dump_json(hidden, exclude_defaults=True))
        return
    case = parse_case(data, name)
    taken = anonymize_case(case, load_estimator(models))
    write_text(output, dump_json(taken, exclude_defaults=True))
    to_stdout = output == STDIO
    _say(_described(taken), to_stdout=to_stdout)
    if case.failure is not None and taken.failure is None:
        _say("note: the anonymous case does not fail", to_stdout=to_stdout)
    if case.plan is not None and taken.plan is not None:
        before, after = case.plan.solver.objective, taken.plan.solver.objective
        if before != after:
            _say(f"note: the objective was {before}", to_stdout=to_stdout)


def _is_case(data: bytes) -> bool:
    """Say whether a document announces the schema of a case."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("schema", "")).startswith("ymir.case/")
