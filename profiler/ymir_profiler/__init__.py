"""Measures throughput, memory, switch cost and pairwise transferability of real tasks."""
