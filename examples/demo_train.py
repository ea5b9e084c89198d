"""Eight real text tasks on MiniLM, run one at a time per core by fifo, and by ymir; times and accuracies.

Run by ``make demo-train``. Both runs use the same requests, seeds, targets, cores and the same warm workers;
they differ in the policy alone. Speeds are measured by each run itself, by its profile actions.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDNET = ["act", "animal", "artifact", "communication", "person", "plant", "state", "substance"]
LEISURE = ["rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey"]
MEDICAL = ["Dental", "Surgery", "Pharmacology", "Physiology", "Anatomy", "Microbiology"]
REUTERS = ["acq", "crude", "earn", "interest", "money-fx", "trade"]


@dataclass(frozen=True)
class Task:
    """One task: its rows, and the accuracy that ends its training."""

    name: str
    target: float
    corpus: str
    labels: tuple[str, ...] = ()
    half: str | None = None


TASKS = (
    Task("domain-a", 0.65, "wordnet-domain", tuple(WORDNET), "a"),
    Task("domain-b", 0.65, "wordnet-domain", tuple(WORDNET), "b"),
    Task("leisure-a", 0.70, "20newsgroups", tuple(LEISURE), "a"),
    Task("leisure-b", 0.70, "20newsgroups", tuple(LEISURE), "b"),
    Task("reuters", 0.80, "reuters-r8", tuple(REUTERS)),
    Task("bbc", 0.85, "bbc-news"),
    Task("spam", 0.90, "spam-assassin"),
    Task("medical", 0.50, "medical-questions", tuple(MEDICAL)),
)
SUBMIT_EVERY_S = 4.0
POLL_S = 2.0
Job = dict[str, Any]


def write_data(task: Task, folder: Path, train_rows: int, test_rows: int) -> Path:
    """Write a task's rows as train.csv and validation.csv, once; return their folder."""
    target = folder / f"{task.name}-{train_rows}-{test_rows}"
    if (target / "validation.csv").is_file():
        return target
    from ymir_profiler.data.tasks import load_task
    from ymir_profiler.recipe import TaskRecipe

    recipe = TaskRecipe(name=task.name, corpus=task.corpus, labels=task.labels, half=task.half)  # type: ignore[arg-type]
    data = load_task(recipe, train_rows, test_rows)
    target.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", data.train), ("validation", data.test)):
        with open(target / f".{name}.csv", "w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("text", "label"))
            writer.writerows((text, data.classes[number]) for text, number in rows)
        (target / f".{name}.csv").rename(target / f"{name}.csv")
    return target


def write_request(task: Task, data: Path, folder: Path, options: argparse.Namespace) -> Path:
    """Write a task's request; the seed is the same for every policy."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.yaml"
    path.write_text(
        f"""\
schema: ymir.job/1
name: {task.name}
model: {{name_or_path: minilm}}
data: {{path: {json.dumps(str(data))}}}
peft: {{peft_type: LORA, r: 8, lora_alpha: 16, lora_dropout: 0.05, target_modules: [query, value]}}
training: {{learning_rate: {options.learning_rate}, global_batch_size: {options.batch}, max_length: 32,
           num_train_epochs: {options.samples / options.train_rows}, seed: {options.seed},
           eval_every_samples: {options.evaluate_every}}}
target: {{metric: eval_accuracy, value: {task.target}}}
""",
        encoding="utf-8",
    )
    return path


def ymir_plan(*words: object) -> str:
    """Run a command of ymir-plan and return what it prints."""
    command = [sys.executable, "-m", "ymir_opt", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout


def run_policy(policy: str, requests: list[Path], folder: Path, options: argparse.Namespace) -> list[Job]:
    """Submit the requests one after another to a daemon of a policy; return the jobs when all are over."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ymir_opt", "daemon", "--jobs-dir", folder, "--policy", policy]
    command += ["--cluster", options.cluster, "--min-spacing", "1", "--round", "30"]
    if options.profiles is not None:
        command += ["--profiles", options.profiles]
    with open(folder / "daemon.log", "wb") as log:
        daemon = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
    try:
        for number, request in enumerate(requests):
            if number:
                time.sleep(SUBMIT_EVERY_S)
            ymir_plan("jobs", "submit", request, "--jobs-dir", folder)
        while True:
            jobs = json.loads(ymir_plan("jobs", "ps", "--json", "--jobs-dir", folder))
            over = [job for job in jobs if job["finished_at_s"] is not None]
            progress(policy, jobs, over)
            if len(over) == len(requests):
                return list(jobs)
            if daemon.poll() is not None:
                raise SystemExit(f"the daemon ended; see {folder / 'daemon.log'}")
            time.sleep(POLL_S)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=120)


_told: set[tuple[str, str]] = set()


def progress(policy: str, jobs: list[Job], over: list[Job]) -> None:
    """Say which job ended."""
    for job in over:
        if (policy, job["id"]) not in _told:
            _told.add((policy, job["id"]))
            print(
                f"{policy}: {job['id']} {job['state']} after {jct(job):.0f} s, accuracy "
                f"{job['metric'] or 0:.3f} ({job['reason']}); {len(over)} of {len(TASKS)}",
                file=sys.stderr,
                flush=True,
            )


def jct(job: Job) -> float:
    """Return the seconds from submission to the end of a job."""
    return float(job["finished_at_s"] - job["submitted_at_s"])


def total(jobs: list[Job]) -> float:
    """Return the seconds from the first submission to the last end."""
    return float(max(j["finished_at_s"] for j in jobs) - min(j["submitted_at_s"] for j in jobs))


def modes_of(folder: Path) -> dict[str, str]:
    """Return how each job was run last, as the predicted-against-realised rows tell."""
    found = {}
    path = folder / "realised.jsonl"
    for line in path.read_text().splitlines() if path.is_file() else ():
        row = json.loads(line)
        found[row["job"]] = f"{row['mode']} of {len(row['others']) + 1}"
    return found


def show(runs: dict[str, list[Job]], folders: dict[str, Path]) -> None:
    """Print both runs side by side."""
    from rich.console import Console
    from rich.table import Table

    (a, before), (b, after) = runs.items()
    by_id = {job["id"]: job for job in after}
    modes = modes_of(folders[b])
    table = Table(title=f"{len(before)} tasks on MiniLM, {a} and {b}")
    pairs = [f"{what} {policy}" for what in ("JCT", "samples", "accuracy") for policy in (a, b)]
    for column in ("task", *pairs):
        table.add_column(column, justify="left" if column == "task" else "right")
    table.add_column(f"{b} ran it")
    for job in before:
        other = by_id[job["id"]]
        table.add_row(
            job["id"],
            f"{jct(job):.0f} s",
            f"{jct(other):.0f} s",
            f"{job['samples']:.0f}",
            f"{other['samples']:.0f}",
            f"{job['metric'] or 0:.3f}",
            f"{other['metric'] or 0:.3f}",
            modes.get(job["id"], "alone"),
        )
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def draw(runs: dict[str, list[Job]], path: Path) -> None:
    """Draw when each job was submitted and ended, and the accuracies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(runs) + 1, figsize=(14, 4), width_ratios=[*[2] * len(runs), 1.6])
    longest = max(total(jobs) for jobs in runs.values())
    for axis, (policy, jobs) in zip(axes, runs.items(), strict=False):
        start = min(job["submitted_at_s"] for job in jobs)
        names = [job["id"] for job in jobs]
        axis.barh(names, [jct(job) for job in jobs], left=[job["submitted_at_s"] - start for job in jobs])
        mean = statistics.mean(map(jct, jobs))
        axis.set_title(f"{policy}: {total(jobs):.0f} s in all, mean JCT {mean:.0f} s")
        axis.set_xlim(0, 1.02 * longest)
        axis.set_xlabel("seconds since the first submission")
        axis.invert_yaxis()
    width = 0.4
    for number, (policy, jobs) in enumerate(runs.items()):
        places = [i + (number - 0.5) * width for i in range(len(jobs))]
        axes[-1].barh(places, [job["metric"] or 0 for job in jobs], height=width, label=policy)
    axes[-1].set_yticks([])
    axes[-1].set_xlabel("accuracy at the end")
    axes[-1].invert_yaxis()
    axes[-1].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run both policies and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo-train"))
    parser.add_argument("--cluster", default="1x2:CPU")
    parser.add_argument("--policies", default="fifo,ymir")
    parser.add_argument(
        "--profiles", type=Path, help="measured rows for both, such as transfer between tasks"
    )
    parser.add_argument("--samples", type=int, default=900, help="at most, a job")
    parser.add_argument("--train-rows", type=int, default=900)
    parser.add_argument("--test-rows", type=int, default=120)
    parser.add_argument("--evaluate-every", type=int, default=120)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--learning-rate", default="4.0e-4")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from ymir_profiler.data.packages import cache_folder

    data = {
        task.name: write_data(task, cache_folder() / "demo-train", options.train_rows, options.test_rows)
        for task in TASKS
    }
    requests = [write_request(task, data[task.name], options.out / "requests", options) for task in TASKS]
    policies = options.policies.split(",")
    folders = {policy: options.out / policy for policy in policies}
    runs = {policy: run_policy(policy, requests, folders[policy], options) for policy in policies}
    if len(runs) == 2:
        show(runs, folders)
        draw(runs, options.out / "demo-train.png")
        (a, before), (b, after) = runs.items()
        accuracy = {name: statistics.mean(j["metric"] or 0.0 for j in jobs) for name, jobs in runs.items()}
        mean = {name: statistics.mean(map(jct, jobs)) for name, jobs in runs.items()}
        print(f"picture: {options.out / 'demo-train.png'}")
        print(
            f"total {total(before):.0f} s -> {total(after):.0f} s, "
            f"mean JCT {mean[a]:.0f} s -> {mean[b]:.0f} s, "
            f"accuracy difference {accuracy[b] - accuracy[a]:+.3f}"
        )


if __name__ == "__main__":
    main()
