"""``ymir-plan what-if``: the plan of a changed snapshot, or of another policy, beside today's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import STDIO, emit, read_bytes, read_snapshot, require_once
from ymir_opt.cli.options import Backend, Json, Models, SnapshotPath, load_estimator
from ymir_opt.domain.errors import InputError

if TYPE_CHECKING:
    from ymir_opt.domain.snapshot import Snapshot

__all__ = ["register"]

AHEAD, AHEAD_TO_JOBS = 12, 100
MOST_AHEAD = 1000
NO_MERGE = {"ymir": "ymir-no-merge"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("what-if")(what_if)


def what_if(
    snapshot: SnapshotPath,
    add_nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="More nodes, nodes x GPUs : type, such as 2x8:A100."),
    ] = None,
    add_job: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A job as in a snapshot, or a list of them; it arrives now."),
    ] = None,
    drop_node: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="The node goes down; may be repeated.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="JOB.FIELD=VALUE", help="Change a field of a job; may be repeated."),
    ] = None,
    forbid_merge: Annotated[
        bool, typer.Option("--forbid-merge", help="No new groups of two or more.")
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Who decides, ymir by default; several are compared."),
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Rounds to plan ahead, to see when waiting jobs start; by default {AHEAD} up to "
            f"{AHEAD_TO_JOBS} jobs, else 0.",
        ),
    ] = None,
    gpu_memory: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=GIB", help="Memory of a GPU type that the cluster does not have."),
    ] = None,
    backend: Backend = "auto",
    models: Models = None,
    measured_only: Annotated[bool, typer.Option("--measured-only", help="Refuse predicted figures.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every random choice.")] = 0,
    as_json: Json = False,
) -> None:
    """Show what a change of the cluster, the jobs or the policy would change in the plan, and why."""
    require_once(snapshot, *(add_job or ()))
    if ahead is not None and not 0 <= ahead <= MOST_AHEAD:
        raise InputError("--ahead", f"{ahead} is out of range", f"give a number from 0 to {MOST_AHEAD}")
    names = _policies(policy or ["ymir"])
    source = read_snapshot(snapshot)
    changed, changes = _changed(source, add_nodes, add_job, drop_node, set_, gpu_memory)
    asked = _scenarios(names, source, changed, changes, forbid_merge)
    from ymir_opt.whatif.compare import compare, plan_scenario

    options: dict[str, Any] = {
        "backend": backend,
        "estimates": load_estimator(models),
        "measured_only": measured_only,
        "seed": seed,
    }
    few = max(len(source.jobs), len(changed.jobs)) <= AHEAD_TO_JOBS
    rounds = ahead if ahead is not None else (AHEAD if few else 0)
    notes = _notes(source, changed, options["estimates"])
    found = compare([plan_scenario(name, who, made, rounds=rounds, **options) for name, who, made in asked])
    out = Output(json=as_json)
    if out.wants_json:
        from ymir_opt.cli.compared import comparison_json

        emit(json.dumps(comparison_json(found, changes, notes), ensure_ascii=False) + "\n")
    if out.wants_tables:
        from ymir_opt.cli.compared import comparison_tables

        console = out.console()
        for part in comparison_tables(found, notes):
            console.print(part)


def _policies(names: list[str]) -> list[str]:
    """Return the policies, each named once and loaded once to see that it exists."""
    from ymir_opt.policies.base import load_policy

    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError("--policy", f"{name[:60]!r} is named twice", "name each once")
        load_policy(name)
    return names


def _changed(
    source: Snapshot,
    add_nodes: list[str] | None,
    add_job: list[str] | None,
    drop_node: list[str] | None,
    set_: list[str] | None,
    gpu_memory: list[str] | None,
) -> tuple[Snapshot, list[str]]:
    """Return the changed snapshot and the changes in words."""
    from ymir_opt.importers.nodes import memory_options
    from ymir_opt.whatif import changes as change

    made, words = source, []
    memory = memory_options(tuple(gpu_memory or ()))
    for spec in add_nodes or ():
        made = change.add_nodes(made, spec, memory)
        words.append(f"{spec} more")
    for name in drop_node or ():
        made = change.drop_node(made, name)
        words.append(f"without {name}")
    for path in add_job or ():
        shown = "standard input" if path == STDIO else path
        for job in change.jobs_from(read_bytes(path), shown, source.taken_at_s):
            made = change.add_job(made, job)
            words.append(f"with job {job.id}")
    for text in set_ or ():
        made = change.set_field(made, text)
        words.append(text)
    return made, words


def _notes(source: Snapshot, changed: Snapshot, models: Any) -> list[str]:
    """Return what a reader should know of the changes."""
    from ymir_opt.whatif.changes import unknown_types

    if models is not None:
        return []
    return [
        f"no throughput is known on {name}: only jobs of a known run time (remaining_s) can use it"
        for name in unknown_types(source, changed)
    ]


def _scenarios(
    names: list[str], source: Snapshot, changed: Snapshot, changes: list[str], forbid_merge: bool
) -> list[tuple[str, str, Snapshot]]:
    """Return (name, policy, snapshot) of what is compared, today's first.

    Changes are compared under the first policy; further policies, and the one without merging, plan the
    changed snapshot. Without changes policies are compared with the first, a single one with ymir.
    """
    names = list(names)
    if forbid_merge:
        if names[0] not in NO_MERGE:
            raise InputError(
                "--forbid-merge", f"policy {names[0][:60]} has no such choice", "leave --policy out"
            )
        others = [NO_MERGE[names[0]], *names[1:]]
    elif changes:
        others = names
    else:
        if len(names) == 1:
            if names[0] == "ymir":
                raise InputError(
                    "what-if",
                    "nothing is asked",
                    "give --add-nodes, --drop-node, --add-job, --set, --forbid-merge or another --policy",
                )
            names = ["ymir", *names]
        others = names[1:]
    listed = ", ".join(changes)
    several = len(others) > 1
    out = [("as it is" if changes or forbid_merge else names[0], names[0], source)]
    for who in others:
        words = [listed] if listed else []
        if several or not changes:
            words.append("no merging" if who in NO_MERGE.values() and forbid_merge else who)
        elif forbid_merge:
            words.append("no merging")
        out.append((", ".join(words), who, changed))
    return out
