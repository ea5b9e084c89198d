"""What a group asks of the nodes, apart from who is in it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shape"]


@dataclass(frozen=True, order=True)
class Shape:
    """A demand for GPUs; columns with equal shapes are interchangeable for placement.

    Attributes
    ----------
    type : int
        GPU type row of the `Instance`.
    gpus : int
        Exact number of GPUs.
    level : int
        Lowest memory level that suffices (classes of a type are nested).
    selector : tuple of (label, value)
        Every node must match it.
    worker : int
        0 for one gang on the fewest nodes; otherwise the gang is ``gpus // worker`` workers with
        this many GPUs on one node each, on any nodes.
    whole : bool
        Whole nodes only (pipeline jobs): every GPU of each node.
    resident : int
        Foundation model row that must be resident on every GPU (a warm start), or -1.
    cpus_per_gpu : float
        CPUs taken on a node for each GPU there.
    host_gib_per_gpu : float
        Host memory taken on a node for each GPU there.
    """

    type: int
    gpus: int
    level: int = 0
    selector: tuple[tuple[str, str], ...] = ()
    worker: int = 0
    whole: bool = False
    resident: int = -1
    cpus_per_gpu: float = 0.0
    host_gib_per_gpu: float = 0.0
