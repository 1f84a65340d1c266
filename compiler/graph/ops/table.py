"""The op table: every row by name, and by the names that the cuDNN frontend's files use.

The tables of `MODULES` are loaded one after the other until the wanted row is found, so a program
of matrix products and pointwise ops never loads the others. What needs all of them (listing the
ops, refusing an unknown name) loads all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.errors import InvalidGraphError, did_you_mean

# Modules with a tuple ROWS, those that most graphs need first.
MODULES = ("matmul", "pointwise", "norms", "structured", "attention", "linear_attention")


class Table(Mapping[str, Op]):
    """Rows by one of their names, in the order of the modules."""

    def __init__(self, name_of: Callable[[Op], str | None]) -> None:
        self._name_of = name_of
        self._rows: dict[str, Op] = {}
        self._loaded = 0

    def _load(self) -> bool:
        """Add the next module's rows; whether there was one."""
        index = self._loaded  # threads may load the same module at once: all see its rows
        if index == len(MODULES):
            return False
        module = f"cudnn_aot.compiler.graph.ops.{MODULES[index]}"
        __import__(module)  # importlib itself would cost a first graph what a table does
        for row in sys.modules[module].ROWS:
            name = self._name_of(row)
            if name is not None:
                self._rows[name] = row
        self._loaded = max(self._loaded, index + 1)
        return True

    def get(self, name: str, default: Op | None = None) -> Op | None:  # type: ignore[override]
        while name not in self._rows:
            if not self._load():
                return default
        return self._rows[name]

    def __getitem__(self, name: str) -> Op:
        row = self.get(name)
        if row is None:
            raise KeyError(name)
        return row

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        while self._load():
            pass
        return iter(self._rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)


OPS = Table(lambda row: row.name)

# The row of every class of node but POINTWISE, whose ``mode`` is the op's name.
BY_NODE_TYPE = Table(lambda row: None if row.is_pointwise else row.node_type)


def op_row(name: str) -> Op:
    """The row of `name`; refuses an op that is not in the table, naming those closest to it."""
    row = OPS.get(name)
    if row is None:
        raise InvalidGraphError(f"unknown op {name!r}{closest(name)}")
    return row


def closest(name: str) -> str:
    """For messages, behind a name: which op it may have meant, and where all are listed."""
    return f"{did_you_mean(name, OPS)}; {len(OPS)} are known, see docs/ops.md"
