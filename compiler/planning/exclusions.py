"""What a program has ruled out of a plan list: engines, notes, and too much workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.compiler.graph.enums import behavior_note, numerical_note
from cudnn_aot.compiler.planning.engine import Engine, Note
from cudnn_aot.errors import UsageError


@dataclass(slots=True)
class Exclusions:
    """Rules that a plan falls under, or not; added to, never taken back."""

    engines: set[str] = field(default_factory=set)
    workspace_bytes: int | None = None
    deselected: set[Note] = field(default_factory=set)
    selected: set[Note] = field(default_factory=set)

    def deselect_engines(self, names: Iterable[str]) -> None:
        """Rule out these engines; a `UsageError` if one is no name."""
        found = _items("engine names", "a list of names", names)
        for name in found:
            if not isinstance(name, str):
                raise UsageError(f"engine name: got {name!r}, want a string")
        self.engines.update(found)

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        """Rule out what may need more workspace; a `UsageError` if that is no number of bytes."""
        if type(nbytes) is not int or nbytes < 0:
            raise UsageError(f"workspace limit: got {nbytes!r}, want bytes, 0 or more")
        self.workspace_bytes = nbytes

    def deselect_notes(self, notes: Iterable[Note]) -> None:
        """Rule out what has one of these notes; a `UsageError` if one is none."""
        self.deselected |= _checked_notes(notes)

    def select_notes(self, notes: Iterable[Note]) -> None:
        """Rule out what lacks one of these notes; a `UsageError` if one is none."""
        self.selected |= _checked_notes(notes)

    def why_excluded(
        self,
        engines: Sequence[Engine],
        notes: Callable[[], Set[Note]],
        workspace_bytes: Callable[[], int],
    ) -> str | None:
        """The rule that a plan of these engines falls under, in a sentence; None for none.

        The plan's notes, and what workspace it may need, are asked for only where a rule is about
        them: it may have to be made to know them.
        """
        for engine in engines:
            if engine.name in self.engines:
                return f"engine {engine.name} is deselected"
        for note in _in_order(self.selected | self.deselected):
            if isinstance(note, behavior_note):
                continue
            for engine in engines:
                if not engine.tells_numerical_notes:
                    rule = "deselected" if note in self.deselected else "selected"
                    return f"{_kind(note)} {note.name} is {rule} and {engine.name} tells none"
        if self.selected or self.deselected:
            has = notes()
            for note in _in_order(has & self.deselected):
                return f"{_kind(note)} {note.name} is deselected"
            for note in _in_order(self.selected - has):
                return f"{_kind(note)} {note.name} is selected and it lacks that"
        if self.workspace_bytes is not None:
            needed = workspace_bytes()
            if needed > self.workspace_bytes:
                return f"it may need {needed} bytes of workspace, more than {self.workspace_bytes}"
        return None


def _checked_notes(notes: Any) -> set[Note]:
    found = _items("notes", "a list of notes", notes)
    for note in found:
        if not isinstance(note, behavior_note | numerical_note):
            raise UsageError(f"note: got {note!r}, want a behavior_note or a numerical_note")
    return set(found)


def _items(what: str, want: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{what}: got {given!r}, want {want}")
    return tuple(given)


def _in_order(notes: Iterable[Note]) -> list[Note]:
    return sorted(notes, key=lambda note: (_kind(note), note.value))


def _kind(note: Note) -> str:
    return "behavior note" if isinstance(note, behavior_note) else "numerical note"
