"""Whose plans a graph of this process lists: ours alone unless the program or the user says so."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cudnn_aot.compiler.planning.manifest import check_providers
from cudnn_aot.errors import UsageError

VARIABLE = "CUDNN_AOT_ENGINES"
DEFAULT = ("native",)  # a list of these does not depend on the machine


def choose_providers(named: Sequence[str] | None = None) -> tuple[str, ...]:
    """The providers that are named; else those of the variable, with commas between them.

    Raises:
        UsageError: one is unknown.
    """
    if isinstance(named, str):
        raise UsageError(f"engines: got {named!r}, want a list of names")
    if named is not None:
        return check_providers(named)
    text = os.environ.get(VARIABLE, "")
    return check_providers(name.strip() for name in text.split(",")) if text else DEFAULT
