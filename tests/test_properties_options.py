"""Every option of `fastdata-prep` is a field of a kind's dataclass, or an argument of the run: the same name, type, default,
choices and sentence; and whatever is typed arrives as what Python would be given."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdata
from fastdata import kinds
from fastdata.cli import prep as command
from fastdata.options import build, options_of

HERE = Path(__file__)
PARAMS: dict[str, click.Option] = {param.name or "": param for param in command.params if isinstance(param, click.Option)}
OF_KINDS = [(name, key) for name in kinds.NAMES for key in options_of(kinds.find(name).options)]
HELP_ONLY = {"version"}
OF_THE_COMMAND = {"max_reject_rate"}  # it decides what the command does
OF_PYTHON = {"progress", "storage", "timeout"}


def field_of(kind: str, key: str) -> Any:
    return options_of(kinds.find(kind).options)[key]


def test_there_are_no_other_options_than_those_of_the_run() -> None:
    """Which `prep` takes too, with the same defaults."""
    arguments = inspect.signature(fastdata.prep).parameters
    of_the_run = set(PARAMS) - {key for _, key in OF_KINDS} - HELP_ONLY
    assert of_the_run - OF_THE_COMMAND == set(arguments) - {key for _, key in OF_KINDS} - OF_PYTHON - {"source", "out"}
    typed = command.make_context("fastdata-prep", ["in"]).params
    for name in of_the_run - OF_THE_COMMAND:
        assert typed[name] == arguments[name].default
    kind = PARAMS["kind"].type
    assert isinstance(kind, click.Choice) and tuple(kind.choices) == kinds.NAMES


@pytest.mark.parametrize("kind", kinds.NAMES)
def test_nothing_that_is_typed_is_nothing_that_is_given(kind: str) -> None:
    made = kinds.find(kind).options
    typed = {key: value for key, value in command.make_context("fastdata-prep", ["in"]).params.items() if value != ()}
    assert build(made, typed) == made()


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9).filter(lambda text: text[0] != "-")
NUMBERS = st.integers(1, 1 << 40)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.just(True),
    "int": NUMBERS,
    "text": WORDS,
    "path": WORDS,
    "file": st.just(str(HERE)),
    "folder": st.just(str(HERE.parent)),
    "color": st.tuples(*[st.integers(0, 255)] * 3),
    "sides": st.lists(NUMBERS, min_size=1, max_size=4).map(tuple),
}


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(kinds.NAMES))
def test_what_is_typed_is_what_python_is_given(data: st.DataObject, kind: str) -> None:
    made, typed, wanted = kinds.find(kind).options, list[str](), dict[str, Any]()
    keys = data.draw(st.lists(st.sampled_from(sorted(options_of(made))), unique=True, max_size=4))
    for key in keys:
        said = field_of(kind, key).metadata
        one = st.sampled_from(said["choices"]) if said["choices"] else VALUES[said["type"]]
        values = data.draw(st.lists(one, min_size=1, max_size=3) if said["multiple"] else one.map(lambda value: [value]))
        for value in values:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            typed += [f"--{key.replace('_', '-')}"] + [text] * (said["type"] != "flag")
        wanted[key] = tuple(values) if said["multiple"] else values[0]
    params = command.make_context("fastdata-prep", ["in", *typed]).params
    for key in keys:
        assert params[key] == wanted[key]

    def outcome(given: dict[str, Any]) -> Any:
        try:
            return build(made, given)
        except ValueError as error:  # some options go together only
            return str(error)

    assert outcome({key: value for key, value in params.items() if value != ()}) == outcome(wanted)
    left = {key: value for key, value in params.items() if key not in wanted}
    assert left == {key: value for key, value in command.make_context("fastdata-prep", ["in"]).params.items() if key not in wanted}
