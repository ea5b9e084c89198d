"""Seeds that depend on names alone, so that a run does not depend on what else runs beside it."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(*parts: str | int) -> int:
    """Return a seed below 2**63 from the parts; the same parts give the same seed everywhere.

    Parameters
    ----------
    *parts : str or int
        For example a run's seed, what the randomness is for, and a step number.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
