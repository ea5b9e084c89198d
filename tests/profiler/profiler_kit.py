"""Made-up runs, small local tasks and a tiny recipe for the profiler's tests."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ymir_profiler.recipe import Recipe, recipe_from
from ymir_profiler.store.store import Record

ADAPTER = {"r": 4, "learning_rate": 0.01}


def about(task: str) -> dict[str, str]:
    return {"task": task, "sha256": f"sha of {task}"}


def bits(rng: np.random.Generator, share: float, rows: int = 400) -> str:
    return "".join("1" if u < share else "0" for u in rng.random(rows))


def run_record(
    mode: str, target: str, seed: int, metrics: Iterable[float], correct: str, source: str | None = None
) -> Record:
    """Return a run as the store keeps it, evaluated at 32, 64, 128, ... samples."""
    points = [
        {"samples": 32 * 2**i, "metric": m, "loss": 1.0, "train_loss": 1.0} for i, m in enumerate(metrics)
    ]
    conditions: dict[str, Any] = {"adapter": ADAPTER, "batch_size": 8, "seed": seed, "source_samples": None}
    subject = {"mode": mode, "target": about(target), **conditions}
    if source is not None:
        subject["source"] = about(source)
    curve = {"points": points, "correct": correct, "majority": 0.25}
    return Record("run", "fm", subject, {"curves": {target: curve}, "turns": 1}, machine={"cpu": "x"})


def write_task(path: Path, words: dict[str, list[str]], rows: int, seed: int) -> None:
    """Write a CSV of texts whose label is told by the words in them."""
    rng = np.random.default_rng(seed)
    names = sorted(words)
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for number in range(rows):
            label = names[number % len(names)]
            noise = [f"w{int(i)}" for i in rng.integers(0, 50, 5)]
            chosen = [words[label][int(rng.integers(len(words[label])))] for _ in range(3)]
            writer.writerow([" ".join([*noise, *chosen, f"n{number}"]), label])


def tiny_recipe(folder: Path, **changes: Any) -> Recipe:
    """Return a recipe of three local tasks on a random-initialised model of 2 x 32."""
    fruit = {"fruit": ["apple", "pear", "plum"], "tool": ["saw", "nail", "hammer"]}
    write_task(folder / "things.csv", fruit, 240, 0)
    write_task(folder / "places.csv", {"sea": ["wave", "reef"], "land": ["hill", "field"]}, 120, 1)
    document: dict[str, Any] = {
        "name": "tiny",
        "model": {"name_or_path": "random:bert", "layers": 2, "width": 32},
        "adapter": {"r": 4, "learning_rate": 0.01},
        "training": {
            "batch_size": 8, "max_length": 12, "train_rows": 60, "test_rows": 30, "eval_at": [8, 16, 32],
            "seeds": [0, 1],
        },
        "tasks": [
            {"name": "things-a", "file": str(folder / "things.csv"), "half": "a"},
            {"name": "things-b", "file": str(folder / "things.csv"), "half": "b"},
            {"name": "places", "file": str(folder / "places.csv")},
        ],
        "transfer": {
            "pairs": [["things-a", "things-b"], ["places", "things-b"]],
            "joint": [["things-a", "things-b"]],
            "scores": ["logme", "task2vec", "leep"],
        },
        "throughput": {"batch_sizes": [1, 4], "lengths": [8], "max_steps": 8},
        "colocation": {"members": [2], "batch_sizes": [1], "length": 8},
    }  # fmt: skip
    document.update(changes)
    return recipe_from(document)
