"""One module a command; each has ``register(app)`` and an entry in the group ``ymir_opt.commands``."""
