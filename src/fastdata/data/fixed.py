"""Attributes that are fixed when an object is made."""

from __future__ import annotations

from typing import Any

__all__ = ["Fixed"]


class Fixed:
    """Refuses to set an attribute that was used when the object was made, since that would be ignored or half obeyed.

    Args:
        fixed: names of these attributes of a subclass, as in ``class Loader(Fixed, fixed=("batch_size",))``.
    """

    def __init_subclass__(cls, *, fixed: tuple[str, ...] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in fixed:
            setattr(cls, name, _SetOnce(name))


class _SetOnce:
    """A descriptor without `__get__`: reading the attribute, and setting others, takes no longer than without it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __set__(self, instance: Any, value: Any) -> None:
        name, kind = self._name, type(instance).__name__
        if name in instance.__dict__:
            raise AttributeError(f"{name} of a {kind} is fixed when it is made: make another {kind}, with {name}={value!r:.60}")
        instance.__dict__[name] = value
