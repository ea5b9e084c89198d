"""``ymir-plan daemon``: take requests, plan each round and on events, carry the plans out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ymir_opt.cli.commands.jobs import JobsDir
from ymir_opt.cli.options import Models, finite, load_estimator

if TYPE_CHECKING:
    from ymir_opt.domain.snapshot import Node, Profiles
    from ymir_opt.executors.base import Options
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.daemon import Settings

__all__ = ["ExecutorName", "nodes_of", "register"]

ExecutorName = Annotated[
    str, typer.Option("--executor", metavar="NAME", help="local or ray: where workers run.")
]
Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Of a running Ray cluster, or auto; default: a new one.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("daemon")(daemon)


def daemon(
    jobs_dir: JobsDir,
    executor: ExecutorName = "local",
    policy: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")] = "ymir",
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", help="Use N cores, each as a node with one GPU.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Nodes to use, such as 1x2:CPU; default: this machine.")
    ] = None,
    address: Address = None,
    models: Models = None,
    profiles: Annotated[
        str | None, typer.Option(metavar="FILE", help="Measured rows (`profile export`, or a snapshot).")
    ] = None,
    round_s: Annotated[float, typer.Option("--round", metavar="S", help="Seconds between plans.")] = 120.0,
    spacing_s: Annotated[
        float, typer.Option("--min-spacing", metavar="S", help="Least seconds between plans on events.")
    ] = 10.0,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples between checkpoints: the most a crash repeats.")
    ] = 512,
    once_empty: Annotated[bool, typer.Option("--once-empty", help="End when no job is left.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done with the jobs of now; do nothing.")
    ] = False,
) -> None:
    """Run jobs until SIGTERM: workers then finish their step, checkpoint and end."""
    from ymir_opt.executors.base import Options, load_executor
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.daemon import Settings

    settings = Settings(
        policy=policy,
        round_s=finite("--round", round_s, above_zero=True) or round_s,
        spacing_s=finite("--min-spacing", spacing_s, above_zero=False) or 0.0,
        once_empty=once_empty,
    )
    _require_policy(policy)
    load_executor(executor)
    options = Options(
        nodes=nodes_of(nodes, cluster), address=address, checkpoint_every_samples=checkpoint_every
    )
    rows = _rows(profiles)
    predictor = load_estimator(models)
    folder = JobsFolder(jobs_dir)
    folder.make()
    if dry_run:
        _show_plan(folder, executor, options, settings, rows, predictor)
    else:
        _serve(folder, executor, options, settings, rows, predictor)


def nodes_of(count: int | None, cluster: str | None) -> tuple[Node, ...]:
    """Return the nodes that ``--nodes`` or ``--cluster`` names, none where neither is given.

    Raises
    ------
    InputError
        Both are given, or one is out of range.
    """
    from ymir_opt.domain.errors import InputError
    from ymir_opt.executors.local import CPU, memory_gib, this_machine

    if count is not None and cluster is not None:
        raise InputError("--nodes", "given together with --cluster", "give one of them")
    if count is not None:
        if not 1 <= count <= 1024:
            raise InputError("--nodes", f"{count} is not between 1 and 1024", "give a number of cores")
        return this_machine(count)
    if cluster is None:
        return ()
    from ymir_opt.domain.snapshot import Node
    from ymir_opt.simulator.cluster import parse_cluster

    specs = parse_cluster(cluster)
    cores = sum(spec.gpus for spec in specs if spec.gpu_type == CPU) or 1
    known = {(node.gpu_type): node.gpu_memory_gib for node in this_machine()}
    return tuple(
        Node(
            id=spec.id,
            gpu_type=spec.gpu_type,
            gpus=spec.gpus,
            gpu_memory_gib=memory_gib() / cores if spec.gpu_type == CPU else known.get(spec.gpu_type, 16.0),
        )
        for spec in specs
    )


def _require_policy(name: str) -> None:
    from ymir_opt.planner.pipeline import OWN_POLICIES

    if name not in OWN_POLICIES:
        from ymir_opt.policies.base import load_policy

        load_policy(name)


def _rows(path: str | None) -> Profiles | None:
    """Return measured rows from a file: a profiles document, or a snapshot that holds one."""
    if path is None:
        return None
    import json

    from pydantic import ValidationError

    from ymir_opt.cli.files import read_bytes
    from ymir_opt.domain.base import first_error
    from ymir_opt.domain.documents import parse_snapshot
    from ymir_opt.domain.errors import InputError
    from ymir_opt.domain.snapshot import Profiles

    data = read_bytes(path)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is not valid JSON ({error})", "give what `profile export` wrote") from None
    if isinstance(found, dict) and "taken_at_s" in found:
        return parse_snapshot(data, path).profiles
    if isinstance(found, dict) and isinstance(found.get("profiles"), dict):
        found = found["profiles"]
    try:
        return Profiles.model_validate_json(json.dumps(found), by_alias=True, by_name=False)
    except ValidationError as error:
        fault = first_error(error, Profiles, "profiles")
        raise InputError(f"{path}: {fault.place}", fault.problem, fault.remedy) from None


def _serve(
    folder: JobsFolder,
    executor: str,
    options: Options,
    settings: Settings,
    rows: Profiles | None,
    predictor: object,
) -> None:
    from ymir_opt.cli.live import Follower, stop_on_signals
    from ymir_opt.service.daemon import Daemon
    from ymir_opt.service.listing import listed
    from ymir_opt.service.opening import open_pool

    # Ray takes the signals over when it begins, so ours come after it
    with open_pool(folder, executor, options) as pool, stop_on_signals() as stopped:

        def lines() -> list[object]:
            groups = list(pool.state.groups.values())
            return [listed(job, groups) for job in pool.state.jobs.values()]

        with Follower(lines) as shown:  # type: ignore[arg-type]
            service = Daemon(pool, settings, rows, predictor, on_news=shown.news)  # type: ignore[arg-type]

            def ask() -> bool:
                shown.show()
                return stopped()

            service.run(ask)


def _show_plan(
    folder: JobsFolder,
    executor: str,
    options: Options,
    settings: Settings,
    rows: Profiles | None,
    predictor: object,
) -> None:
    from ymir_opt.cli.console import Output
    from ymir_opt.cli.tables import plan_tables
    from ymir_opt.service.daemon import Daemon
    from ymir_opt.service.opening import open_trial

    with open_trial(folder, executor, options) as pool:
        service = Daemon(pool, settings, rows, predictor)  # type: ignore[arg-type]
        service.intake.peek()
        snapshot = service.snapshot()
        console = Output().console()
        if not snapshot.jobs:
            console.print("no job waits or runs")
            return
        for part in plan_tables(service.solve(snapshot), snapshot.taken_at_s):
            console.print(part)
