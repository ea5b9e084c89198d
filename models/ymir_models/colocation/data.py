"""Measured pairs on one GPU as arrays: Gavel's tables, Titan's sharing tables, own profiles."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.sources import require_folder
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import ColocationRow, Mode, Provenance
from ymir_opt.estimates.protocols import ThroughputKey
from ymir_opt.jobmodel import JobModel

__all__ = ["GAVEL_TABLE", "PairRows", "gavel_pairs", "profile_pairs", "titan_pairs"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

GAVEL_TABLE = "simulation_throughputs.json"
TITAN_PEFT_TYPE = "FULL"


@dataclass(frozen=True)
class PairRows:
    """Ordered pairs measured on one GPU of one type.

    Attributes
    ----------
    name : str
        Which set of measurements, such as ``gavel``.
    gpu_type : str
    families : tuple of ThroughputKey
        Programs; a *family* in batches of several sizes.
    family : int64[n]
        Family of every key (family, batch).
    log_batch : float64[n]
        log2 of the batch of every key.
    first, second : int64[m]
        Keys of a pair; the row is about the first.
    ratio : float64[m]
        Samples/s of the first beside the second over samples/s alone; NaN where the pair cannot run.
    """

    name: str
    gpu_type: str
    families: tuple[ThroughputKey, ...]
    family: IntArray
    log_batch: FloatArray
    first: IntArray
    second: IntArray
    ratio: FloatArray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def feasible(self) -> BoolArray:
        """Whether the pair runs."""
        return ~np.isnan(self.ratio)

    @property
    def pair(self) -> IntArray:
        """A number for every unordered pair: (a, b) and (b, a) are the same."""
        n = len(self.family)
        result: IntArray = np.minimum(self.first, self.second) * n + np.maximum(self.first, self.second)
        return result

    def take(self, mask: BoolArray | IntArray) -> PairRows:
        """Return some of the rows; keys and families stay."""
        return replace(self, first=self.first[mask], second=self.second[mask], ratio=self.ratio[mask])


def build(
    name: str,
    gpu_type: str,
    rows: Iterable[tuple[tuple[ThroughputKey, int], tuple[ThroughputKey, int], float]],
) -> PairRows:
    """Return the arrays of ((family, batch), (family, batch), ratio of the first) tuples."""
    table = list(rows)
    keys = sorted({key for a, b, _ in table for key in (a, b)}, key=lambda k: (_text(k[0]), k[1]))
    families = sorted({key[0] for key in keys}, key=_text)
    at = {key: i for i, key in enumerate(keys)}
    return PairRows(
        name,
        gpu_type,
        tuple(families),
        np.array([families.index(key[0]) for key in keys], dtype=np.int64),
        np.log2(np.array([key[1] for key in keys], dtype=np.float64)),
        np.array([at[a] for a, _, _ in table], dtype=np.int64),
        np.array([at[b] for _, b, _ in table], dtype=np.int64),
        np.array([ratio for _, _, ratio in table], dtype=np.float64),
    )


def _text(key: ThroughputKey) -> tuple[str, str, str]:
    return (key.foundation_model, key.peft_type or "", key.config)


def gavel_pairs(folder: Path) -> list[PairRows]:
    """Return the single-GPU pairs of Gavel's table, one set for every GPU type.

    ``[0, 0]`` is a pair that cannot run; multi-GPU pairs were not measured and are left out.

    Raises
    ------
    InputError
        If the table is missing or not as expected.
    """
    path = require_folder(folder, GAVEL_TABLE) / GAVEL_TABLE
    try:
        table = json.loads(path.read_bytes())
    except ValueError:
        raise InputError(str(path), "is cut off or not JSON", "get the file again") from None
    sets = []
    for worker in sorted(name for name in table if not name.endswith("_unconsolidated")):
        rows = []
        for text, entry in table[worker].items():
            key, gpus = _gavel_key(path, text)
            alone = _number(path, text, entry.get("null"))
            for other, pair in entry.items():
                if other == "null" or gpus != 1 or not alone > 0:
                    continue
                partner, partner_gpus = _gavel_key(path, other)
                if partner_gpus == 1:
                    own, its = (_number(path, text, value) for value in pair)
                    rows.append((key, partner, own / alone if own > 0 and its > 0 else math.nan))
        sets.append(build("gavel", worker.upper(), rows))
    return sets


def _gavel_key(path: Path, text: str) -> tuple[tuple[ThroughputKey, int], int]:
    try:
        name, gpus = ast.literal_eval(text)
        found = re.fullmatch(r"(.*) \(batch size (\d+)\)", name)
        model, batch = (found[1], int(found[2])) if found else (name, 1)
        return (ThroughputKey(model, None, ""), batch), int(gpus)
    except (ValueError, SyntaxError, TypeError):
        raise InputError(str(path), f"{text[:60]!r} is not a job type", "get the file again") from None


def _number(path: Path, place: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{path}: {place[:60]}", f"{str(value)[:20]} is not a number", "get the file again")
    return float(value)


def titan_pairs(folder: Path) -> list[PairRows]:
    """Return two jobs of one model on one GPU from Titan's sharing tables, one set for every table."""
    model = JobModel(folder)
    sets = []
    for gpu_type in model.gpu_types():
        for name in model.models(gpu_type):
            table = model.sharing_table(name, gpu_type)
            if table is None:
                continue
            rows = []
            key = ThroughputKey(name, TITAN_PEFT_TYPE, "")
            for a, b in sorted(table.rows):
                speed = model.shared_speed(name, (a, b), gpu_type)
                if speed is None:
                    continue
                rows.append(((key, a), (key, b), speed[0]))
                if a != b:
                    rows.append(((key, b), (key, a), speed[1]))
            sets.append(build(f"titan {name}", gpu_type, rows))
    return sets


def profile_pairs(rows: Sequence[ColocationRow]) -> list[PairRows]:
    """Return own measured pairs in gpu_share on one GPU, one set for every GPU type."""
    by_type: dict[str, list[tuple[tuple[ThroughputKey, int], tuple[ThroughputKey, int], float]]] = {}
    for row in rows:
        if row.mode is not Mode.GPU_SHARE or row.source is not Provenance.MEASURED:
            continue
        if row.gpus != 1 or len(row.members) != 2:
            continue
        a, b = ((ThroughputKey(m.foundation_model, m.peft_type, m.config), m.batch_size) for m in row.members)
        # a ratio of 0 says that the pair does not run
        first, second = (r if r > 0 else math.nan for r in row.speed_ratio)
        by_type.setdefault(row.gpu_type, []).append((a, b, first))
        if a != b:
            by_type[row.gpu_type].append((b, a, second))
    return [build("profiles", gpu_type, found) for gpu_type, found in sorted(by_type.items())]
