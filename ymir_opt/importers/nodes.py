"""Nodes of a snapshot from a cluster specification, and the memory of GPU types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import Node
from ymir_opt.simulator.cluster import NodeSpec

__all__ = ["MEMORY_GIB", "gpu_memory", "memory_options", "nodes_of", "product"]

MEMORY_GIB: Mapping[str, tuple[float, ...]] = {
    "A10": (24.0,),
    "A100": (40.0, 80.0),
    "A30": (24.0,),
    "A40": (48.0,),
    "B200": (180.0,),
    "GB200": (186.0,),
    "GH200": (96.0, 144.0),
    "H100": (80.0, 94.0),
    "H200": (141.0,),
    "K80": (12.0,),
    "L4": (24.0,),
    "L40S": (48.0,),
    "MI250": (64.0,),
    "MI300X": (192.0,),
    "P100": (12.0, 16.0),
    "T4": (16.0,),
    "V100": (16.0, 32.0),
}
"""Memory variants of GPU products (makers' data sheets; a K80 and an MI250 count as two GPUs)."""


def product(gpu_type: str) -> str | None:
    """Return the product that a GPU type's name contains (``nvidia_a100-sxm4-80gb`` -> A100), or None."""
    words = gpu_type.upper().replace("-", " ").replace("_", " ").replace(":", " ").split()
    found = [name for name in MEMORY_GIB if name in words]
    return max(found, key=len) if found else None


def gpu_memory(gpu_type: str, given: Mapping[str, float], at_least: float = 0.0) -> float:
    """Return the memory of a GPU type in GiB.

    Parameters
    ----------
    gpu_type : str
    given : mapping of str to float
        What the user said, by type; it wins.
    at_least : float
        Memory that measurements prove to be there: the smallest variant that has it is taken.

    Raises
    ------
    NotFoundError
        The type is not known and no figure was given.
    """
    if gpu_type in given:
        return given[gpu_type]
    name = product(gpu_type)
    if name is None:
        raise NotFoundError(
            f"GPU type {gpu_type[:60]}",
            "has an unknown memory",
            f"add --gpu-memory {gpu_type[:60]}=GIB",
        )
    fitting = [size for size in MEMORY_GIB[name] if size >= at_least]
    return fitting[0] if fitting else max(MEMORY_GIB[name][-1], at_least)


def memory_options(texts: tuple[str, ...]) -> dict[str, float]:
    """Return GiB by type from texts such as ``V100=32``.

    Raises
    ------
    InputError
        A text is not TYPE=GIB.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, figure = text.partition("=")
        try:
            size = float(figure)
        except ValueError:
            size = math.nan
        if not name or not math.isfinite(size) or size <= 0:
            raise InputError("--gpu-memory", f"{text[:60]!r} is not TYPE=GIB", "write it as V100=32")
        found[name] = size
    return found


def nodes_of(
    specs: Sequence[NodeSpec], given: Mapping[str, float], at_least: Mapping[str, float] | None = None
) -> tuple[Node, ...]:
    """Return nodes of a snapshot.

    Parameters
    ----------
    specs : sequence of NodeSpec
        As :func:`ymir_opt.simulator.cluster.parse_cluster` returns them.
    given, at_least : mapping of str to float
        See :func:`gpu_memory`, by GPU type.

    Raises
    ------
    InputError
        A type's memory is unknown, or is given for a type that the cluster has not.
    """
    floor = at_least or {}
    memory = {
        kind: gpu_memory(kind, given, floor.get(kind, 0.0))
        for kind in dict.fromkeys(spec.gpu_type for spec in specs)
    }
    for kind in given:
        if kind not in memory:
            raise InputError(
                "--gpu-memory", f"{kind[:60]!r} is no type of the cluster", f"types: {', '.join(memory)}"
            )
    return tuple(
        Node(id=spec.id, gpu_type=spec.gpu_type, gpus=spec.gpus, gpu_memory_gib=memory[spec.gpu_type])
        for spec in specs
    )
