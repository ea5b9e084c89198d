"""Fit pair models from Gavel, Titan and own profiles, and saturation models from own profiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ymir_models.colocation.data import GAVEL_TABLE, PairRows, gavel_pairs, profile_pairs, titan_pairs
from ymir_models.colocation.fit import fit_pairs
from ymir_models.colocation.model import PairModel
from ymir_models.colocation.saturation import profile_saturation
from ymir_models.evaluation import Row
from ymir_models.registry import Fitted, TooLittleError
from ymir_models.sources import describe, describe_profiles
from ymir_opt.domain.snapshot import Profiles

__all__ = ["KIND", "VERSION", "fit"]

KIND = "colocation"
VERSION = 1
FEWEST_PAIRS = 10


def fit(root: Path | None, profiles: Profiles | None) -> Fitted:
    """Fit one model for every set of measured pairs; sets are never pooled.

    Parameters
    ----------
    root : Path or None
        Folder that holds ``gavel``, and ``titan`` beside it.
    profiles : Profiles or None
        Own measurements.
    """
    sets: list[PairRows] = []
    data = []
    if root is not None:
        folder = root / "gavel"
        sets += gavel_pairs(folder)
        data.append(describe("gavel", folder, [folder / GAVEL_TABLE]))
        titan = root / "titan"
        if (titan / "lut").is_dir():
            found = titan_pairs(titan)
            sets += found
            files = [
                titan / "lut" / rows.gpu_type / f"{rows.name.removeprefix('titan ')}_{table}.csv"
                for rows in found
                for table in ("sharing", "placements")
            ]
            data.append(describe("titan", titan, files))
    saturation = []
    if profiles is not None:
        # own measurements are asked first
        sets = profile_pairs(profiles.colocation) + sets
        saturation = profile_saturation(profiles)
        data.append(describe_profiles(profiles))
    sets = [rows for rows in sets if rows.feasible.sum() >= FEWEST_PAIRS]
    models = [fit_pairs(rows) for rows in sets]
    if not models and not saturation:
        raise TooLittleError(
            KIND, f"no set has {FEWEST_PAIRS} measured pairs or 3 groups", "measure more, or name --data DIR"
        )
    return Fitted(
        kind=KIND,
        version=VERSION,
        parameters={
            "pairs": [model.to_json() for model in models],
            "saturation": [model.to_json() for model in saturation],
        },
        source={"data": data},
        purpose="Speed of a job that shares GPUs, over its speed alone on them: two processes on one GPU "
        "(gpu_share), or several adapters on one frozen backbone in one process (colocate).",
        method="gpu_share: a Gaussian process over (own program and batch, partner's), its kernel parameters "
        "chosen by leave-pair-out error in closed form, one model for every set of measurements and GPU "
        "type; a logistic model of additive loads says which pairs do not run. colocate: a saturation curve "
        "over the rows on the device and the number of adapters, from own profiles. Intervals are conformal, "
        "scaled by the error typical of the two programs.",
        heldout=tuple(_heldout(rows, model) for rows, model in zip(sets, models, strict=True)),
        limits=(
            "Abstains for programs never measured, for two programs never measured together, for batches "
            "more than one doubling outside the measured ones, for more than two processes, for more than "
            "one GPU in gpu_share, and where the pair probably runs out of memory.",
            "About a quarter of the pairs that cannot run are not recognised: known memory decides first.",
            "Gavel's V100 pairs are irregular: the mean error is twice the median.",
            "colocate: no public data; without own profiles there is no model and no answer.",
        ),
    )


def _heldout(rows: PairRows, model: PairModel) -> Row:
    """Return the calibrated widths: what the model itself knows of its error."""
    scale = model.scale[~np.isnan(model.scale)]
    return Row(
        KIND,
        "half widths of the intervals, leave pair out (known) and leave key out (new batch)",
        f"{rows.name} on {rows.gpu_type}",
        int(rows.feasible.sum()),
        {
            "typical error": float(np.median(scale)),
            "known, 80 %": float(np.median(scale) * model.radius[0, 0]),
            "known, 95 %": float(np.median(scale) * model.radius[0, 1]),
            "new, 80 %": float(np.median(scale) * model.radius[1, 0]),
            "new, 95 %": float(np.median(scale) * model.radius[1, 1]),
        },
    )
