"""Scores that guess transfer from a fraction of the work of measuring it."""
