"""Model cards: what a fitted model is for, where it came from, how good it is, when not to trust it."""

from __future__ import annotations

from ymir_models.evaluation import markdown
from ymir_models.registry import Fitted

__all__ = ["render_card"]


def render_card(fitted: Fitted, sha256: str) -> str:
    """Return the card in Markdown (sections after Mitchell et al. 2019, Model Cards)."""
    lines = [
        f"# {fitted.kind}, version {fitted.version}",
        "",
        f"Written by `ymir-plan fit {fitted.kind}`; parameters `{fitted.kind}.json`, SHA-256 `{sha256}`.",
        "",
        "## Purpose",
        "",
        fitted.purpose,
        "",
        "## Method",
        "",
        fitted.method,
        "",
        "## Training data",
        "",
        "| data | from | licence | files | SHA-256 |",
        "|---|---|---|---|---|",
    ]
    for item in fitted.source["data"]:
        lines.append(
            f"| {item['name']} | {item['upstream']} | {item['licence'] or '-'} | {item['files']} "
            f"| `{item['sha256'][:16]}` |"
        )
    lines += ["", "## Held-out figures", ""]
    lines.append(markdown(fitted.heldout) if fitted.heldout else "None.\n")
    lines += ["## Limits", ""]
    lines += [f"* {limit}" for limit in fitted.limits]
    return "\n".join(lines).rstrip() + "\n"
