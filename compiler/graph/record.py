"""Immutable rows with named fields, made without `dataclasses`.

The standard module loads `inspect` and compiles the methods of every class: with the dozen kinds of
rows that a first graph needs, half of the time of making it. This base class reads the annotations
instead. Type checkers see a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda cls: cls


@dataclass_transform(frozen_default=True, eq_default=False)
class Record:
    """A row: its fields are the annotated names of the class, their defaults its attributes.

    Two rows are equal when they are the same object, unless the class says otherwise.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__dict__.get("__annotations__", ()))
        cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}

    if not TYPE_CHECKING:

        def __init__(self, *args: Any, **fields: Any) -> None:
            values = self.__dict__
            values.update(self._defaults)
            values.update(zip(self._fields, args, strict=False))
            values.update(fields)
            if len(values) != len(self._fields) or len(args) + len(fields) > len(values):
                self._refuse(args, fields)

    def _refuse(self, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        missing = [name for name in self._fields if name not in self.__dict__]
        unknown = [name for name in fields if name not in self._fields]
        raise TypeError(
            f"{type(self).__name__}: got {len(args)} values and {', '.join(fields) or 'no name'}, "
            f"want {', '.join(self._fields)} once each"
            + (f" (missing: {', '.join(missing)})" if missing else "")
            + (f" (unknown: {', '.join(unknown)})" if unknown else "")
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name!r}: a {type(self).__name__} does not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r}: a {type(self).__name__} does not change")

    def replace(self, **changes: Any) -> Self:
        """A copy with other values of some fields."""
        kept = {name: getattr(self, name) for name in self._fields}
        return type(self)(**{**kept, **changes})

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"
