"""The fine-tuning runtime: one frozen foundation model, many adapters, one batched step.

Nothing is imported with this package; take what you need from its modules:

* :mod:`ymir_opt.runtime.backbone`: load, truncate or random-initialise a foundation model; tokenise.
* :mod:`ymir_opt.runtime.adapters`: a LoRA adapter with its heads, its optimiser and its own randomness.
* :mod:`ymir_opt.runtime.lora`: adapters of different rank applied to one batch by one batched product.
* :mod:`ymir_opt.runtime.session`: :class:`~ymir_opt.runtime.session.Runtime`, the step over K adapters.
* :mod:`ymir_opt.runtime.sampling`: which task a joint run draws next (annealed sampling).
* :mod:`ymir_opt.runtime.checkpoint`: adapters on disk, as safetensors and JSON, atomically.
* :mod:`ymir_opt.runtime.worker`: :class:`~ymir_opt.runtime.worker.Worker`, which trains groups of jobs;
  its jobs are :mod:`~ymir_opt.runtime.member`, in a :mod:`~ymir_opt.runtime.crew`.
* :mod:`ymir_opt.runtime.process`: the worker as a process, told what to do by files.
* :mod:`ymir_opt.runtime.probing`: whether a merge keeps what was promised.

They need the extra ``profiler`` (torch, transformers, safetensors).
"""
