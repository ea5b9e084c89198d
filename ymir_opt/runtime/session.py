"""The runtime: a frozen backbone, adapters that come and go, one step for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.runtime.adapters import Adapter, AdapterSpec
from ymir_opt.runtime.lora import LoraBank, Segment

__all__ = ["Inputs", "Result", "Rows", "Runtime", "pooled"]

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """What one adapter trains on in one step.

    Attributes
    ----------
    adapter, head : str
        Names of the adapter and of its head (the task).
    inputs : mapping of str to torch.Tensor
        The backbone's inputs, rows first, such as ``input_ids`` and ``attention_mask``.
    labels : torch.Tensor, shape (rows,)
    weight : float
        Share of the step's loss, where its rows are worked through in several passes.
    part : int
        Which of these passes this is.
    """

    adapter: str
    head: str
    inputs: Inputs
    labels: torch.Tensor
    weight: float = 1.0
    part: int = 0


@dataclass(frozen=True)
class Result:
    """The outcome of one adapter's rows: mean loss, correct rows, and whether it was usable.

    ``updated`` is False where the loss or a gradient was not finite: that adapter kept its weights.
    """

    loss: float
    correct: int
    updated: bool


def pooled(hidden: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Return the mean over the tokens that are not padding, in float32.

    Parameters
    ----------
    hidden : torch.Tensor, shape (rows, tokens, width)
    inputs : mapping
        With ``attention_mask`` of shape (rows, tokens), if the model takes one.

    Returns
    -------
    torch.Tensor, shape (rows, width)
    """
    hidden = hidden.float()
    mask = inputs.get("attention_mask")
    if mask is None:
        return hidden.mean(dim=1)
    weight = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def _merged(parts: Sequence[Inputs]) -> Inputs:
    """Return several inputs as one batch, padded with zeros to the longest."""
    if len(parts) == 1:
        return parts[0]
    merged = {}
    for key in parts[0]:
        tensors = [part[key] for part in parts]
        if tensors[0].dim() == 2:
            longest = max(t.shape[1] for t in tensors)
            tensors = [torch.nn.functional.pad(t, (0, longest - t.shape[1])) for t in tensors]
        merged[key] = torch.cat(tensors)
    return merged


def _tokens(inputs: Inputs) -> int | None:
    ids = inputs.get("input_ids")
    return None if ids is None else int(ids.shape[1])


class Runtime:
    """One frozen backbone shared by any number of adapters.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers base model; its weights are frozen and it stays in evaluation mode, so that the
        only dropout is the adapters' own and a row's gradient does not depend on its neighbours.
    hidden : int
        Width of its hidden states.
    targets : sequence of str
        Names of the layers that adapters change.
    """

    def __init__(self, model: Any, hidden: int, targets: Sequence[str]) -> None:
        self.model = model
        self.hidden = hidden
        self.adapters: dict[str, Adapter] = {}
        model.requires_grad_(False)
        model.eval()
        self.device: torch.device = next(model.parameters()).device
        self._bank = LoraBank(model, targets)

    @property
    def layers(self) -> Mapping[str, tuple[int, int]]:
        """Input and output width of each adapted layer."""
        return self._bank.layers

    def layers_of(self, targets: Sequence[str] | None) -> Mapping[str, tuple[int, int]]:
        """Return the widths of the layers with these names (None: the usual ones); raises `InputError`."""
        return self.layers if targets is None else self._bank.layers_of(targets)

    def add(self, name: str, spec: AdapterSpec, targets: Sequence[str] | None = None) -> Adapter:
        """Add a new adapter on the layers with these names; one of the same name is replaced."""
        adapter = Adapter(name, spec, self.layers_of(targets), self.hidden, self.device)
        self.adapters[name] = adapter
        return adapter

    def remove(self, name: str) -> None:
        """Forget an adapter; the backbone stays loaded."""
        self.adapters.pop(name, None)

    def close(self) -> None:
        """Give the backbone back without hooks or adapters."""
        self._bank.detach()
        self.adapters.clear()

    def _adapter(self, name: str) -> Adapter:
        if name not in self.adapters:
            raise NotFoundError("adapter", f"{name!r} is not loaded", nearest(name, set(self.adapters)))
        return self.adapters[name]

    def _grouped(self, rows: Sequence[Rows]) -> tuple[list[Rows], list[Segment]]:
        by_adapter: dict[str, list[Rows]] = {}
        for part in rows:
            by_adapter.setdefault(part.adapter, []).append(part)
        ordered: list[Rows] = []
        segments = []
        for name, parts in by_adapter.items():
            adapter = self._adapter(name)
            for part in parts:
                if part.head not in adapter.heads:
                    raise NotFoundError(
                        f"adapter {name}",
                        f"has no head {part.head!r}",
                        nearest(part.head, set(adapter.heads)),
                    )
                if len(part.labels) == 0:
                    raise InputError(f"adapter {name}", "was given no rows", "leave it out of the step")
            length = max((_tokens(part.inputs) or 0) for part in parts)
            count = sum(len(part.labels) for part in parts)
            segments.append(Segment(adapter, count, length, parts[0].part))
            ordered.extend(parts)
        return ordered, segments

    def _hidden(self, inputs: Inputs, segments: Sequence[Segment], *, training: bool) -> torch.Tensor:
        # images have no token axis of their own: the mask then spans what the backbone makes of them
        tokens = _tokens(inputs)
        if tokens is None:
            tokens = self._image_tokens(inputs)
            segments = [Segment(s.adapter, s.rows, tokens, s.part) for s in segments]
        with self._bank.applied(segments, training=training):
            output = self.model(**inputs)
        return pooled(output.last_hidden_state, inputs)

    def _image_tokens(self, inputs: Inputs) -> int:
        pixels = inputs["pixel_values"]
        patch = int(self.model.config.patch_size)
        return 1 + (int(pixels.shape[-1]) // patch) * (int(pixels.shape[-2]) // patch)

    def step(self, rows: Sequence[Rows]) -> list[Result]:
        """Train every named adapter on its rows, in one forward and one backward pass.

        Each adapter's loss is the sum over its heads of the mean cross-entropy; its gradients, clipping,
        optimiser and dropout are its own, so that its weights afterwards are those of training alone.

        Parameters
        ----------
        rows : sequence of Rows
            Several entries may name the same adapter (joint training).

        Returns
        -------
        list of Result
            In the order given.

        Raises
        ------
        InputError
            For an unknown adapter or head, or no rows.
        """
        results = self.accumulate(rows)
        updated = {
            name: self.update(
                name, usable=all(r.updated for p, r in zip(rows, results, strict=True) if p.adapter == name)
            )
            for name in dict.fromkeys(part.adapter for part in rows)
        }
        return [
            Result(result.loss, result.correct, updated[part.adapter])
            for part, result in zip(rows, results, strict=True)
        ]

    def accumulate(self, rows: Sequence[Rows]) -> list[Result]:
        """Add the gradients of one pass to what the adapters have; change no weight.

        ``updated`` of a result says whether its adapter's losses were finite; where one is not, that
        adapter gets no gradients from this pass.
        """
        ordered, segments = self._grouped(rows)
        losses, figures = self._losses(ordered, segments)
        values = torch.stack([loss.detach() for loss in losses]).tolist()
        finite = {part.adapter: True for part in ordered}
        for part, value in zip(ordered, values, strict=True):
            finite[part.adapter] &= math.isfinite(value)
        usable = [loss * p.weight for loss, p in zip(losses, ordered, strict=True) if finite[p.adapter]]
        if usable:
            # the sum's gradient with respect to one adapter is that of its own loss
            torch.stack(usable).sum().backward()
        found = {
            id(part): Result(value, correct, finite[part.adapter])
            for part, value, correct in zip(ordered, values, figures, strict=True)
        }
        return [found[id(part)] for part in rows]

    def update(self, adapter: str, *, usable: bool = True) -> bool:
        """End an adapter's step: change its weights if every pass was usable and the gradients are finite."""
        chosen = self._adapter(adapter)
        if usable:
            return chosen.update()
        chosen.drop_gradients()
        chosen.steps += 1
        return False

    def _losses(
        self, ordered: Sequence[Rows], segments: Sequence[Segment]
    ) -> tuple[list[torch.Tensor], list[int]]:
        hidden = self._hidden(_merged([part.inputs for part in ordered]), segments, training=True)
        losses, correct = [], []
        for part, own in zip(ordered, torch.split(hidden, [len(p.labels) for p in ordered]), strict=True):
            head = self.adapters[part.adapter].heads[part.head]
            logits = own @ head.weight.T + head.bias
            losses.append(torch.nn.functional.cross_entropy(logits, part.labels))
            correct.append(int((logits.detach().argmax(dim=1) == part.labels).sum()))
        return losses, correct

    def gradients(self, rows: Sequence[Rows]) -> dict[str, dict[str, torch.Tensor]]:
        """Return each adapter's gradients on its rows, changing nothing (dropout as in the next step)."""
        ordered, segments = self._grouped(rows)
        losses, _ = self._losses(ordered, segments)
        torch.stack(losses).sum().backward()
        found = {}
        for segment in segments:
            adapter = segment.adapter
            found[adapter.name] = {name: g.clone() for name, g in adapter.named_gradients()}
            adapter.drop_gradients()
        return found

    def features(self, inputs: Inputs, adapter: str | None = None) -> torch.Tensor:
        """Return pooled states (rows, hidden) with an adapter, or of the bare backbone; no gradients."""
        rows = len(next(iter(inputs.values())))
        segments = [] if adapter is None else [Segment(self._adapter(adapter), rows, _tokens(inputs) or 0)]
        with torch.no_grad():
            return self._hidden(inputs, segments, training=False)

    def logits(self, inputs: Inputs, adapter: str, head: str) -> torch.Tensor:
        """Return class scores (rows, classes); no dropout, no gradients."""
        weights = self._adapter(adapter).heads[head]
        with torch.no_grad():
            return self.features(inputs, adapter) @ weights.weight.T + weights.bias
