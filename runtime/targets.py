"""What callers may give for a target: its name, or the path of its descriptor."""

from __future__ import annotations


def stored_name(target: str | None) -> str:
    """The name that a store files plans for a target under; empty for none.

    Raises:
        UsageError: the file is no descriptor.
    """
    if not target or (not target.endswith(".json") and "/" not in target):
        return target or ""  # importing what reads descriptors takes longer than opening a store
    from cudnn_aot.compiler.target import target as targets

    return targets.stored_name(target)
