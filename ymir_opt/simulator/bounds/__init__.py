"""Clairvoyant lower bounds on the mean job completion time; proofs are in ``docs/bounds.md``."""

from __future__ import annotations

from dataclasses import dataclass

from ymir_opt.simulator.bounds.instance import BoundInstance, bound_instance
from ymir_opt.simulator.bounds.lagrangian import SlotBound, SlotOptions, slot_price_bound
from ymir_opt.simulator.bounds.simple import fastest_bound, shortest_first_bound

__all__ = [
    "BoundInstance",
    "JctBound",
    "SlotBound",
    "SlotOptions",
    "bound_instance",
    "fastest_bound",
    "lower_bound",
    "shortest_first_bound",
    "slot_price_bound",
]


@dataclass(frozen=True)
class JctBound:
    """Lower bounds on the mean of completion minus submission, seconds.

    They hold for every schedule, even of one who knows the future, in which each job does all its own work:
    not for merged work, where transfer between jobs saves some of it.

    Attributes
    ----------
    fastest_s : float
        Every job alone on the cluster.
    shortest_first_s : float
        The cluster as one machine.
    slot_prices_s : float or None
        With prices of GPU-seconds; None: not computed.
    jobs : int
        Jobs that it is the mean of.
    detail : SlotBound or None
    """

    fastest_s: float
    shortest_first_s: float
    slot_prices_s: float | None
    jobs: int
    detail: SlotBound | None = None

    @property
    def mean_s(self) -> float:
        """Return the largest of them."""
        return max(self.fastest_s, self.shortest_first_s, self.slot_prices_s or 0.0)


def lower_bound(
    instance: BoundInstance, options: SlotOptions | None = None, *, quick: bool = False
) -> JctBound:
    """Return the bounds on the mean job completion time.

    Parameters
    ----------
    instance : BoundInstance
    options : SlotOptions, optional
    quick : bool
        Leave out the slot-price bound.
    """
    fastest, shortest = fastest_bound(instance), shortest_first_bound(instance)
    detail = None if quick else slot_price_bound(instance, max(fastest, shortest), options)
    return JctBound(
        fastest, shortest, None if detail is None else detail.mean_s, len(instance.submit_s), detail
    )
