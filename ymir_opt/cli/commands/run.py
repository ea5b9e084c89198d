"""``ymir-plan run``: carry one plan out to the end of its groups."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ymir_opt.cli.commands.daemon import Address, ExecutorName
from ymir_opt.cli.commands.jobs import JobsDir
from ymir_opt.cli.files import read_plan, read_snapshot, require_once

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file, or - for standard input.")],
    snapshot: Annotated[
        str, typer.Option("--snapshot", metavar="SNAPSHOT", help="The snapshot that it was made for.")
    ],
    jobs_dir: JobsDir,
    executor: ExecutorName = "local",
    address: Address = None,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples between checkpoints: the most a crash repeats.")
    ] = 512,
) -> None:
    """Carry a plan out on the snapshot's nodes; the same command goes on after an interruption."""
    require_once(plan, snapshot)
    from ymir_opt.cli.console import Output
    from ymir_opt.cli.live import Follower, jobs_table, stop_on_signals
    from ymir_opt.domain.errors import InvalidPlanError
    from ymir_opt.domain.outcome import require_same_snapshot
    from ymir_opt.executors.base import Options, load_executor
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.listing import listed
    from ymir_opt.service.once import adopt_plan, follow
    from ymir_opt.service.opening import open_pool
    from ymir_opt.verify import check

    source, wanted = read_snapshot(snapshot), read_plan(plan)
    require_same_snapshot(source, wanted)
    load_executor(executor)
    broken = check(source, wanted)
    if broken:
        raise InvalidPlanError(plan, f"breaks an invariant: {broken[0]}", "solve again")
    folder = JobsFolder(jobs_dir)
    folder.require()
    folder.make()
    options = Options(nodes=source.cluster.nodes, address=address, checkpoint_every_samples=checkpoint_every)
    # Ray takes the signals over when it begins, so ours come after it
    with open_pool(folder, executor, options) as pool, stop_on_signals() as stopped:
        for line in adopt_plan(pool, wanted, source):
            Output().console().print(line)

        def lines() -> list[object]:
            groups = list(pool.state.groups.values())
            return [listed(job, groups) for job in pool.wanted_jobs()]

        with Follower(lines) as shown:  # type: ignore[arg-type]

            def ask() -> bool:
                shown.show()
                return stopped()

            jobs = follow(pool, ask, shown.news)
        groups = list(pool.state.groups.values())
        if not Output().terminal:
            Output().console().print(jobs_table([listed(job, groups) for job in jobs], time.time(), plan))
        if not stopped() and not all(job.phase == "completed" for job in jobs):
            raise InvalidPlanError(str(jobs_dir), "not every job of the plan completed", "see `jobs ps`")
