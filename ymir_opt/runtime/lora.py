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
    x: torch.Tensor,
    factors: Sequence[tuple[torch.Tensor, torch.Tensor]],
    rows: Sequence[int],
    scales: Sequence[float] | None = None,
    base: torch.Tensor | None = None,
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
    scales : sequence of float, optional
        What each group's product is multiplied by; 1 if missing.
    base : torch.Tensor, optional, shape (sum of rows, tokens, out)
        What the products are added to; 0 if missing.

    Returns
    -------
    torch.Tensor, shape (sum of rows, tokens, out)
    """
    first, second = _stacked(factors)
    return _product(x, first, second, rows, [1.0] * len(rows) if scales is None else scales, base)


def _product(
    x: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    rows: Sequence[int],
    scales: Sequence[float],
    base: torch.Tensor | None,
) -> torch.Tensor:
    """Return ``batched_delta`` with the factors of all groups stacked, shapes (K, in, r) and (K, r, out)."""
    total, tokens, width = x.shape
    factor: float | torch.Tensor = scales[0]
    if len(set(scales)) > 1:
        factor = torch.tensor(scales, dtype=x.dtype, device=x.device)[:, None, None]
    most = max(rows)
    if min(rows) == most:
        low = torch.bmm(x.reshape(len(rows), most * tokens, width), first) * factor
        if base is None:
            return torch.bmm(low, second).reshape(total, tokens, -1)
        grouped = base.reshape(len(rows), most * tokens, -1)
        return torch.baddbmm(grouped, low, second).reshape(total, tokens, -1)
    pad = torch.nn.functional.pad
    parts = torch.split(x, list(rows))
    padded = torch.stack([pad(part, (0, 0, 0, 0, 0, most - part.shape[0])) for part in parts])
    product = torch.bmm(torch.bmm(padded.reshape(len(rows), most * tokens, width), first) * factor, second)
    product = product.reshape(len(rows), most, tokens, -1)
    delta = torch.cat([product[k, : rows[k]] for k in range(len(rows))])
    return delta if base is None else base + delta


def _stacked(factors: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all first and all second factors, ranks padded with zeros where they differ."""
    ranks = {a.shape[1] for a, _ in factors}
    if len(ranks) == 1:
        return torch.stack([a for a, _ in factors]), torch.stack([b for _, b in factors])
    rank, pad = max(ranks), torch.nn.functional.pad
    first = torch.stack([pad(a, (0, rank - a.shape[1])) for a, _ in factors])
    return first, torch.stack([pad(b, (0, 0, 0, rank - b.shape[0])) for _, b in factors])


class _Pass:
    """What the layers of one pass share: every adapter's factors, and the dropout masks."""

    def __init__(self, segments: Sequence[Segment], dtype: torch.dtype, *, training: bool) -> None:
        self.segments = segments
        self.rows = [segment.rows for segment in segments]
        self.scales = [segment.adapter.spec.scale for segment in segments]
        self.dropout = training and any(s.adapter.spec.lora_dropout > 0 for s in segments)
        self._masks: dict[int, tuple[dict[str, int], torch.Tensor]] = {}
        adapters = [segment.adapter for segment in segments]
        self.names = {layer for adapter in adapters for layer in adapter.layers}
        lead = adapters[0]
        self._factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        if all(adapter.shape == lead.shape for adapter in adapters):
            # laid out alike: all layers are stacked and, backwards, gathered by one operation
            stacked = torch.stack([adapter.factors for adapter in adapters]).to(dtype)
            parts = torch.split(stacked, lead.sizes, dim=1)
            for i, (layer, (width_in, width_out)) in enumerate(lead.layers.items()):
                a = parts[2 * i].view(len(adapters), width_in, lead.spec.r)
                self._factors[layer] = a, parts[2 * i + 1].view(len(adapters), lead.spec.r, width_out)
            return
        widths = {layer: w for adapter in adapters for layer, w in adapter.layers.items()}
        by_adapter = [adapter.by_layer() for adapter in adapters]
        empty = torch.zeros(1, device=lead.device, dtype=dtype)
        for layer, (width_in, width_out) in widths.items():
            # an adapter without this layer adds nothing to its rows
            nothing = (empty.expand(width_in, 1), empty.expand(1, width_out))
            chosen = [
                (a[layer].to(dtype), b[layer].to(dtype)) if layer in a else nothing for a, b in by_adapter
            ]
            self._factors[layer] = _stacked(chosen)

    def added(self, layer: str, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with the adapters' products."""
        if self.dropout:
            x = x * self._mask(layer, x).to(x.dtype)
        first, second = self._factors[layer]
        if output.dtype == x.dtype:
            return _product(x, first, second, self.rows, self.scales, output)
        return output + _product(x, first, second, self.rows, self.scales, None).to(output.dtype)

    def _mask(self, layer: str, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[2]
        if width not in self._masks:
            self._masks[width] = self._draw(x)
        index, masks = self._masks[width]
        return masks[index[layer]]

    def _draw(self, x: torch.Tensor) -> tuple[dict[str, int], torch.Tensor]:
        """Draw the masks of all layers of one width at once, each adapter's from its own randomness."""
        total, tokens, width = x.shape
        index: dict[str, int] = {}
        for segment in self.segments:
            for layer, (width_in, _) in segment.adapter.layers.items():
                if width_in == width:
                    index.setdefault(layer, len(index))
        masks = torch.ones(len(index), total, tokens, width, device=x.device)
        start = 0
        for segment in self.segments:
            keep = 1.0 - segment.adapter.spec.lora_dropout
            own = [index[layer] for layer, (w, _) in segment.adapter.layers.items() if w == width]
            if keep < 1 and own:
                drawn = torch.empty(len(own), segment.rows, segment.length, width, device=x.device)
                generator = segment.adapter.dropout_generator(width, segment.part)
                drawn.bernoulli_(keep, generator=generator).div_(keep)
                end = start + segment.rows
                if own == list(range(len(index))):
                    masks[:, start:end, : segment.length] = drawn
                else:
                    masks[own, start:end, : segment.length] = drawn
            start += segment.rows
        return index, masks


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
        self._dtype = next(backbone.parameters()).dtype
        self._known = {name.rsplit(".", 1)[-1] for name in self._modules}
        self._handles: dict[str, Any] = {}
        self._pass: _Pass | None = None
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
            if self._pass is None or layer not in self._pass.names:
                return None
            return self._pass.added(layer, inputs[0], output)

        return add

    @contextmanager
    def applied(self, segments: Sequence[Segment], *, training: bool) -> Iterator[None]:
        """Apply the segments' adapters to the passes inside the block, with dropout while training."""
        self._pass = _Pass(segments, self._dtype, training=training) if segments else None
        try:
            yield
        finally:
            self._pass = None

    def detach(self) -> None:
        """Remove the hooks: the backbone is as it was."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}
