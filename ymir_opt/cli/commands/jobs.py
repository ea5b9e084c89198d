"""``ymir-plan jobs``: submit requests, list jobs, read their logs, cancel them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from ymir_opt.cli.console import Output
from ymir_opt.cli.files import emit
from ymir_opt.cli.options import Json

__all__ = ["JobsDir", "register"]

JobsDir = Annotated[Path, typer.Option("--jobs-dir", metavar="DIR", help="The jobs folder, on a local disk.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id: its request's name.")]


def register(app: typer.Typer) -> None:
    """Add the command and its subcommands."""
    group = typer.Typer(help="Submit jobs, list them, read their logs, cancel them.", rich_markup_mode=None)
    group.command("submit")(submit)
    group.command("ps")(ps)
    group.command("logs")(logs)
    group.command("cancel")(cancel)
    app.add_typer(group, name="jobs")


def _say(text: str) -> None:
    from rich.text import Text

    Output().console().print(Text(text), soft_wrap=True)


def submit(
    requests: Annotated[list[Path], typer.Argument(metavar="JOB.yaml...", help="Requests (ymir.job/1).")],
    jobs_dir: JobsDir,
) -> None:
    """Check requests and hand them to the daemon; a wrong one stops before any is handed over."""
    from ymir_opt.domain.errors import InputError
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.intake import checked
    from ymir_opt.service.intake import submit as hand_over

    folder = JobsFolder(jobs_dir)
    names: dict[str, Path] = {}
    for path in requests:
        name = checked(folder, path).name
        if name in names:
            raise InputError(
                f"{path}: name", f"{name!r} is also in {names[name]}", "give each job its own name"
            )
        names[name] = path
    for path in requests:
        _say(f"submitted {hand_over(folder, path).name}")


def ps(jobs_dir: JobsDir, as_json: Json = False) -> None:
    """List every job with its state and the reason for it."""
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.listing import list_jobs

    lines = list_jobs(JobsFolder(jobs_dir))
    if as_json:
        emit(json.dumps([line.plain() for line in lines], indent=1) + "\n")
        return
    from ymir_opt.cli.live import jobs_table

    Output().console().print(jobs_table(lines, time.time(), str(jobs_dir)))


def logs(job: JobId, jobs_dir: JobsDir) -> None:
    """Print the log of a job."""
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.listing import log_of

    emit(log_of(JobsFolder(jobs_dir), job))


def cancel(job: JobId, jobs_dir: JobsDir) -> None:
    """Ask the daemon to end a job; its last checkpoint stays."""
    from ymir_opt.executors.folder import JobsFolder
    from ymir_opt.service.listing import ask_to_cancel

    done = ask_to_cancel(JobsFolder(jobs_dir), job)
    _say(f"{'cancelled' if done else 'asked the daemon to cancel'} {job}")
