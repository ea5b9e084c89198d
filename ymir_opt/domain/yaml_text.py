"""YAML in, plain values out: a small, safe part of YAML 1.2 with limits.

Anchors, aliases and tags are refused, so that no document can grow beyond its own size or make objects.
Scalars follow YAML 1.2's core schema: ``no`` and ``on`` are texts, ``2e-4`` is a number.
"""

from __future__ import annotations

import re
from typing import Any

from ymir_opt.domain.base import short
from ymir_opt.domain.errors import InputError

__all__ = ["MAX_DEPTH", "MAX_TEXT_BYTES", "load_yaml"]

MAX_TEXT_BYTES = 64 << 10
MAX_DEPTH = 8
MAX_NODES = 4000

_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"^(?:true|false)$", "tf"),
    ("null", r"^(?:~|null|)$", "~n"),
    ("int", r"^[-+]?[0-9]{1,19}$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
)


def load_yaml(text: bytes, name: str) -> dict[str, Any]:
    """Return the mapping that a YAML document holds.

    Parameters
    ----------
    text : bytes
        At most 64 KiB, UTF-8.
    name : str
        What to call the document in an error.

    Raises
    ------
    InputError
        It is too large or too deep, is not YAML, or uses anchors, aliases, tags or a key twice.
    """
    import yaml

    if len(text) > MAX_TEXT_BYTES:
        raise InputError(name, f"{len(text)} bytes are more than {MAX_TEXT_BYTES}", "shorten the request")
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    try:
        _within_limits(yaml.parse(decoded, Loader=yaml.SafeLoader), name)
        loader = _loader()(decoded)
        try:
            loaded = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = name if mark is None else f"{name}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(place, f"is not valid YAML: {str(problem)[:120]}", "correct the line") from None
    except (ValueError, RecursionError) as error:
        raise InputError(name, f"is not valid YAML: {str(error)[:120]}", "correct the value") from None
    if not isinstance(loaded, dict):
        raise InputError(name, "is not a mapping of fields", "begin with `schema: ymir.job/1`")
    return loaded


def _within_limits(events: Any, name: str) -> None:
    """Refuse what could grow: checked event by event, before anything is built."""
    import yaml

    depth = nodes = documents = 0
    for event in events:
        line = f"{name}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise InputError(line, "uses an anchor or alias", "write the value out")
        if getattr(event, "tag", None) is not None:
            raise InputError(line, f"uses the tag {short(event.tag)}", "leave tags out")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise InputError(line, "a second document begins", "put one job into a file")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise InputError(line, f"is nested deeper than {MAX_DEPTH} levels", "flatten the value")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        nodes += isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if nodes > MAX_NODES:
            raise InputError(line, f"has more than {MAX_NODES} values", "shorten the request")


def _loader() -> Any:
    """Return a SafeLoader with YAML 1.2's scalars that refuses a key given twice."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 -- the base class's own design

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:str":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {short(key.value)} is not a text", key.start_mark
                    )
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {short(key.value)} is given twice", key.start_mark
                    )
                seen.add(key.value)
            found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return found

    for tag, pattern, first in _SCALARS:
        letters = [*first, ""] if tag == "null" else list(first)
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), letters)
    return Loader
