"""What a warm runtime saves: switches, steps of several adapters, memory. MiniLM on one CPU thread.

    .venv/bin/python solver_runs/runtime_speed.py [--blocks N] [-o FILE]

CPU seconds are counted, since wall time depends on what else the machine does. Ways that are compared
alternate, and a ratio is the median over the blocks' ratios.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import machine  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "runtime_speed.json"
MODEL = {"name_or_path": "minilm", "revision": None, "dtype": "float32"}
LENGTH, RANK = 32, 8
WORDS = ("red apple fruit tree", "blue ocean water ship")


def add_job(jobs_dir: Path, name: str) -> str:
    """Submit a job with two hundred short texts and return its key."""
    from ymir_opt.domain.request import key_of

    key = key_of(name)
    folder = jobs_dir / "jobs" / key
    folder.mkdir(parents=True)
    with open(folder / "rows.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for number in range(200):
            writer.writerow([f"{number} the {WORDS[number % 2]} of {name} " * 4, number % 2])
    request = {
        "schema": "ymir.job/1",
        "name": name,
        "id": name,
        "tenant": "benchmark",
        "submitted_at_s": 0.0,
        "model": MODEL,
        "data": {"path": str(folder / "rows.csv")},
        "peft": {"r": RANK, "lora_alpha": 16.0, "lora_dropout": 0.05},
        "training": {
            "learning_rate": 1e-3,
            "global_batch_size": 1,
            "max_length": LENGTH,
            "num_train_epochs": 100.0,
            "eval_every_samples": 10**6,
        },
    }
    (folder / "request.json").write_text(json.dumps(request))
    return key


def wish(version: int, jobs: list[str], **more: Any) -> dict[str, Any]:
    group = {"id": f"g{version}", "mode": "colocate", "jobs": jobs}
    return {
        "schema": "ymir.assignment/1",
        "version": version,
        "device": "cpu",
        "foundation_model": MODEL,
        "checkpoint_every_samples": 10**6,
        "group": group,
        **more,
    }


def first_step(jobs_dir: Path, key: str) -> Any:
    """Train one step of a job in this process, from nothing."""
    import torch

    from ymir_opt.runtime.worker import Worker

    torch.set_num_threads(1)
    worker = Worker(None, jobs_dir)
    worker.assign(wish(1, [key]))
    worker.tick()
    return worker


def pss_mib(pid: int | str = "self") -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE).group(1)) / 1024


# -- switches -----------------------------------------------------------------------------------------


def cold_start(jobs_dir: Path, key: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, __file__, "--child", "cold", str(jobs_dir), key], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def switches(blocks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ymir-speed-") as name:
        jobs_dir = Path(name)
        a, b = add_job(jobs_dir, "a"), add_job(jobs_dir, "b")
        cold = [cold_start(jobs_dir, a) for _ in range(3)]
        worker = first_step(jobs_dir, a)
        warm, step = [], []
        for version in range(2, 2 + 2 * blocks):
            key, other = (b, a) if version % 2 == 0 else (a, b)
            # what the next round's plan allows to be prepared is prepared
            worker.assign(wish(2 * version, [other], prepare=[key]))
            while key not in worker._preparer._told:
                worker.tick()
            start = time.process_time()
            worker.assign(wish(2 * version + 1, [key], prepare=[other]))
            worker.tick()
            warm.append(time.process_time() - start)
            start = time.process_time()
            worker.tick()
            step.append(time.process_time() - start)
        worker.stop()
    found = {
        "cold_cpu_s": statistics.median(cold),
        "warm_cpu_s": statistics.median(warm),
        "step_cpu_s": statistics.median(step),
    }
    return {**found, "ratio": found["cold_cpu_s"] / found["warm_cpu_s"], "target_warm_cpu_s": 0.3}


# -- steps --------------------------------------------------------------------------------------------


def ours(members: int, dropout: float) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return one batched step of all members, and their steps one after another."""
    from ymir_opt.runtime.adapters import AdapterSpec
    from ymir_opt.runtime.backbone import BackboneSpec, load_backbone
    from ymir_opt.runtime.session import Rows

    backbone = load_backbone(BackboneSpec("minilm"))
    runtime = backbone.runtime()
    rows = []
    for member in range(members):
        spec = AdapterSpec(r=RANK, lora_dropout=dropout, seed=member)
        runtime.add(f"m{member}", spec).add_head("task", 4)
        inputs, labels = batch(backbone.vocabulary, member)
        rows.append(Rows(f"m{member}", "task", inputs, labels))

    def in_turn() -> None:
        for part in rows:
            runtime.step([part])

    return lambda: runtime.step(rows), in_turn


def batch(vocabulary: int, member: int) -> tuple[dict[str, Any], Any]:
    import torch

    generator = torch.Generator().manual_seed(member)
    ids = torch.randint(2, vocabulary, (1, LENGTH), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, torch.tensor([member % 4])


def with_peft(members: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return PEFT's mixed batch (evaluation mode, own loss), and its adapters activated in turn."""
    import peft
    import torch

    from ymir_opt.runtime.backbone import BackboneSpec, load_backbone
    from ymir_opt.runtime.session import pooled

    backbone = load_backbone(BackboneSpec("minilm"))
    config = peft.LoraConfig(r=RANK, lora_alpha=16, lora_dropout=0.0, target_modules=["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(backbone.model, config, adapter_name="m0")
        for member in range(1, members):
            model.add_adapter(f"m{member}", config)
    model.eval()
    heads = [torch.nn.Linear(backbone.hidden, 4) for _ in range(members)]
    batches = [batch(backbone.vocabulary, member) for member in range(members)]
    names = [f"m{member}" for member in range(members)]
    weights = {
        name: [w for key, w in model.named_parameters() if "lora_" in key and f".{name}." in key]
        for name in names
    }
    optimisers = [
        torch.optim.AdamW([*weights[name], *head.parameters()], lr=1e-4)
        for name, head in zip(names, heads, strict=True)
    ]

    def trainable(chosen: list[str]) -> None:
        for name in chosen:
            for weight in weights[name]:
                weight.requires_grad_(True)

    def update(member: int) -> None:
        torch.nn.utils.clip_grad_norm_([*weights[names[member]], *heads[member].parameters()], 1.0)
        optimisers[member].step()
        optimisers[member].zero_grad(set_to_none=True)

    def mixed() -> None:
        trainable(names)
        inputs = {key: torch.cat([b[0][key] for b in batches]) for key in batches[0][0]}
        hidden = pooled(model(**inputs, adapter_names=names).last_hidden_state, inputs)
        losses = [
            torch.nn.functional.cross_entropy(head(hidden[i : i + 1]), batches[i][1])
            for i, head in enumerate(heads)
        ]
        torch.stack(losses).sum().backward()
        for member in range(members):
            update(member)

    def in_turn() -> None:
        for member, name in enumerate(names):
            model.set_adapter(name)
            inputs, labels = batches[member]
            hidden = pooled(model(**inputs).last_hidden_state, inputs)
            torch.nn.functional.cross_entropy(heads[member](hidden), labels).backward()
            update(member)

    return mixed, in_turn


def steps(members: int, blocks: int) -> dict[str, Any]:
    together, in_turn = ours(members, 0.0)
    dropped, dropped_in_turn = ours(members, 0.05)
    mixed, swapped = with_peft(members)
    ways = {
        "together": together,
        "in_turn": in_turn,
        "together_dropout": dropped,
        "in_turn_dropout": dropped_in_turn,
        "peft_mixed": mixed,
        "peft_in_turn": swapped,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(blocks + 2):
        for name, way in ways.items():
            start = time.thread_time()
            way()
            if number >= 2:
                seconds[name].append(time.thread_time() - start)

    def ratio(slow: str, fast: str) -> list[float]:
        values = sorted(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))
        return [statistics.median(values), values[len(values) // 4], values[(3 * len(values)) // 4]]

    return {
        "members": members,
        "batch": 1,
        "length": LENGTH,
        "blocks": blocks,
        "step_cpu_s": {name: statistics.median(values) for name, values in seconds.items()},
        "against_own_swaps": ratio("in_turn", "together"),
        "against_own_swaps_dropout": ratio("in_turn_dropout", "together_dropout"),
        "against_peft_swaps": ratio("peft_in_turn", "together"),
        "against_peft_mixed": ratio("peft_mixed", "together"),
        "target": {4: 1.5, 8: 2.0}.get(members),
    }


# -- memory -------------------------------------------------------------------------------------------


def hold(jobs_dir: Path, keys: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", "hold", str(jobs_dir), *keys]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def memory(members: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ymir-speed-") as name:
        jobs_dir = Path(name)
        keys = [add_job(jobs_dir, f"job {k}") for k in range(members)]
        found = {}
        for what, groups in (("one_process", [keys]), ("processes", [[key] for key in keys])):
            children = [hold(jobs_dir, group) for group in groups]
            try:
                for child in children:
                    assert child.stdout.readline() == "ready\n"
                found[f"{what}_pss_mib"] = sum(pss_mib(child.pid) for child in children)
            finally:
                for child in children:
                    child.communicate("\n")
    return {
        "members": members,
        **found,
        "share": found["one_process_pss_mib"] / found["processes_pss_mib"],
        "target_share": 1 / 3,
    }


def child(what: str, jobs_dir: Path, keys: list[str]) -> None:
    import torch

    from ymir_opt.runtime.worker import Worker

    torch.set_num_threads(1)
    if what == "cold":
        first_step(jobs_dir, keys[0])
        return
    worker = Worker(None, jobs_dir)
    worker.assign(wish(1, keys))
    for _ in range(3):
        worker.tick()
    print("ready", flush=True)
    sys.stdin.readline()


# -- the whole ----------------------------------------------------------------------------------------


def table(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    switch, held = found["switch"], found["memory"]
    rows = [
        ("cold start to the first step", f"{switch['cold_cpu_s']:.2f} CPU s", ""),
        ("warm switch to the first step", f"{switch['warm_cpu_s']:.3f} CPU s", "< 0.3"),
    ]
    for one in found["steps"]:
        k = one["members"]
        for key, text, target in (
            ("against_own_swaps", "steps in turn, same runtime", f">= {one['target']}"),
            ("against_own_swaps_dropout", "the same, dropout 0.05", ""),
            ("against_peft_swaps", "steps in turn, PEFT", f">= {one['target']}"),
            ("against_peft_mixed", "PEFT's mixed batch", ">= 1"),
        ):
            median, low, high = one[key]
            rows.append((f"K={k} together over {text}", f"{median:.2f} ({low:.2f}-{high:.2f})", target))
    rows.append(
        (
            f"PSS of one process with K={held['members']} over that many processes",
            f"{held['one_process_pss_mib']:.0f} / {held['processes_pss_mib']:.0f} MiB = {held['share']:.2f}",
            "< 0.33",
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=25)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, jobs_dir, *keys = options.child
        child(what, Path(jobs_dir), keys)
        return
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "command": "solver_runs/runtime_speed.py",
        "machine": {**machine.describe(), "torch": torch.__version__, "threads": 1},
        "model": "all-MiniLM-L6-v2",
        "switch": switches(max(3, options.blocks // 3)),
        "memory": memory(8),
        "steps": [steps(members, options.blocks) for members in (4, 8)],
    }
    found["machine"]["load_1min_end"] = round(os.getloadavg()[0], 2)
    for what, figure, target in table(found):
        print(f"{what:62} {figure:28} {target}")
    options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
