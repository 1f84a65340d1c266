"""Capability rows: what an engine accepts, and the reason when it does not.

A row is the only place that says so: planning, ``cudnn-aot targets --engines``, ``cudnn-aot why``
and the documentation read the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from cudnn_aot.compiler.target.target import Target

Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability(Generic[Facts]):
    """One row: a kind of machine, and what is served there.

    Attributes:
        kind: ``"cuda"`` or ``"cpu"``.
        sm_lo, sm_hi: range of architectures, ``major * 10 + minor``, both inclusive; a range, since
            a kernel for an architecture serves its whole line.
        is_arch_specific: whether the kernels use instructions of the ``a`` architectures alone.
        dtypes: of the operands that decide the kernel.
        layouts: what may be contiguous, in words.
        alignment_bytes: of the fastest branch; slower branches take less.
        features: what else it takes, in words.
    """

    kind: str
    sm_lo: int = 0
    sm_hi: int = 0
    is_arch_specific: bool = False
    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    alignment_bytes: int = 1
    features: tuple[str, ...] = ()

    def why_not(self, facts: Facts, target: Target) -> str | None:
        """None when the row takes the graph on the target, else one sentence."""
        return self.why_not_target(target) or self.why_not_facts(facts)

    def why_not_target(self, target: Target) -> str | None:
        """None when the row's kernels are made for the target, else one sentence."""
        if target.kind != self.kind:
            return f"target {target.name} is a {target.kind} target, want {self.kind}"
        if self.kind == "cpu":
            return None
        lacks_instructions = self.is_arch_specific and not target.gpu_arch.endswith("a")
        if lacks_instructions or not self.sm_lo <= target.sm <= self.sm_hi:
            return f"arch {target.gpu_arch} is not in {self.arches}"
        return None

    def why_not_facts(self, facts: Facts) -> str | None:
        """None when the row takes the graph, whatever the machine, else one sentence."""
        raise NotImplementedError

    @property
    def arches(self) -> str:
        """The row's machines in words, ``"sm_90a"``, ``"sm_100a..sm_103a"``, ``"cpu"``."""
        if self.kind == "cpu":
            return "cpu"
        suffix = "a" if self.is_arch_specific else ""
        ends = dict.fromkeys(f"sm_{sm}{suffix}" for sm in (self.sm_lo, self.sm_hi))
        return "..".join(ends)
