"""Which groups are worth considering: enumeration, expansion into columns, pruning."""

from ymir_opt.candidates.generate import Generator, Pool, generate
from ymir_opt.candidates.limits import PoolLimits

__all__ = ["Generator", "Pool", "PoolLimits", "generate"]
