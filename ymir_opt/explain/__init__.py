"""Reasons: why each job is where it is, in numbers with units."""
