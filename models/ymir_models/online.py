"""Learning while jobs run: predicted against realised, drift, and what to measure next.

Every quantity has a track by name. Its error is log(realised/predicted); the correction is the mean error,
shrunk towards none while there are few. Drift is a two-sided CUSUM (Page 1954) of errors in units of the
model's own standard deviation around the track's mean when it began; after an alarm the track begins
again, so that what was learnt before does not hold it back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ymir_models.artefact import Artefact, read_artefact, render
from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError

__all__ = ["KIND", "VERSION", "Candidate", "Online", "Track", "next_to_measure", "track_name"]

KIND = "online"
VERSION = 1
PRIOR = 3.0
"""Observations at which the correction is half of the mean error."""
SLACK, ALARM = 0.5, 6.0
"""CUSUM constants in standard deviations: a shift of three is found in about three observations, of one
in about twelve."""
LEARNING = 10
"""Observations that set the level from which drift is measured."""


def track_name(kind: str, *parts: str | None) -> str:
    """Return the name of a track, such as ``throughput|vit|FULL||V100``."""
    return "|".join([kind, *((part or "") for part in parts)])


@dataclass(frozen=True)
class Track:
    """What was seen of one quantity since its last drift.

    Attributes
    ----------
    count : int
    mean : float
        Of log(realised/predicted).
    level : float
        Mean of the first observations, from which drift is measured.
    up, down : float
        CUSUM statistics.
    drifts : int
        Alarms so far.
    """

    count: int = 0
    mean: float = 0.0
    level: float = 0.0
    up: float = 0.0
    down: float = 0.0
    drifts: int = 0

    def observe(self, error: float, spread: float) -> Track:
        """Return the track with one more error; `spread` is the standard deviation that is expected."""
        count = self.count + 1
        mean = self.mean + (error - self.mean) / count
        if count <= LEARNING:
            return replace(self, count=count, mean=mean, level=mean)
        score = (error - self.level) / spread
        up, down = max(0.0, self.up + score - SLACK), max(0.0, self.down - score - SLACK)
        if max(up, down) > ALARM:
            return Track(1, error, error, 0.0, 0.0, self.drifts + 1)
        return replace(self, count=count, mean=mean, up=up, down=down)

    @property
    def correction(self) -> float:
        """Factor for predictions of this quantity."""
        return math.exp(self.mean * self.count / (self.count + PRIOR))


@dataclass(frozen=True)
class Online:
    """All tracks; immutable, so that a plan made from one state can be made again.

    Attributes
    ----------
    tracks : mapping of str to Track
    """

    tracks: Mapping[str, Track] = field(default_factory=dict)

    def observe(self, name: str, predicted: float, realised: float, spread: float = 0.1) -> Online:
        """Return the state after one outcome.

        Parameters
        ----------
        name : str
            See :func:`track_name`.
        predicted, realised : float
            Positive figures of the same unit.
        spread : float
            Standard deviation of log error that the model claims.

        Raises
        ------
        InputError
            If a figure is not positive and finite.
        """
        for what, value in (("predicted", predicted), ("realised", realised), ("spread", spread)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name[:60]}: {what}", f"{value} is not above 0", "leave the outcome out")
        track = self.tracks.get(name, Track()).observe(math.log(realised / predicted), spread)
        return Online({**self.tracks, name: track})

    def correction(self, name: str) -> float:
        """Return the factor for a quantity, 1 where nothing was seen."""
        track = self.tracks.get(name)
        return 1.0 if track is None else track.correction

    def drifted(self) -> tuple[str, ...]:
        """Return the quantities that drifted at least once, sorted: their fits are out of date."""
        return tuple(sorted(name for name, track in self.tracks.items() if track.drifts))

    def to_text(self) -> str:
        """Return the state as an artefact."""
        tracks: dict[str, Any] = {
            name: {part: getattr(track, part) for part in Track.__dataclass_fields__}
            for name, track in self.tracks.items()
        }
        return render(KIND, VERSION, {"tracks": tracks}, {"data": []})

    def write(self, folder: Path) -> str:
        """Write ``online.json`` beside the fitted models and return its checksum."""
        text = self.to_text()
        write_atomic(folder / f"{KIND}.json", text)
        digest: str = json.loads(text)["sha256"]
        return digest

    @classmethod
    def from_artefact(cls, artefact: Artefact) -> Online:
        """Read a state back; raises `InputError` where a figure is missing or wrong."""
        parts = artefact.fields().part("tracks")
        tracks = {}
        for name in parts.names():
            one = parts.part(name)
            counts = {part: int(one.number(part)) for part in ("count", "drifts")}
            figures = {part: one.number(part) for part in ("mean", "level", "up", "down")}
            tracks[name] = Track(count=counts["count"], drifts=counts["drifts"], **figures)
        return cls(tracks)

    @classmethod
    def read(cls, folder: Path) -> Online:
        """Return the state of a folder, empty where there is none."""
        path = folder / f"{KIND}.json"
        return cls.from_artefact(read_artefact(path, KIND, VERSION)) if path.exists() else cls()


@dataclass(frozen=True)
class Candidate:
    """Something that could be measured.

    Attributes
    ----------
    name : str
    half_width : float
        Of the logarithm of the present prediction; infinite where there is none.
    gpu_s : float
        GPU-seconds of queued work whose plan depends on it.
    cost_gpu_s : float
        GPU-seconds of the measurement.
    """

    name: str
    half_width: float
    gpu_s: float
    cost_gpu_s: float


def next_to_measure(candidates: Iterable[Candidate], budget_gpu_s: float) -> tuple[Candidate, ...]:
    """Return what to measure within a budget, the most uncertain work for a GPU-second first.

    A prediction off by a half width misplaces about that share of the work: the benefit of measuring is
    min(half_width, 1) times the work; ties go to the smaller name.
    """

    def worth(candidate: Candidate) -> float:
        return min(candidate.half_width, 1.0) * candidate.gpu_s / max(candidate.cost_gpu_s, 1e-9)

    chosen, left = [], budget_gpu_s
    for candidate in sorted(candidates, key=lambda c: (-worth(c), c.name)):
        if worth(candidate) > 0 and candidate.cost_gpu_s <= left:
            chosen.append(candidate)
            left -= candidate.cost_gpu_s
    return tuple(chosen)
