"""The learned answers: throughput, convergence, transfer, co-location, calibration.

`FITTED` is the folder of the parameters that are shipped, each with a card; `solve --models` takes it.
"""

from pathlib import Path

__all__ = ["FITTED"]

FITTED = Path(__file__).parent / "fitted"
