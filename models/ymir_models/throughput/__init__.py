"""Step times of one foundation model on one GPU type: a physical model with residual correction."""
