"""Solvers of the integer model: one interface, several backends, chosen by name."""
