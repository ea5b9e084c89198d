"""Trace-driven what-if over time: engine, workloads, metrics, bounds."""
