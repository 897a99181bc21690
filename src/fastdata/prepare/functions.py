"""The functions that users call to make stores, with the options of every kind in the signature and docstring of `prep`."""

import inspect
import textwrap

from fastdata import kinds
from fastdata.options import as_arguments, options_of
from fastdata.prepare import tasks


def _with_options() -> tuple[inspect.Signature, str]:
    """Return the signature of prep with the options of every kind, and its docstring with their help."""
    signature = inspect.signature(tasks.prep)
    *named, _ = signature.parameters.values()
    taken, lines = {one.name for one in named}, [inspect.cleandoc(tasks.prep.__doc__ or ""), ""]
    named.append(inspect.Parameter("kind", inspect.Parameter.KEYWORD_ONLY, default=None))
    for kind in map(kinds.find, kinds.NAMES):
        lines.append(f"Options of {kind.name}:")
        for name, option in options_of(kind.options).items():
            if name not in taken:
                taken.add(name)
                named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default))
                lines += textwrap.wrap(f"{name}: {option.metadata['help']}", 130, initial_indent="    ", subsequent_indent=" " * 8)
    return signature.replace(parameters=named), "\n".join(lines)


_signature, _doc = _with_options()


_names = {*_signature.parameters, *inspect.signature(tasks.prep_run).parameters}
prep = as_arguments(tasks.prep, _names)
prep.__signature__ = _signature  # type: ignore[attr-defined]
prep.__doc__ = _doc
prep_plan = as_arguments(tasks.prep_plan, _names)
prep_run = as_arguments(tasks.prep_run, _names)
prep_finish = as_arguments(tasks.prep_finish, _names)
