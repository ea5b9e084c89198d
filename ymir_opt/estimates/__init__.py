"""How fast, how long, what if merged, how sure: Protocols, and answers from a snapshot's rows."""

from ymir_opt.estimates.profile import Estimates
from ymir_opt.estimates.protocols import Colocation, MemberKey, Predictor, ThroughputKey, WorkRatio

__all__ = ["Colocation", "Estimates", "MemberKey", "Predictor", "ThroughputKey", "WorkRatio"]
