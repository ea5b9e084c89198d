"""What a page in the browser complained about."""

from __future__ import annotations

from typing import Any


def console(driver: Any) -> list[str]:
    """Return the console's errors and warnings since the last call."""
    return [
        entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]
