"""HTML that is escaped by construction, and the skeleton of a self-contained page.

Every text that enters through :func:`el` is escaped; only an :class:`Html` value, which comes from these
functions, passes unchanged. A page loads nothing: styles, scripts and data are inline, and its content
security policy allows no connection and no script but the page's own, named by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

__all__ = ["Html", "asset", "clean", "data_block", "el", "join", "page", "script_hash"]

_HARMLESS = re.compile(r"[A-Za-z0-9 .,:;#_+/()%·×–−≥-]*\Z").match
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


Child = str | int | float | None | Iterable[Any]


def clean(text: str) -> str:
    """Return a text without what a page must not hold.

    Control characters and halves of surrogate pairs become U+FFFD; characters that reorder their
    neighbours on the screen (bidirectional controls) are shown as their code points.
    """
    if text.isascii() and text.isprintable():
        return text
    out = []
    for ch in text:
        kind = unicodedata.category(ch)
        if kind == "Cf" and unicodedata.bidirectional(ch) in _BIDI:
            out.append(f"[U+{ord(ch):04X}]")
        elif kind == "Cs" or (kind == "Cc" and ch not in "\n\t"):
            out.append("�")
        else:
            out.append(ch)
    return "".join(out)


_BIDI = frozenset({"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"})


def _child(value: Child) -> str:
    if isinstance(value, Html):
        return value
    if isinstance(value, str):
        return value if _HARMLESS(value) else html.escape(clean(value), quote=False)
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    return "".join(_child(item) for item in value)


def el(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element; texts and attribute values are escaped.

    Parameters
    ----------
    tag : str
    *children : str, number, None or iterables of them
        A plain string is text; :class:`Html` is markup.
    **attributes
        A trailing underscore is dropped (``class_``), other underscores become hyphens (``data_job``).
        True is a bare attribute; False and None leave it out.
    """
    parts = [f"<{tag}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(f" {label}")
        else:
            text = str(value)
            parts.append(f' {label}="{text if _HARMLESS(text) else html.escape(clean(text))}"')
    if tag in _VOID:
        return Html("".join(parts) + ">")
    return Html("".join(parts) + f">{_child(children)}</{tag}>")


def join(items: Iterable[Child]) -> Html:
    """Return several children as one."""
    return Html("".join(_child(item) for item in items))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return clean(value) if isinstance(value, str) else value


def data_block(identity: str, data: Any) -> Html:
    """Return JSON for the page's script to read; nothing in it can end the element.

    Figures that JSON does not know (nan, infinities) become null.
    """
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{html.escape(identity)}">{text}</script>')


def asset(name: str) -> str:
    """Return a text file of this package's ``assets`` folder."""
    return (files("ymir_opt.report") / "assets" / name).read_text(encoding="utf-8")


def script_hash(text: str) -> str:
    """Return a script's or style's hash as a content security policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def page(
    title: str,
    body: Child,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    inline_styles: bool = False,
) -> str:
    """Return a complete page that needs nothing but itself.

    Parameters
    ----------
    title : str
    body : Html
    styles, scripts : sequence of str
        Their texts; allowed by their hashes.
    data : mapping, optional
        Element id -> JSON-able value, see :func:`data_block`.
    inline_styles : bool
        Allow style attributes and elements that a script adds (plotly does both).
    """
    for text in (*styles, *scripts):
        if "</" in text and ("</script" in text.lower() or "</style" in text.lower()):
            raise ValueError("a script or style contains its own end tag")
    style_source = "'unsafe-inline'" if inline_styles else " ".join(map(script_hash, styles)) or "'none'"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {style_source}",
            f"script-src {' '.join(map(script_hash, scripts)) or chr(39) + 'none' + chr(39)}",
            "img-src data: blob:" if inline_styles else "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    head = join(
        (
            el("meta", charset="utf-8"),
            el("meta", http_equiv="Content-Security-Policy", content=policy),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("meta", name="referrer", content="no-referrer"),
            el("link", rel="icon", href="data:,"),
            el("title", title),
            *(Html(f"<style>{text}</style>") for text in styles),
        )
    )
    end = join(
        (
            *(data_block(key, value) for key, value in (data or {}).items()),
            *(Html(f"<script>{text}</script>") for text in scripts),
        )
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{_child(body)}{end}</body></html>\n'
