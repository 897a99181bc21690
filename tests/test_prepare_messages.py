"""What preparing says: options as they are typed, in a shell or in Python; help, versions and exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from fastdata import __version__
from support import MAIN, PREP, run, write_pictures

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"size": 0}, "{size} is 0, but sizes must be different numbers from 1 to 65500"),
    ({"quality": 101}, "{quality} is 101, but must be from 1 to 100"),
    ({"bits": 9}, "{bits} is 9, but must be one of 8, 16"),
    ({"mask_bits": 16}, "{mask_bits} and {palette} are about masks: give {masks} too"),
    ({"train_bpe": 5}, "{train_bpe} is 5, but must be 257 or more: 256 bytes and an end token"),
    ({"tokenizer": "bytes", "size": 8}, "{size} is about images"),
    ({"chunk": 4}, "{chunk} is about arrays"),
    ({"kind": "arrays", "max_bytes": 0}, "{max_bytes} is 0, but must be positive"),
    ({"label_from": "x"}, "{label_from} 'x' has 0 groups"),
    ({"limit": 0}, "{limit} is 0, but must be positive"),
    ({"workers": 0}, "{workers} is 0, but must be positive"),
    ({"split": "val"}, "{split} val is about a table of paths"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_messages_name_options_as_they_are_typed(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_pictures(tmp_path / "in", 2)
    names = re.findall(r"{(\w+)}", message)
    typed = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)[: 1 + (value is not True)]]
    done = run(*PREP, "in", "o.fds", *typed, cwd=tmp_path)
    assert done.returncode == 2
    assert message.format(**{name: f"--{name.replace('_', '-')}" for name in names}) in done.stderr
    with pytest.raises((ValueError, fastdata.errors.PrepError)) as caught:
        fastdata.prep(tmp_path / "in", tmp_path / "o.fds", **options)
    assert message.format(**{name: name for name in names}) in str(caught.value)
    assert not (tmp_path / "o.fds").exists()


def test_commands_in_messages_stay_commands_in_python(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_pictures(tmp_path / "in" / split / "ant", 1)
    with pytest.raises(fastdata.errors.PrepError, match=r"fastdata-prep .*in-val\.fds --classes in-train\.fds"):
        fastdata.prep_plan(tmp_path / "in", tmp_path / "o.fds")


@pytest.mark.parametrize("command", [PREP, [*MAIN, "prep"]])
def test_help_and_version_of_prep(command: list[str]) -> None:
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short.returncode == 0 and short.stdout == long.stdout
    assert "--label-from" in short.stdout and re.search(r"\[default:\s+90\]", short.stdout)
    groups = re.findall(r"^(\S.*):$", short.stdout, re.MULTILINE)
    assert groups == ["Images", "Labels", "Masks", "Text", "Arrays", "The run"]
    assert __version__ in run(*command, "--version").stdout


def test_wrong_values_are_told_by_name() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(TypeError, match=r"^quality is 'high', but must be an int"):
        fastdata.prep([image], "o.fds", quality="high")
    with pytest.raises(ValueError, match=r"resize is tall, but must be one of short, long, crop, stretch"):
        fastdata.prep([image], "o.fds", resize="tall")
    with pytest.raises(TypeError, match="prep has no argument 'colour'"):
        fastdata.prep([image], "o.fds", colour="red")
