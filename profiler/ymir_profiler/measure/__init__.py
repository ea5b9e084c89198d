"""Measurements: each knows its key, its likely cost, and how it is taken."""
