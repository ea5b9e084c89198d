"""Jobs folders with small jobs, and workers on a small random-initialised model."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ymir_opt.domain.request import key_of
from ymir_opt.runtime.backbone import Backbone, BackboneSpec, load_backbone
from ymir_opt.runtime.checkpoint import load_adapter, read_facts
from ymir_opt.runtime.worker import Worker

torch.set_num_threads(1)

MODEL = {"name_or_path": "random:bert", "revision": None, "dtype": "float32", "layers": 1}
WORDS = ("red apple fruit", "blue ocean water", "green forest tree")


@cache
def small_model() -> Backbone:
    return load_backbone(BackboneSpec("random:bert", layers=1))


def load_small(_spec: BackboneSpec, _device: str) -> Backbone:
    return small_model()


def write_rows(path: Path, rows: int, seed: int, classes: int = 2, noise: float = 0.0) -> None:
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for number in range(rows):
            label = int(rng.integers(classes))
            shown = int(rng.integers(classes)) if rng.random() < noise else label
            filler = " ".join(f"w{int(i)}" for i in rng.integers(0, 50, int(rng.integers(1, 5))))
            writer.writerow([f"{number} {filler} {WORDS[shown]}", f"class {label}"])


def add_job(
    jobs_dir: Path,
    name: str,
    *,
    rows: int = 60,
    classes: int = 2,
    noise: float = 0.0,
    data_seed: int | None = None,
    path: str | None = None,
    target: float | None = None,
    target_more: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    peft: Mapping[str, Any] | None = None,
    **training: Any,
) -> str:
    """Submit a job with data of its own and return its key."""
    key = key_of(name)
    folder = jobs_dir / "jobs" / key
    folder.mkdir(parents=True)
    data = folder / "rows.csv"
    write_rows(data, rows, sum(name.encode()) if data_seed is None else data_seed, classes, noise)
    request = {
        "schema": "ymir.job/1",
        "name": name,
        "id": name,
        "tenant": "tests",
        "submitted_at_s": 0.0,
        "model": dict(model or MODEL),
        "data": {"path": path or str(data)},
        "peft": {"r": 4, "lora_alpha": 8.0, "lora_dropout": 0.1, **(peft or {})},
        "training": {
            "learning_rate": 5e-3,
            "global_batch_size": 4,
            "max_length": 16,
            "num_train_epochs": 2.0,
            "seed": 1,
            "eval_every_samples": 16,
            **training,
        },
        "target": None if target is None else {"value": target, **(target_more or {})},
    }
    (folder / "request.json").write_text(json.dumps(request))
    return key


def assignment(version: int, mode: str | None, jobs: list[str], **more: Any) -> dict[str, Any]:
    group_fields = {k: more.pop(k) for k in ("id", "starts_from", "probe") if k in more}
    group = None if mode is None else {"id": "g1", "mode": mode, "jobs": jobs, **group_fields}
    return {
        "schema": "ymir.assignment/1",
        "version": version,
        "action": "a1",
        "device": "cpu",
        "foundation_model": MODEL,
        "checkpoint_every_samples": 24,
        "stop": False,
        "group": group,
        "prepare": [],
        "profile": [],
        **more,
    }


def worker(jobs_dir: Path, folder: Path | None = None) -> Worker:
    return Worker(folder, jobs_dir, loader=load_small)


def run(one: Worker, ticks: int = 1000) -> None:
    """Let a worker go on until it has nothing to do, or for some ticks."""
    for _ in range(ticks):
        if not one.tick():
            return


def result(jobs_dir: Path, key: str) -> dict[str, Any] | None:
    path = jobs_dir / "jobs" / key / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def curve(jobs_dir: Path, key: str) -> list[dict[str, Any]]:
    path = jobs_dir / "jobs" / key / "curve.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def saved(jobs_dir: Path, key: str, name: str = "checkpoint") -> dict[str, torch.Tensor]:
    """Return the weights of a job's checkpoint."""
    runtime = small_model().runtime()
    adapter = load_adapter(runtime, jobs_dir / "jobs" / key / name, "read")
    runtime.close()
    return {k: w.detach().clone() for k, w in adapter.named_parameters()}


def state(jobs_dir: Path, key: str, name: str = "checkpoint") -> dict[str, Any]:
    return read_facts(jobs_dir / "jobs" / key / name)["state"]


def events(one: Worker, name: str) -> list[dict[str, Any]]:
    return [e for e in one.events.events if e["event"] == name]


def trained_alone(jobs_dir: Path, key: str) -> dict[str, torch.Tensor]:
    """Train a job alone to its end and return its weights."""
    one = worker(jobs_dir)
    one.assign(assignment(1, "solo", [key]))
    run(one)
    one.stop()
    return saved(jobs_dir, key)


def apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[k] - other[k]).abs().max()) for k in one)
