"""What `simulate` and `compare` share: options, figures as tables, runs in parallel processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ymir_opt.cli.formats import duration
from ymir_opt.domain.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ymir_opt.cli.console import Output
    from ymir_opt.simulator.engine import Progress

__all__ = [
    "AddNodes",
    "Against",
    "Cluster",
    "DropNode",
    "Profiles",
    "ScaleLoad",
    "Tracker",
    "figures_table",
    "require_policies",
    "run_all",
    "show_notes",
    "transfer_baseline",
    "working_folder",
]

Cluster = Annotated[str, typer.Option(metavar="SPEC", help="Nodes x GPUs : type, such as 8x4:V100,4x8:A100.")]
Profiles = Annotated[
    str | None, typer.Option(metavar="DIR", help="Measured speeds and curves, where the trace needs them.")
]
ScaleLoad = Annotated[float, typer.Option(metavar="X", help="Jobs arrive X times as often.")]
AddNodes = Annotated[str, typer.Option(metavar="SPEC", help="More nodes, from the beginning: a0, a1, ...")]
DropNode = Annotated[
    list[str] | None, typer.Option(metavar="ID@T", help="A node leaves at second T; may be repeated.")
]
Against = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What transfer ratios compare with: best-single or trace (the job's own setting).",
    ),
]
Task = tuple[str, str, str, bool]
"""(kind, experiment as JSON, folder, quick): what a worker process is told."""


def require_policies(text: str) -> list[str]:
    """Return the policies of a comma-separated list, each loaded once to see that it exists.

    Raises
    ------
    InputError
        The list is empty or names a policy twice.
    NotFoundError
        A policy or variant is unknown.
    """
    from ymir_opt.policies.base import load_policy

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--policies", "names no policy", "give names such as tiresias,srtf,ymir")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError("--policies", f"{name[:40]!r} is named twice", "name each once")
        load_policy(name)
    return names


def transfer_baseline(text: str) -> str:
    """Return the denominator of transfer ratios from its option."""
    if text not in ("best-single", "trace"):
        raise InputError("--against", f"{text[:40]!r} is unknown", "use best-single or trace")
    return text.replace("-", "_")


def show_notes(out: Output, notes: Sequence[str]) -> None:
    """Say on standard error what was left out of a trace."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    for note in notes if out.wants_tables else ():
        console.print(f"note: {note}")


@contextmanager
def working_folder(output: str | None) -> Iterator[Path]:
    """Yield the folder that keeps results: the one named, or one that vanishes.

    Raises
    ------
    InputError
        It cannot be made.
    """
    if output is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="ymir-") as name:
            yield Path(name)
        return
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(output, f"cannot be made ({error.strerror})", "name another folder") from None
    if not os.access(folder, os.W_OK):
        raise InputError(output, "is not writable", "name another folder")
    yield folder


class Tracker:
    """A progress bar on standard error; silent where that is no terminal."""

    def __init__(self, console: Console, total: int, label: str, unit: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(label, total=total or None)

    def __enter__(self) -> Tracker:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def jobs(self, where: Progress) -> None:
        """Show where a simulation stands."""
        self._progress.update(
            self._task, completed=where.finished, description=f"{duration(max(0.0, where.now_s))} simulated"
        )

    def step(self, label: str) -> None:
        """Show one more finished run."""
        self._progress.update(self._task, advance=1, description=label)


def _work(task: Task) -> tuple[str, str]:
    """Make one run in a worker process; return an error as (class name, JSON-able text) or empty strings."""
    from ymir_opt.domain.errors import YmirError
    from ymir_opt.simulator.experiment import Experiment, bound_of, perform

    kind, text, folder, quick = task
    experiment = Experiment.of_json(text)
    try:
        if kind == "bound":
            bound_of(experiment, Path(folder), quick=quick)
        else:
            perform(experiment, Path(folder))
    except YmirError as error:
        return type(error).__name__, error.one_line()
    return "", ""


def run_all(tasks: Sequence[Task], workers: int, engine: str, done: Callable[[Task], None]) -> None:
    """Make runs in parallel; every result lies in its folder afterwards.

    Parameters
    ----------
    tasks : sequence
    workers : int
    engine : {"local", "ray"}
    done : callable
        Called with every finished task.

    Raises
    ------
    YmirError
        What the first failing run raised.
    NotFoundError
        The engine is unknown or not installed.
    """
    if engine == "ray":
        _run_ray(tasks, workers, done)
    elif engine != "local":
        raise NotFoundError("--engine", f"{engine[:40]!r} is unknown", "use local or ray")
    elif workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            _raise(_work(task))
            done(task)
    else:
        _run_local(tasks, workers, done)


def _run_local(tasks: Sequence[Task], workers: int, done: Callable[[Task], None]) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("spawn")
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    with ProcessPoolExecutor(max_workers=min(workers, len(tasks)), mp_context=context) as pool:
        running: dict[Future[tuple[str, str]], Task] = {}
        try:
            while running or not waiting.empty():
                while len(running) < workers and not waiting.empty():
                    task = waiting.get()
                    running[pool.submit(_work, task)] = task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    _raise(future.result())
                    done(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_ray(tasks: Sequence[Task], workers: int, done: Callable[[Task], None]) -> None:
    from ymir_opt.executors.sweep import sweep

    def ended(task: Task, outcome: tuple[str, str]) -> None:
        _raise(outcome)
        done(task)

    sweep(_work, tasks, workers, ended)


def _raise(outcome: tuple[str, str]) -> None:
    """Raise what a run reported, in its own class and with its own line."""
    from ymir_opt.domain import errors

    name, line = outcome
    if name:
        kind = getattr(errors, name, errors.YmirError)
        raise kind("", line)


def figures_table(rows: Sequence[dict[str, Any]], spread: dict[tuple[str, str], str] | None = None) -> Table:
    """Return the figures of runs: GPUs used, merges kept-undone, mean over bound, p99 of planning, ..."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="times in hours", caption_justify="left")
    left = ("trace", "policy")
    for name in (
        *left,
        "mean JCT",
        "p99",
        "makespan",
        "max rho",
        "used",
        "preempt",
        "merges",
        "/bound",
        "plan",
    ):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in rows:
        held, span = row["gpu_hours_used"], row["makespan_s"]
        bound, mean = row["lower_bound_jct_s"], row["mean_jct_s"]
        wall = row["plan_wall_p99_s"]
        used = 100 * held * 3600 / (span * row["gpus"]) if held and span else None
        table.add_row(
            _short(row["trace"]) + (f" #{row['seed']}" if row["seed"] else ""),
            row["policy"],
            _hours(mean) + (spread or {}).get((row["trace"], row["policy"]), ""),
            _hours(row["p99_jct_s"]),
            _hours(span),
            _plain(row["max_rho"], 1),
            _plain(used, 0, " %"),
            str(row["preemptions"]),
            f"{row['merges_kept']}-{row['merges_rolled_back']}",
            _plain(mean / bound if bound and mean else None, 2),
            _plain(None if wall is None else 1000 * wall, 0, " ms"),
        )
    return table


def _short(trace: str) -> str:
    path = Path(trace)
    return path.parent.name if path.name == "workload-0.csv" and path.parent.name else path.stem


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None or not math.isfinite(seconds) else f"{seconds / 3600:.3f}"


def _plain(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}{unit}"
