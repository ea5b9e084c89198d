"""Other systems' files in, snapshots out; every importer is an entry point of ``ymir_opt.importers``."""

from ymir_opt.importers.base import GROUP, Imported, Importer, importer_names, load_importer

__all__ = ["GROUP", "Imported", "Importer", "importer_names", "load_importer"]
