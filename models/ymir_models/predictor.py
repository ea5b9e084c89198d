"""All fitted models of a folder behind one face: what `solve --models DIR` asks where no row answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models import online as online_module
from ymir_models.artefact import Artefact, Fields, read_artefact
from ymir_models.colocation.model import PairModel
from ymir_models.colocation.saturation import SaturationModel
from ymir_models.convergence.model import HazardModel, Remaining
from ymir_models.online import Online, track_name
from ymir_models.tasks import FILE, TaskScores, read_tasks
from ymir_models.throughput.model import StepModel
from ymir_models.transfer.model import Gain, GainModel
from ymir_models.transfer.work import GainToWork, WorkModel
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import Mode
from ymir_opt.estimates.protocols import (
    Z80,
    Colocation,
    MemberKey,
    ThroughputKey,
    WorkRatio,
    benefit_probability,
)

__all__ = ["VERSIONS", "FittedPredictor", "load"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

VERSIONS: Mapping[str, int] = {
    "throughput": 1,
    "colocation": 1,
    "convergence": 1,
    "transfer": 1,
    online_module.KIND: online_module.VERSION,
}
"""Kinds of artefacts and the version of each that this program reads."""


class FittedPredictor:
    """Answers from fitted models; NaN or None where they abstain.

    Parameters
    ----------
    artefacts : mapping of str to Artefact
        By kind; a kind that is absent is abstained from.
    tasks : mapping of str to TaskScores
        Features of tasks that were never run.

    Attributes
    ----------
    name, version, sha256 : str
        What a plan records of its estimates; version and hash change with every refit and every outcome
        that was learnt from.
    """

    def __init__(
        self, artefacts: Mapping[str, Artefact], tasks: Mapping[str, TaskScores] | None = None
    ) -> None:
        self.tasks = dict(tasks or {})
        joined = "".join(f"{kind}:{artefacts[kind].sha256};" for kind in sorted(artefacts))
        joined += repr(sorted((name, scores) for name, scores in self.tasks.items()) if self.tasks else "")
        self.name = "fitted"
        self.sha256 = hashlib.sha256(joined.encode()).hexdigest()
        self.version = f"1+{self.sha256[:12]}"
        self.steps: dict[tuple[ThroughputKey, str], StepModel] = {}
        self.pairs: dict[str, list[PairModel]] = {}
        self.saturation: dict[tuple[ThroughputKey, str], SaturationModel] = {}
        self.hazard: HazardModel | None = None
        self.gain: GainModel | None = None
        self.mapping: GainToWork | None = None
        self.work: dict[str, WorkModel] = {}
        self.rule_spread: float | None = None
        self.online = Online()
        readers = {
            "throughput": self._read_throughput,
            "colocation": self._read_colocation,
            "convergence": self._read_convergence,
            "transfer": self._read_transfer,
        }
        for kind, artefact in artefacts.items():
            if kind == online_module.KIND:
                self.online = Online.from_artefact(artefact)
            else:
                readers[kind](artefact.fields())

    def _read_throughput(self, fields: Fields) -> None:
        for part in fields.parts("models"):
            step = StepModel.from_fields(part)
            key = ThroughputKey(step.foundation_model, step.peft_type, step.config)
            self.steps[key, step.gpu_type] = step

    def _read_colocation(self, fields: Fields) -> None:
        for part in fields.parts("pairs"):
            pair = PairModel.from_fields(part)
            self.pairs.setdefault(pair.gpu_type, []).append(pair)
        for part in fields.parts("saturation"):
            model = SaturationModel.from_fields(part)
            self.saturation[model.key, model.gpu_type] = model

    def _read_convergence(self, fields: Fields) -> None:
        self.hazard = HazardModel.from_fields(fields)

    def _read_transfer(self, fields: Fields) -> None:
        if not fields.is_null("gain"):
            self.gain = GainModel.from_fields(fields.part("gain"))
        if not fields.is_null("mapping"):
            self.mapping = GainToWork.from_fields(fields.part("mapping"))
        if not fields.is_null("rule"):
            self.rule_spread = fields.part("rule").number("log_work_spread")
        works = fields.part("work")
        self.work = {mode: WorkModel.from_fields(works.part(mode)) for mode in works.names()}

    # ------------------------------------------------------------ speed

    def throughput(
        self, key: ThroughputKey, gpu_type: str, gpus: IntArray, batch: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return samples/s and memory per GPU (GiB), NaN where unknown.

        Parameters
        ----------
        key : ThroughputKey
        gpu_type : str
        gpus, batch : int64[k]
            GPU counts, packed on the fewest nodes, and global batch sizes.
        """
        model = self.steps.get((key, gpu_type))
        if model is None:
            unknown = np.full(len(gpus), np.nan)
            return unknown, unknown.copy()
        name = track_name("throughput", key.foundation_model, key.peft_type, key.config, gpu_type)
        rate = model.samples_per_s(batch, gpus) * self.online.correction(name)
        return rate, np.where(np.isnan(rate), np.nan, model.memory_gib(batch, gpus))

    def colocation(
        self, mode: str, gpu_type: str, gpus: int, members: Sequence[MemberKey]
    ) -> Colocation | None:
        """Return the speed ratios of a group on ``gpus`` GPUs, or None.

        gpu_share is answered for two processes on one GPU, colocate for adapters of one key.
        """
        if mode == Mode.GPU_SHARE.value:
            if gpus != 1 or len(members) != 2:
                return None
            first, second = ((m.key, m.batch_size) for m in members)
            for pair in self.pairs.get(gpu_type, ()):
                found = pair.pair(first, second)
                if found is not None:
                    return Colocation(found, None, True)
            return None
        if mode == Mode.COLOCATE.value and len({m.key for m in members}) == 1:
            model = self.saturation.get((members[0].key, gpu_type))
            ratios = None if model is None else model.ratios([m.batch_size for m in members], gpus)
            return None if ratios is None else Colocation(tuple(ratios.tolist()), None, True)
        return None

    # ------------------------------------------------------------ work

    def remaining(
        self, points: Sequence[tuple[float, float]], target: float, most_samples: float
    ) -> Remaining | None:
        """Return the samples that a running job still trains, from its evaluations so far.

        Parameters
        ----------
        points : sequence of (float, float)
            Samples trained and metric (better when larger).
        target : float
        most_samples : float
            Where the job ends at the latest.
        """
        return None if self.hazard is None else self.hazard.remaining(points, target, most_samples)

    def gain_after(self, foundation_model: str, source: str, target: str) -> Gain | None:
        """Return the gain in accuracy of ``target`` started from ``source``, or None.

        Raises
        ------
        InputError
            If a task of `tasks` lacks the score of a source.
        """
        model = self.gain
        setting = None if model is None else model.setting_of(foundation_model)
        if model is None or setting is None or source == target:
            return None
        if target in self.tasks and target not in model.history.targets:
            scores = self.tasks[target]
            return model.new_target(setting, scores.language_model, scores.retrieval).get(source)
        if target not in model.history.targets or source not in model.history.sources:
            return None
        return model.pair(setting, source, target)

    def warm_start(self, foundation_model: str, source: str, target: str) -> WorkRatio | None:
        """Return the work ratio of ``target`` started from ``source``'s weights, or None.

        From measured work of both tasks with this model, else from a gain in accuracy with the
        uncertainty of what that says of work.
        """
        work = self.work.get("warm_start")
        found = None if work is None else work.answer(foundation_model, source, target)
        if found is None and self.mapping is not None:
            gain = self.gain_after(foundation_model, source, target)
            found = None if gain is None else self.mapping.answer(gain)
        return self._corrected(found, "warm_start", foundation_model, target)

    def joint(self, foundation_model: str, others: Sequence[str], target: str) -> WorkRatio | None:
        """Return the work ratio of ``target`` trained together with ``others``, or None.

        More than one other: the geometric mean of the pairs, wider by the measured error of that rule.
        """
        work = self.work.get("joint")
        if work is None or not others:
            return None
        pairs = [work.answer(foundation_model, other, target) for other in others]
        known = [pair for pair in pairs if pair is not None]
        if len(known) < len(others):
            return None
        found = known[0] if len(known) == 1 else self._group(known)
        return self._corrected(found, "joint", foundation_model, target)

    def _group(self, pairs: Sequence[WorkRatio]) -> WorkRatio | None:
        if self.rule_spread is None:
            return None
        middle = sum(math.log(pair.ratio) for pair in pairs) / len(pairs)
        spreads = [(math.log(pair.high) - math.log(pair.low)) / 2 for pair in pairs]
        half = math.sqrt(sum(s * s for s in spreads) / len(spreads) + (Z80 * self.rule_spread) ** 2)
        ratio, low, high = math.exp(middle), math.exp(middle - half), math.exp(middle + half)
        return WorkRatio(ratio, low, high, benefit_probability(ratio, low, high), True)

    def _corrected(self, found: WorkRatio | None, mode: str, model: str, target: str) -> WorkRatio | None:
        if found is None:
            return None
        factor = self.online.correction(track_name(mode, model, target))
        if factor == 1.0:
            return found
        ratio, low, high = (value * factor for value in (found.ratio, found.low, found.high))
        return WorkRatio(ratio, low, high, benefit_probability(ratio, low, high), True)


def load(folder: Path) -> FittedPredictor:
    """Read every fitted model of a folder.

    Raises
    ------
    NotFoundError
        If the folder does not exist or holds none.
    InputError
        If one is cut off, altered, or of another version.
    """
    if not folder.is_dir():
        raise NotFoundError(str(folder), "no such folder", "name a folder with fitted models")
    artefacts = {
        kind: read_artefact(folder / f"{kind}.json", kind, version)
        for kind, version in VERSIONS.items()
        if (folder / f"{kind}.json").exists()
    }
    if not set(artefacts) - {online_module.KIND}:
        raise NotFoundError(str(folder), "holds no fitted model", "write one with `ymir-plan fit -o DIR`")
    tasks = read_tasks(folder / FILE) if (folder / FILE).exists() else {}
    predictor = FittedPredictor(artefacts, tasks)
    if tasks and predictor.gain is not None:
        _require_scores(folder / FILE, predictor)
    return predictor


def _require_scores(path: Path, predictor: FittedPredictor) -> None:
    """Refuse task features that lack a source: nothing is filled in silently."""
    gain = predictor.gain
    assert gain is not None
    for name, scores in predictor.tasks.items():
        for kind in ("language_model", "retrieval"):
            missing = [s for s in gain.history.sources if s not in getattr(scores, kind)]
            if missing:
                raise InputError(
                    f"{path}: tasks.{name[:60]}.{kind}",
                    f"no score for {len(missing)} sources, the first is {missing[0]!r}",
                    "give a score for every source",
                )
