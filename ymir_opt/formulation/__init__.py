"""The mathematics of one scheduling round, solver-neutral: instance, costs, columns, constraints."""
