"""TaskWeb as arrays: 21 targets after 22 sources in 9 settings, and scores of task pairs."""

from __future__ import annotations

import ast
import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.scores import mean_known
from ymir_models.sources import require_folder
from ymir_opt.domain.errors import InputError

__all__ = ["FILES", "TaskWeb", "read_taskweb"]

FloatArray = NDArray[np.float64]

FILES = (
    "taskweb_gain_matrix.csv",
    "taskweb_pairwise_runs.csv",
    "taskshop_llm_scores.csv",
    "taskshop_roe_scores.csv",
)
AVERAGED = {
    "cb": ("accuracy", "f1"),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    "stsb": ("pearson", "spearmanr"),
}
"""Tasks whose metric is the mean of two."""


@dataclass(frozen=True)
class TaskWeb:
    """Results of fine-tuning a target after a source, settings x targets x sources.

    Attributes
    ----------
    settings, targets, sources : tuple of str
    score : float64[K, T, S]
        Mean metric over seeds, a fraction; NaN for a task after itself.
    gain : float64[K, T, S]
        Score over the score without transfer, less 1; NaN where the latter is not known.
    reference : float64[K, T]
        Score without transfer; where it is not known, the mean over sources (a scale, no baseline).
    halves : float64[2, K, T, S]
        Mean scores of the first and the second half of the seeds.
    llm, retrieval : float64[T, S]
        How useful the source is for the target by a language model and by retrieval; no training needed.
    """

    settings: tuple[str, ...]
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    score: FloatArray
    gain: FloatArray
    reference: FloatArray
    halves: FloatArray
    llm: FloatArray
    retrieval: FloatArray


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _number(path: Path, row: dict[str, str], column: str) -> float:
    text = row.get(column)
    if text is None:
        raise InputError(str(path), f"column {column} is missing", "get the file again")
    try:
        return float(text) if text else np.nan
    except ValueError:
        raise InputError(str(path), f"{column} {text[:40]!r} is not a number", "get the file again") from None


def read_taskweb(folder: Path) -> TaskWeb:
    """Read the runs, the published gains and the pair scores.

    Raises
    ------
    InputError
        If a file is missing or not as expected.
    """
    require_folder(folder, *FILES)
    gains, runs, llm, retrieval = (folder / name for name in FILES)
    published = _read(gains)
    seeds: dict[tuple[str, str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in _read(runs):
        key = (row["setting"], row["target"], row["source"])
        seeds[key][row["metric"]][row["seed"]] = _number(runs, row, "value")
    targets = sorted({row["target"] for row in published})
    sources = sorted({row["source"] for row in published})
    settings = sorted({key[0] for key in seeds})
    shape = (len(settings), len(targets), len(sources))
    score, gain, without = (np.full(shape, np.nan) for _ in range(3))
    halves = np.full((2, *shape), np.nan)
    at = [{name: i for i, name in enumerate(names)} for names in (settings, targets, sources)]
    for key, metrics in seeds.items():
        if key[1] in at[1] and key[2] in at[2]:
            place = (at[0][key[0]], at[1][key[1]], at[2][key[2]])
            values = _by_seed(key[1], metrics)
            if len(values):
                score[place] = values.mean()
                middle = len(values) // 2
                halves[(0, *place)] = values[:middle].mean() if middle else np.nan
                halves[(1, *place)] = values[middle:].mean()
    # some settings are recorded as percentages, some as fractions
    for k in range(shape[0]):
        for t in range(shape[1]):
            if np.nanmax(score[k, t]) > 1.5:
                score[k, t] /= 100.0
                halves[:, k, t] /= 100.0
    for row in published:
        place = (at[0][row["setting"]], at[1][row["target"]], at[2][row["source"]])
        mean = _number(gains, row, "mean_score_8seeds")
        score[place] = mean if np.isfinite(mean) else score[place]
        gain[place] = _number(gains, row, "pc_relative_gain")
        without[place] = _number(gains, row, "inferred_no_transfer_baseline")
    known = np.isfinite(without).any(axis=2)
    baseline = np.where(known, mean_known(without, 2), np.nan)
    return TaskWeb(
        tuple(settings),
        tuple(targets),
        tuple(sources),
        score,
        gain,
        np.where(known, baseline, mean_known(score, 2)),
        halves,
        _pairs(llm, targets, sources, first_of_tuple=True),
        _pairs(retrieval, targets, sources, first_of_tuple=False),
    )


def _by_seed(target: str, metrics: dict[str, dict[str, float]]) -> FloatArray:
    """Return the target's metric for every seed that has all of its parts."""
    wanted = [name for name in AVERAGED.get(target, ("accuracy",)) if name in metrics]
    if not wanted:
        return np.zeros(0)
    common = sorted(set.intersection(*(set(metrics[name]) for name in wanted)))
    return np.array([np.mean([metrics[name][seed] for name in wanted]) for seed in common])


def _pairs(path: Path, targets: list[str], sources: list[str], *, first_of_tuple: bool) -> FloatArray:
    """Return the scores of (target, source) pairs, NaN where there is none."""
    found: dict[tuple[str, str], float] = {}
    for row in _read(path):
        text: Any = row["score"]
        try:
            found[row["key1"], row["key2"]] = float(ast.literal_eval(text)[0] if first_of_tuple else text)
        except (ValueError, SyntaxError, TypeError, IndexError):
            raise InputError(
                str(path), f"score {text[:40]!r} is not a number", "get the file again"
            ) from None
    return np.array([[found.get((t, s), np.nan) for s in sources] for t in targets])
