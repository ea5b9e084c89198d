"""Executors: what carries a plan out, and the journal that survives a crash.

* :mod:`ymir_opt.executors.base`: the protocol (apply, status, cancel, events) and executors by name.
* :mod:`ymir_opt.executors.pool`: warm workers kept as a plan wants them; what local and Ray share.
* :mod:`ymir_opt.executors.local`, :mod:`ymir_opt.executors.ray`: where workers run.
* :mod:`ymir_opt.executors.journal`: the journal, its lease and its fencing token.

An executor imports no torch: it talks to training workers through files alone
(:mod:`ymir_opt.executors.folder`).
"""
