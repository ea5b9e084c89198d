"""All fitted models of a folder behind one face: what `solve --models DIR` asks where no row answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ymir_models.artefact import Artefact, read_artefact
from ymir_models.colocation.model import PairModel
from ymir_models.colocation.saturation import SaturationModel
from ymir_models.throughput.model import StepModel
from ymir_opt.domain.errors import NotFoundError
from ymir_opt.domain.snapshot import Mode
from ymir_opt.estimates.protocols import Colocation, MemberKey, ThroughputKey, WorkRatio

__all__ = ["FittedPredictor", "load"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

VERSIONS = {"throughput": 1, "colocation": 1}


class FittedPredictor:
    """Answers from fitted models; NaN or None where they abstain.

    Parameters
    ----------
    artefacts : mapping of str to Artefact
        By kind; a kind that is absent is abstained from.

    Attributes
    ----------
    name, version, sha256 : str
        What a plan records of its estimates; the hash covers every artefact.
    """

    def __init__(self, artefacts: dict[str, Artefact]) -> None:
        self.name = "fitted"
        self.version = "+".join(f"{kind}/{artefacts[kind].version}" for kind in sorted(artefacts))
        joined = "".join(artefacts[kind].sha256 for kind in sorted(artefacts))
        self.sha256 = hashlib.sha256(joined.encode()).hexdigest()
        self.steps: dict[tuple[ThroughputKey, str], StepModel] = {}
        self.pairs: dict[str, list[PairModel]] = {}
        self.saturation: dict[tuple[ThroughputKey, str], SaturationModel] = {}
        if "throughput" in artefacts:
            for part in artefacts["throughput"].fields().parts("models"):
                step = StepModel.from_fields(part)
                key = ThroughputKey(step.foundation_model, step.peft_type, step.config)
                self.steps[key, step.gpu_type] = step
        if "colocation" in artefacts:
            fields = artefacts["colocation"].fields()
            for part in fields.parts("pairs"):
                pair = PairModel.from_fields(part)
                self.pairs.setdefault(pair.gpu_type, []).append(pair)
            for part in fields.parts("saturation"):
                model = SaturationModel.from_fields(part)
                self.saturation[model.key, model.gpu_type] = model

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
        rate = model.samples_per_s(batch, gpus)
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

    def warm_start(self, foundation_model: str, source: str, target: str) -> WorkRatio | None:
        """Return the work ratio of ``target`` started from ``source``'s weights, or None."""
        return None

    def joint(self, foundation_model: str, others: Sequence[str], target: str) -> WorkRatio | None:
        """Return the work ratio of ``target`` trained together with ``others``, or None."""
        return None


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
    if not artefacts:
        raise NotFoundError(str(folder), "holds no fitted model", "write one with `ymir-plan fit -o DIR`")
    return FittedPredictor(artefacts)
