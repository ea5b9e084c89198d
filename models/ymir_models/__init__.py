"""The learned answers: throughput, convergence, transfer, co-location, calibration."""
