"""Small charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Sequence

from ymir_opt.report.html import Html, el

__all__ = ["bars"]


def bars(rows: Sequence[tuple[str, float, str]]) -> Html:
    """Return horizontal bars from a common zero line.

    Parameters
    ----------
    rows : sequence of (str, float, str)
        Label, value and the value as text.
    """
    values = [value for _, value, _ in rows]
    low, high = min([0.0, *values]), max([0.0, *values])
    span = (high - low) or 1.0
    zero = -100 * low / span
    lines = []
    for label, value, text in rows:
        width = 100 * abs(value) / span
        bar = el(
            "svg",
            el("rect", x="0", y="0", width="100", height="10", class_="rail"),
            el(
                "rect",
                x=f"{zero if value >= 0 else zero - width:.3f}",
                y="0",
                width=f"{width:.3f}",
                height="10",
                class_="fill" if value >= 0 else "fill gain",
            ),
            viewBox="0 0 100 10",
            preserveAspectRatio="none",
            aria_hidden="true",
        )
        lines.append(
            el(
                "div",
                el("span", label.replace("_", " "), class_="label"),
                bar,
                el("span", text, class_="num"),
                class_="bar",
            )
        )
    return el("div", lines, class_="bars")
