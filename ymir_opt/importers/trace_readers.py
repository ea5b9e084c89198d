"""Readers of traces for simulations, one a format (entry-point group ``ymir_opt.traces``)."""

from __future__ import annotations

from pathlib import Path

from ymir_opt.importers.base import Imported
from ymir_opt.importers.gavel_trace import import_gavel_trace
from ymir_opt.importers.philly import import_philly
from ymir_opt.importers.swf import import_swf
from ymir_opt.importers.traces import TraceDocument, parse_trace, read_text, workload_of
from ymir_opt.simulator.traces import TraceOptions
from ymir_opt.simulator.workload import Workload

__all__ = ["document_reader", "gavel_reader", "philly_reader", "swf_reader"]


class _Reader:
    """Reads one format for simulations (entry-point group ``ymir_opt.traces``)."""

    def matches(self, path: Path, head: bytes) -> bool:
        """Say whether a file that begins with `head` is of this format."""
        raise NotImplementedError

    def document(self, path: Path, options: TraceOptions) -> TraceDocument:
        """Return the trace."""
        raise NotImplementedError

    def read(self, path: Path, options: TraceOptions) -> Workload:
        """Return the workload; raises `InputError` naming file, line and column."""
        document = self.document(path, options)
        if not document.name:
            document = document.model_copy(update={"name": path.stem})
        return workload_of(document, options.gpu_types)


class _Document(_Reader):
    def matches(self, path: Path, head: bytes) -> bool:
        return head.lstrip(_BLANK).startswith(b"{")

    def document(self, path: Path, options: TraceOptions) -> TraceDocument:
        return parse_trace(read_text(path), str(path))


class _Swf(_Reader):
    def matches(self, path: Path, head: bytes) -> bool:
        start = head.lstrip(_BLANK)
        return start.startswith(b";") or (b"," not in start and len(start.partition(b"\n")[0].split()) == 18)

    def document(self, path: Path, options: TraceOptions) -> TraceDocument:
        return _found(import_swf(str(path)))


class _Philly(_Reader):
    def matches(self, path: Path, head: bytes) -> bool:
        return head.lstrip(_BLANK).startswith(b"[")

    def document(self, path: Path, options: TraceOptions) -> TraceDocument:
        return _found(import_philly(str(path)))


class _Gavel(_Reader):
    def matches(self, path: Path, head: bytes) -> bool:
        return head.lstrip(_BLANK).partition(b"\n")[0].count(b"\t") in (6, 9)

    def document(self, path: Path, options: TraceOptions) -> TraceDocument:
        return _found(
            import_gavel_trace(str(path), throughputs=options.profiles, gpu_types=options.gpu_types)
        )


def _found(imported: Imported) -> TraceDocument:
    assert isinstance(imported.document, TraceDocument)
    return imported.document


_BLANK = b"\xef\xbb\xbf \t\r\n"

document_reader = _Document()
gavel_reader = _Gavel()
philly_reader = _Philly()
swf_reader = _Swf()
