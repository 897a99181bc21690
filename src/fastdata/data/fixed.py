"""Attributes that are fixed when an object is made."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["Fixed"]


class Fixed:
    """Refuses to set an attribute that was used when the object was made, since that would be ignored or half obeyed.

    Subclasses name these attributes in `_fixed`.
    """

    _fixed: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and name in self.__dict__:
            kind = type(self).__name__
            raise AttributeError(f"{name} of a {kind} is fixed when it is made: make another {kind}, with {name}={value!r:.60}")
        super().__setattr__(name, value)
