"""Estimates of one snapshot: its rows first, then a predictor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.memo import LastOne
from ymir_opt.domain.snapshot import Profiles, Snapshot
from ymir_opt.estimates.colocation import ColocationTable
from ymir_opt.estimates.protocols import Predictor, ThroughputKey
from ymir_opt.estimates.throughput import ThroughputTable
from ymir_opt.estimates.transfer import TransferTable

__all__ = ["DEFAULT_SWITCH_S", "ROWS_VERSION", "Estimates"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Ymir (ICS'24) reports that a cold switch takes over a minute; used where no row says better.
DEFAULT_SWITCH_S = 60.0
# version of the rules by which rows are interpolated, where no fitted model is asked
ROWS_VERSION = "1"


class _Tables:
    """The tables of one ``profiles`` object."""

    def __init__(self, profiles: Profiles, predictor: Predictor | None, *, measured_only: bool) -> None:
        throughput = profiles.throughput
        transfer = profiles.transfer
        colocation = profiles.colocation
        if measured_only:
            throughput = tuple(row for row in throughput if row.source == "measured")
            transfer = tuple(row for row in transfer if row.provenance == "measured")
            colocation = tuple(row for row in colocation if row.source == "measured")
        self.predictor = predictor
        self.throughput = ThroughputTable(throughput)
        self.transfer = TransferTable(transfer, predictor, pair_rule=not measured_only)
        self.colocation = ColocationTable(colocation, predictor)
        self.switch = {(row.foundation_model, row.gpu_type): row for row in profiles.switch_s}
        self.backbone = {row.foundation_model: row.gib for row in profiles.backbone_gib}


_TABLES: LastOne[_Tables] = LastOne()


class Estimates:
    """What is known about speed, switching and transfer at one moment.

    Parameters
    ----------
    snapshot : Snapshot
        Its ``profiles`` are the measured rows.
    predictor : Predictor, optional
        Fitted models, asked only where no row answers.
    measured_only : bool
        Refuse every predicted figure: predicted rows, extrapolated counts, the predictor and the
        pair rule for joint groups above two.
    """

    def __init__(
        self, snapshot: Snapshot, predictor: Predictor | None = None, *, measured_only: bool = False
    ) -> None:
        profiles = snapshot.profiles
        self.measured_only = measured_only
        self.predictor = None if measured_only else predictor
        # what was looked up before stays known as long as the profiles are the same object
        tables = _TABLES.get(
            profiles,
            lambda: _Tables(profiles, self.predictor, measured_only=measured_only),
            (id(self.predictor), getattr(self.predictor, "version", None), measured_only),
        )
        self._throughput = tables.throughput
        self.transfer = tables.transfer
        self.colocation = tables.colocation
        self._switch = tables.switch
        self._backbone = tables.backbone

    @property
    def version(self) -> str:
        """The estimator's version: the predictor's, else that of the rules over rows."""
        return ROWS_VERSION if self.predictor is None else self.predictor.version

    def throughput(
        self, key: ThroughputKey, gpu_type: str, gpus: IntArray, batch: IntArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return samples/s, memory per GPU (GiB) and whether each figure is predicted; NaN is unknown."""
        rate, memory, predicted = self._throughput.lookup(key, gpu_type, gpus, batch)
        if self.measured_only:
            rate = np.where(predicted, np.nan, rate)
        elif self.predictor is not None:
            unknown = np.isnan(rate)
            if unknown.any():
                guess, guess_memory = self.predictor.throughput(
                    key, gpu_type, np.asarray(gpus)[unknown], np.asarray(batch)[unknown]
                )
                rate[unknown], memory[unknown] = guess, guess_memory
                predicted[unknown] = True
        return rate, memory, predicted

    def largest_count(self, key: ThroughputKey, gpu_type: str, wanted: int) -> int:
        """Return the largest GPU count worth asking about, at most ``wanted``."""
        return wanted if self.predictor is not None else min(wanted, self._throughput.largest(key, gpu_type))

    def switch_s(self, foundation_model: str | None, gpu_type: str) -> tuple[float, float]:
        """Return cold and warm start in seconds (60, 60 without a row; 0, 0 without a model)."""
        if foundation_model is None:
            return (0.0, 0.0)
        row = self._switch.get((foundation_model, gpu_type))
        return (DEFAULT_SWITCH_S, DEFAULT_SWITCH_S) if row is None else (row.cold_s, row.warm_s)

    def backbone_gib(self, foundation_model: str) -> float | None:
        """Return the memory of one frozen copy of the model, or None where unknown."""
        return self._backbone.get(foundation_model)
