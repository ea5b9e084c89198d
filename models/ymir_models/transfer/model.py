"""Which source helps a target, by how much, and how sure: accuracy after a warm start; numpy alone.

Accuracy is not time: a gain becomes a work ratio only through `ymir_models.transfer.work`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Fields
from ymir_models.transfer.features import FEATURES, NEW_TASK, History
from ymir_models.transfer.linear import Linear
from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["Gain", "GainModel", "Head"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """Accuracy after a warm start over accuracy without, less 1.

    Attributes
    ----------
    gain, low, high : float
        With 80 % limits.
    p_benefit : float
        Probability that the gain is above zero.
    measured : bool
    """

    gain: float
    low: float
    high: float
    p_benefit: float
    measured: bool


@dataclass(frozen=True)
class Head:
    """The three answers from one set of features.

    Attributes
    ----------
    order : Linear
        Standardised score of a source within its target: for choosing among sources.
    gain : Linear
        Gain over no transfer.
    benefit : Linear
        Logistic: the gain is above zero.
    radius : float64[2]
        Half widths of the gain at 80 and 95 % for a target never seen.
    """

    order: Linear
    gain: Linear
    benefit: Linear
    radius: FloatArray

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        parts = {name: getattr(self, name).to_json() for name in ("order", "gain", "benefit")}
        return {**parts, "radius": self.radius}

    @classmethod
    def from_fields(cls, fields: Fields, size: int) -> Head:
        """Read the parameters back."""
        order, gain, benefit = (
            Linear.from_fields(fields.part(n), size) for n in ("order", "gain", "benefit")
        )
        return cls(order, gain, benefit, fields.array("radius", 2))


@dataclass(frozen=True)
class GainModel:
    """Transfers between tasks in several settings (a setting is a model and how it is tuned).

    Attributes
    ----------
    settings : tuple of str
    models : tuple of str
        Foundation model that each setting answers for, empty where it answers for none.
    history : History
    measured, spread : float64[K, T, S]
        Gains that were measured, and the standard error of each; NaN elsewhere.
    known, new : Head
        For tasks that were sources before, and for tasks with pair scores alone.
    """

    settings: tuple[str, ...]
    models: tuple[str, ...]
    history: History
    measured: FloatArray
    spread: FloatArray
    known: Head
    new: Head

    @cached_property
    def _tables(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return gain and probability of every known target (float64[T, K, S]) and their order."""
        everyone = np.ones(len(self.history.targets), dtype=np.bool_)
        features = self.history.features(everyone)
        return self.known.gain(features), self.known.benefit.probability(features), self.known.order(features)

    def setting_of(self, foundation_model: str) -> int | None:
        """Return the setting that answers for a foundation model, or None."""
        try:
            return self.models.index(foundation_model)
        except ValueError:
            return None

    def knows(self, task: str) -> bool:
        """Say whether the task is one of the targets or sources."""
        return task in self._target or task in self._source

    @cached_property
    def _target(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.history.targets)}

    @cached_property
    def _source(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.history.sources)}

    def pair(self, setting: int, source: str, target: str) -> Gain | None:
        """Return the gain of a known target after a known source, None for a task after itself.

        Raises
        ------
        NotFoundError
            If the target or the source has neither results nor pair scores.
        """
        t, s = self._target.get(target), self._source.get(source)
        for name, place, names in ((target, t, self._target), (source, s, self._source)):
            if place is None:
                raise NotFoundError(
                    f"task {short(name)}", "has no features", f"give pair scores; {nearest(name, set(names))}"
                )
        if source == target or t is None or s is None:
            return None
        value, error = float(self.measured[setting, t, s]), float(self.spread[setting, t, s])
        if np.isfinite(value) and np.isfinite(error):
            return _measured(value, error)
        gain, probability, _ = self._tables
        middle = float(gain[t, setting, s])
        half = float(self.known.radius[0])
        return Gain(middle, middle - half, middle + half, float(probability[t, setting, s]), False)

    def rank_sources(self, setting: int, target: str) -> list[tuple[str, float]]:
        """Return the sources of a known target, best first, with their standardised scores."""
        if target not in self._target:
            raise NotFoundError(
                f"task {short(target)}", "has no features", nearest(target, set(self._target))
            )
        order = self._tables[2][self._target[target], setting]
        chosen = [s for s in np.argsort(-order, kind="stable") if self.history.sources[s] != target]
        return [(self.history.sources[s], float(order[s])) for s in chosen]

    def new_target(
        self, setting: int, llm: Mapping[str, float], retrieval: Mapping[str, float]
    ) -> dict[str, Gain]:
        """Return the gain after every source for a task that was never run.

        Parameters
        ----------
        setting : int
        llm, retrieval : mapping of str to float
            Pair scores of every source for this target.

        Raises
        ------
        InputError
            If a source has no score: nothing is filled in silently.
        """
        rows = []
        for name, scores in (("language model", llm), ("retrieval", retrieval)):
            missing = [s for s in self.history.sources if not np.isfinite(scores.get(s, np.nan))]
            if missing:
                raise InputError(
                    "task features",
                    f"no {name} score for {len(missing)} sources, the first is {short(missing[0])}",
                    "give a score for every source",
                )
            rows.append(np.array([scores[s] for s in self.history.sources], dtype=np.float64))
        features = self.history.new_task(rows[0], rows[1])[setting]
        gain, probability = self.new.gain(features), self.new.benefit.probability(features)
        half = float(self.new.radius[0])
        return {
            name: Gain(float(g), float(g) - half, float(g) + half, float(p), False)
            for name, g, p in zip(self.history.sources, gain, probability, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {
            "settings": list(self.settings),
            "models": list(self.models),
            "history": self.history.to_json(),
            "measured": self.measured,
            "spread": self.spread,
            "known": self.known.to_json(),
            "new": self.new.to_json(),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> GainModel:
        """Read the parameters back; raises `InputError` where one is missing or wrong."""
        settings = fields.texts("settings")
        history = History.from_fields(fields.part("history"))
        shape = (len(settings), len(history.targets), len(history.sources))
        return cls(
            settings,
            fields.texts("models"),
            history,
            fields.array("measured", *shape),
            fields.array("spread", *shape),
            Head.from_fields(fields.part("known"), len(FEATURES)),
            Head.from_fields(fields.part("new"), NEW_TASK),
        )


def _measured(value: float, error: float) -> Gain:
    """Return a measured gain with the limits that its seeds leave (normal)."""
    import math

    half = 1.2815515655446004 * error
    p = 0.5 * math.erfc(-value / (max(error, 1e-9) * math.sqrt(2)))
    return Gain(value, value - half, value + half, p, True)
