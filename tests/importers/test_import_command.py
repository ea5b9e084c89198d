"""The command line derives every importer's arguments and options from its signature."""

from __future__ import annotations

import json

import pytest
import typer

from ymir_opt.cli.commands.import_ import command_of
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.importers import Imported, importer_names, load_importer
from ymir_opt.importers.base import some_of


def example(
    source: str, *, at: float, retries: int = 2, strict: bool = False, only: tuple[str, ...] = ()
) -> Imported:
    """Make a snapshot from nothing.

    Longer text that is not help.

    Parameters
    ----------
    source : str
        Where to look, such as a : b.
    at : float
        Time of the snapshot,
        seconds.
    retries, strict : int
        Shared text.
    only : tuple of str
        Repeatable.

    Raises
    ------
    InputError
        Never.
    """
    labels = {"source": source, "retries": retries, "strict": strict, "only": list(only)}
    return Imported(Snapshot(taken_at_s=at, labels=labels), "nothing", ("left out: all",))


def app():
    made = typer.Typer(rich_markup_mode=None)
    made.command("other")(lambda: None)
    made.command("example")(command_of(example))
    return made


def test_positional_parameters_are_arguments_and_the_others_options(tmp_path):
    from typer.testing import CliRunner

    out = tmp_path / "s.json"
    arguments = ["example", "here", "--at", "5", "--strict", "--only", "a", "--only", "b", "-o", str(out)]
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert data["taken_at_s"] == 5.0
    assert data["labels"] == {"source": "here", "retries": 2, "strict": True, "only": ["a", "b"]}


def test_help_comes_from_the_docstring():
    from typer.testing import CliRunner

    text = " ".join(CliRunner().invoke(app(), ["example", "--help"]).output.split())
    assert "Make a snapshot from nothing." in text
    assert "Where to look, such as a : b." in text
    assert "Time of the snapshot, seconds." in text
    assert text.count("Shared text.") == 2
    assert "Longer text" not in text


def test_a_missing_option_is_refused(tmp_path):
    from typer.testing import CliRunner

    result = CliRunner().invoke(app(), ["example", "here", "-o", str(tmp_path / "x")])
    assert result.exit_code == 2


@pytest.mark.parametrize("name", ["titan", "gavel", "slurm"])
def test_installed_importers_have_help_for_every_parameter(name):
    import inspect

    from ymir_opt.cli.commands.import_ import _parameter_help

    importer = load_importer(name)
    assert name in importer_names()
    assert set(inspect.signature(importer).parameters) == set(_parameter_help(importer.__doc__))


def test_long_lists_are_cut_in_notes():
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c"], 2) == "a, b and 1 more"
