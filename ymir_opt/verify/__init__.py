"""Proves the invariants of a plan; knows no solver and no candidate generator.

One module an invariant: `membership` (1), `devices` (2), `gangs` (3), `merging` (4), `limits`, `quotas`
and `priority` (5), `evictions` (6), `cost` (7), `reasons` (8). Only `cost` asks the formulation, for what
a group is worth; the others read the domain and, for memory, the estimates.
"""

from ymir_opt.verify.checker import check
from ymir_opt.verify.violation import Violation

__all__ = ["Violation", "check"]
