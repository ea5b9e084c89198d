"""Scheduling policies behind one protocol: ours and the baselines of the literature."""
