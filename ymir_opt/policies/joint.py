"""What joint training of two jobs is estimated to take, from a view's tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.view import SnapshotView

__all__ = ["joint_finish_s", "pair_known"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def pair_known(view: SnapshotView, a: int, b: int) -> bool:
    """Say whether two waiting rows may be trained jointly: one model, no progress, ratios and speed known."""
    kinds = (int(view.kind[a]), int(view.kind[b]))
    if min(kinds) < 0 or view.key[a] < 0 or view.key[b] < 0:
        return False
    table = view.transfer
    if table.models[kinds[0]] != table.models[kinds[1]] or table.tasks[kinds[0]] == table.tasks[kinds[1]]:
        return False
    joint = (table.joint[kinds], table.joint[kinds[::-1]])
    return bool(joint[0] > 0 and joint[1] > 0 and _joint_key(view, a, b) >= 0)


def _joint_key(view: SnapshotView, a: int, b: int) -> int:
    model, batch = view.speed.names[int(view.key[a])]
    return view.speed.key_of(model, batch + view.speed.names[int(view.key[b])][1])


def joint_finish_s(
    view: SnapshotView, rows: tuple[int, int], counts: IntArray, seconds: FloatArray, *, new: bool = True
) -> FloatArray:
    """Return when each of two jobs is done when they are trained jointly, starting excluded.

    Each trains ratio x remaining samples at throughput(B) x own batch / B with B the sum of the batches; the
    first to finish leaves and the other goes on alone.

    Parameters
    ----------
    rows : (int, int)
    counts : int64[m]
        GPU counts.
    seconds : float64[K, G + 1]
        Seconds a sample by key and count (an estimate; inf unknown).
    new : bool
        False: the two are already trained jointly, so their remaining work is in that mode.

    Returns
    -------
    float64[2, m]
        inf where a speed is unknown.
    """
    a, b = rows
    table = view.transfer
    batch = np.array([view.speed.names[int(view.key[row])][1] for row in rows], dtype=np.float64)
    work = view.remaining[[a, b]].astype(np.float64)
    if new:
        ka, kb = int(view.kind[a]), int(view.kind[b])
        work = work * np.array([table.joint[ka, kb], table.joint[kb, ka]])
    capped = np.minimum(counts, view.speed.counts)
    together = seconds[_joint_key(view, a, b), capped]
    times = work[:, None] * together[None, :] * (batch.sum() / batch)[:, None]
    first = times.min(axis=0)
    alone = np.stack([seconds[int(view.key[row]), capped] for row in rows])
    share = np.divide(first, times, out=np.ones_like(times), where=np.isfinite(times) & (times > 0))
    left = work[:, None] * np.clip(1.0 - share, 0.0, 1.0)
    rest = np.where(left > 0, left * alone, 0.0)
    found: FloatArray = np.where(np.isfinite(times), first + rest, np.inf)
    return found
