"""On how many nodes a shape must lie, and how it may be split over them."""

from __future__ import annotations

from ymir_opt.formulation.parts import MAX_SPLITS, Splits, fewest_nodes, splits

__all__ = ["MAX_SPLITS", "Splits", "fewest_nodes", "splits"]
