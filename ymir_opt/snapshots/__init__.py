"""Cases that a user can send: a snapshot with its plan, proven again elsewhere, names taken out."""

from ymir_opt.snapshots.anonymize import anonymize_case, anonymize_snapshot
from ymir_opt.snapshots.capture import capture, replay
from ymir_opt.snapshots.case import Case, Failure, Replay, Request, parse_case

__all__ = [
    "Case",
    "Failure",
    "Replay",
    "Request",
    "anonymize_case",
    "anonymize_snapshot",
    "capture",
    "parse_case",
    "replay",
]
