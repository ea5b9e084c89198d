"""From measurements to figures with intervals; nothing here trains."""
