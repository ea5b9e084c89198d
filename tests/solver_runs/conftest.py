"""Makes the scripts of ``solver_runs`` importable, as they are to each other."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "solver_runs"
if str(SCRIPTS) not in sys.path:
    sys.path.append(str(SCRIPTS))
