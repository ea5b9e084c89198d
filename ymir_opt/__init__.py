"""Ymir-opt: the optimisation-solver scheduling core for foundation-model fine-tuning jobs."""
