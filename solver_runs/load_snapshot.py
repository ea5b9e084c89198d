"""How long it takes to read, validate and hash a snapshot of 10 000 jobs.

Run ``python solver_runs/load_snapshot.py``; it prints one JSON object a form of the document:
``full`` (every field written) and ``brief`` (defaults left out, as a scheduler would write it).
The figures are CPU seconds, the least of some repetitions.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from machine import describe

from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_snapshot, snapshot_sha256


def least_cpu_s(task: Callable[[], object], repetitions: int) -> float:
    """Return the least CPU seconds of some runs."""
    taken = []
    for _ in range(repetitions):
        begun = time.process_time()
        task()
        taken.append(time.process_time() - begun)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    snapshot = synthetic_snapshot(options.jobs, options.gpus)
    for form, brief in (("full", False), ("brief", True)):
        text = dump_json(snapshot, exclude_defaults=brief).encode()
        parsed = parse_snapshot(text)
        row = {
            "benchmark": "load_snapshot",
            "form": form,
            "jobs": options.jobs,
            "gpus": options.gpus,
            "mib": round(len(text) / (1 << 20), 2),
            "load_cpu_s": round(least_cpu_s(lambda t=text: parse_snapshot(t), options.repetitions), 4),
            "hash_cpu_s": round(least_cpu_s(lambda s=parsed: snapshot_sha256(s), options.repetitions), 4),
            "machine": describe(),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
