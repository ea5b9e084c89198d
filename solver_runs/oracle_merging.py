"""How much work merging could save on Titan's workloads, before any policy.

    python solver_runs/oracle_merging.py --shared ../shared/data

For every workload: the share of its jobs' work (samples alone, the trace's setting) that is left if every job
starts from the best source, or is trained with the best partner, at no cost and with full knowledge, and only
where that saves work. Once against the trace's own setting, once against the best measured one alone.
Runs that never reach the target count as no saving (`censored` says how many of the measured pairs they are).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ymir_opt.jobmodel import JobModel
from ymir_opt.simulator.workload import titan_workload


def left(ratios: np.ndarray, censored: np.ndarray, kinds: np.ndarray, work: np.ndarray) -> float:
    """Return the share of the work that is left with the best pair of each class."""
    usable = np.where(np.isnan(ratios) | censored, 1.0, ratios)
    best = np.minimum(1.0, usable.min(axis=1))
    return float((work * best[kinds]).sum() / work.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"))
    folder = parser.parse_args().shared / "titan"
    model = JobModel(folder)
    print("| trace | best start: trace | best single | best partner: trace | best single | censored |")
    print("|---|---|---|---|---|---|")
    for path in sorted(folder.glob("workloads/*/workload-0.csv")):
        cells, missed = [], (0, 0)
        for name in ("warm", "joint"):
            for against in ("trace", "best_single"):
                workload = titan_workload(path, model, against=against)
                jobs = list(workload.jobs())
                kinds = np.array([job.kind for job in jobs])
                work = np.array([job.work for job in jobs])
                ratios = getattr(workload.transfer, name)
                censored = getattr(workload.transfer, f"{name}_censored")
                cells.append(f"{100 * left(ratios, censored, kinds, work):.0f} %")
            missed = (missed[0] + int(censored.sum()), missed[1] + int((~np.isnan(ratios)).sum()))
        print(f"| {path.parent.name} | {' | '.join(cells)} | {missed[0]} of {missed[1]} |")


if __name__ == "__main__":
    main()
