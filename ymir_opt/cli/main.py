"""Entry of ``ymir-plan``: finds the command, runs it, and turns every error into one line.

Commands come from the entry-point group ``ymir_opt.commands``: the entry's name is the command's,
its object a ``register(app)`` function. Only the command that is asked for is loaded, so that a
plug-in's imports cost nothing to the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from ymir_opt.cli.files import ReaderGoneError, emit
from ymir_opt.domain.errors import InputError, YmirError

__all__ = ["GROUP", "build_app", "main", "run"]

GROUP = "ymir_opt.commands"
PROGRAM = "ymir-plan"
EXIT_BROKEN_PIPE = 141
EXIT_INTERRUPTED = 130


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with one command, or with all of them where it is not known.

    Parameters
    ----------
    wanted : str, optional
        The first argument of the command line.

    Raises
    ------
    InputError
        If the wanted command needs a package that is not installed.
    """
    app = typer.Typer(
        name=PROGRAM,
        help="Plan which fine-tuning jobs run where, merged with whom, and prove how good the plan is.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    if wanted == "--version":
        return app
    commands = {entry.name: entry for entry in entry_points(group=GROUP)}
    if wanted in commands:
        _load(commands[wanted])(app)
        return app
    for name in sorted(commands):
        try:
            register = _load(commands[name])
        except InputError:
            # an extra that is not installed must not break the others' help
            continue
        register(app)
    return app


def _load(entry: EntryPoint) -> Callable[[typer.Typer], None]:
    try:
        register: Callable[[typer.Typer], None] = entry.load()
    except ModuleNotFoundError as error:
        raise InputError(
            entry.name, f"this command needs the package {error.name}", "install the extra that brings it"
        ) from None
    return register


def _version(asked: bool) -> None:
    if asked:
        emit(f"{PROGRAM} {_own_version()}\n")
        raise typer.Exit


def _own_version() -> str:
    from importlib.metadata import version

    return version("ymir-opt")


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code.

    0 done; 1 the check failed or nothing feasible was found; 2 bad usage or bad input, with one
    line on standard error; 130 interrupted; 141 the reader of the output went away.
    ``YMIR_DEBUG=1`` lets the traceback of an unexpected error through.
    """
    try:
        arguments = arguments or ("--help",)
        app = build_app(arguments[0])
        code = app(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except YmirError as error:
        return _fail(error.one_line(), error.exit_code)
    except (BrokenPipeError, ReaderGoneError):
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except MemoryError:
        return _fail("out of memory; use a smaller snapshot or a machine with more memory", 1)
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is not None:
            return _fail(_usage_line(error, str(usage())), 2)
        if os.environ.get("YMIR_DEBUG"):
            raise
        text = f"internal error: {type(error).__name__}: {error}; set YMIR_DEBUG=1 to see where"
        return _fail(text, 1)
    return code if isinstance(code, int) else 0


def _usage_line(error: Exception, message: str) -> str:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", PROGRAM)
    text = message.rstrip(".")
    return f"{text}; see {command} --help"


def _fail(message: str, code: int) -> int:
    line = "".join(ch if ch.isprintable() else " " for ch in message)
    try:
        sys.stderr.write(f"{PROGRAM}: {line}\n")
        sys.stderr.flush()
    except OSError:
        pass
    return code


def _silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush stays quiet."""
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def _open_streams() -> None:
    """Give a process that was started without standard streams empty ones.

    Otherwise the next file that is opened takes the free descriptor, and receives what solvers print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- for the life of the process


def main() -> None:
    """Run the command line of this process and exit."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # said already; the interpreter would try and complain again
        _silence_stdout()
    sys.exit(code)
