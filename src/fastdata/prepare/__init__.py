"""Make a store from a source: plan, run the shards, finish."""

import inspect
import textwrap

from fastdata import kinds
from fastdata.options import as_arguments, options_of
from fastdata.prepare.job import Summary
from fastdata.prepare.job import prep as with_any_options

__all__ = ["Summary", "prep"]


def _with_options() -> tuple[inspect.Signature, str]:
    """Return the signature of prep with the options of every kind, and its docstring with their help."""
    signature = inspect.signature(with_any_options)
    *named, _ = signature.parameters.values()
    taken, lines = {one.name for one in named}, [inspect.cleandoc(with_any_options.__doc__ or ""), ""]
    named.append(inspect.Parameter("kind", inspect.Parameter.KEYWORD_ONLY, default=None))
    for kind in map(kinds.find, kinds.OURS):
        lines.append(f"Options of {kind.says}:")
        for name, option in options_of(kind.options).items():
            if name not in taken:
                taken.add(name)
                named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default))
                lines += textwrap.wrap(
                    f"{name}: {option.metadata['said'].help}", 130, initial_indent="    ", subsequent_indent=" " * 8
                )
    return signature.replace(parameters=named), "\n".join(lines)


_signature, _doc = _with_options()


def _names() -> set[str]:
    return {*_signature.parameters}.union(*(options_of(kinds.find(name).options) for name in kinds.names()))


prep = as_arguments(with_any_options, _names)
prep.__signature__ = _signature  # type: ignore[attr-defined]
prep.__doc__ = _doc
