"""Samples to target from a partial learning curve."""
