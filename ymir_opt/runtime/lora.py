"""Several adapters in one pass: rows grouped by adapter, one batched product for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.adapters import Adapter

__all__ = ["LoraBank", "Segment", "batched_delta"]


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a batch that belong to one adapter.

    Attributes
    ----------
    adapter : Adapter
    rows : int
    length : int
        Tokens of the adapter's own inputs; the batch may be padded beyond them.
    part : int
        Which part of the step's rows this is (for dropout).
    """

    adapter: Adapter
    rows: int
    length: int
    part: int = 0


def batched_delta(
    x: torch.Tensor, factors: Sequence[tuple[torch.Tensor, torch.Tensor]], rows: Sequence[int]
) -> torch.Tensor:
    """Return each row's low-rank product with its own group's factors.

    Ranks are padded with zero columns and groups with zero rows, so that all groups are multiplied at
    once; padding adds exact zeros, and no group's numbers enter another's, not even a NaN.

    Parameters
    ----------
    x : torch.Tensor, shape (sum of rows, tokens, in)
    factors : sequence of (torch.Tensor, torch.Tensor)
        Shapes (in, r_k) and (r_k, out), in the precision of ``x``.
    rows : sequence of int
        Rows of each group, in order.

    Returns
    -------
    torch.Tensor, shape (sum of rows, tokens, out)
    """
    total, tokens, width = x.shape
    if len(rows) == 1:
        a, b = factors[0]
        return (x @ a) @ b
    rank = max(a.shape[1] for a, _ in factors)
    pad = torch.nn.functional.pad
    first = torch.stack([pad(a, (0, rank - a.shape[1])) for a, _ in factors])
    second = torch.stack([pad(b, (0, 0, 0, rank - b.shape[0])) for _, b in factors])
    most = max(rows)
    if min(rows) == most:
        grouped = x.reshape(len(rows), most * tokens, width)
        return (grouped @ first @ second).reshape(total, tokens, -1)
    parts = torch.split(x, list(rows))
    grouped = torch.stack([pad(part, (0, 0, 0, 0, 0, most - part.shape[0])) for part in parts])
    product = grouped.reshape(len(rows), most * tokens, width) @ first @ second
    product = product.reshape(len(rows), most, tokens, -1)
    return torch.cat([product[k, : rows[k]] for k in range(len(rows))])


def _mask(segment: Segment, generator: torch.Generator, tokens: int, width: int) -> torch.Tensor:
    keep = 1.0 - segment.adapter.spec.lora_dropout
    mask = torch.empty(segment.rows, segment.length, width, device=generator.device)
    mask.bernoulli_(keep, generator=generator).div_(keep)
    return torch.nn.functional.pad(mask, (0, 0, 0, tokens - segment.length), value=1.0)


class LoraBank:
    """Adds adapters to linear layers of a frozen backbone by forward hooks.

    Parameters
    ----------
    backbone : torch.nn.Module
    targets : sequence of str
        Last parts of the names of the layers that adapters change unless they say otherwise, such as
        ``query`` and ``value``; names that the model does not have are left out.

    Raises
    ------
    InputError
        If no linear layer has such a name.
    """

    def __init__(self, backbone: Any, targets: Sequence[str]) -> None:
        self._modules = {
            name: module for name, module in backbone.named_modules() if isinstance(module, torch.nn.Linear)
        }
        self._known = {name.rsplit(".", 1)[-1] for name in self._modules}
        self._handles: dict[str, Any] = {}
        self._segments: Sequence[Segment] = ()
        self._generators: Sequence[torch.Generator | None] = ()
        self.layers = self.layers_of([name for name in targets if name in self._known] or targets)

    def layers_of(self, targets: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return input and output width of each layer with one of the names, ready to be adapted.

        Raises
        ------
        InputError
            If a name is that of no linear layer.
        """
        missing = [name for name in targets if name not in self._known]
        if missing or not targets:
            raise InputError(
                "target_modules",
                f"{', '.join(missing) or 'none'}: no linear layer has that name",
                f"known: {', '.join(sorted(self._known))}",
            )
        found = {n: m for n, m in self._modules.items() if n.rsplit(".", 1)[-1] in targets}
        for name, module in found.items():
            if name not in self._handles:
                self._handles[name] = module.register_forward_hook(self._hook(name))
        return {name: (module.in_features, module.out_features) for name, module in found.items()}

    def _hook(self, layer: str) -> Any:
        def add(_module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor | None:
            if not any(layer in segment.adapter.a for segment in self._segments):
                return None
            return output + self._delta(layer, inputs[0]).to(output.dtype)

        return add

    def _delta(self, layer: str, x: torch.Tensor) -> torch.Tensor:
        rows = [segment.rows for segment in self._segments]
        if any(generator is not None for generator in self._generators):
            masks = [
                torch.ones(s.rows, x.shape[1], x.shape[2], device=x.device)
                if generator is None or layer not in s.adapter.a
                else _mask(s, generator, x.shape[1], x.shape[2])
                for s, generator in zip(self._segments, self._generators, strict=True)
            ]
            x = x * (masks[0] if len(masks) == 1 else torch.cat(masks)).to(x.dtype)
        return batched_delta(x, [self._factors(s.adapter, layer, x.dtype) for s in self._segments], rows)

    def _factors(self, adapter: Adapter, layer: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        if layer not in adapter.a:
            # an adapter without this layer adds nothing to its rows
            module = self._modules[layer]
            empty = torch.zeros(1, device=adapter.device, dtype=dtype)
            return empty.expand(module.in_features, 1), empty.expand(1, module.out_features)
        return adapter.a[layer].to(dtype), (adapter.b[layer] * adapter.spec.scale).to(dtype)

    @contextmanager
    def applied(self, segments: Sequence[Segment], *, training: bool) -> Iterator[None]:
        """Apply the segments' adapters to the passes inside the block, with dropout while training."""
        self._segments = tuple(segments)
        self._generators = [
            s.adapter.dropout_generator(s.part) if training and s.adapter.spec.lora_dropout > 0 else None
            for s in segments
        ]
        try:
            yield
        finally:
            self._segments, self._generators = (), ()

    def detach(self) -> None:
        """Remove the hooks: the backbone is as it was."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}
