"""Rules of rotary position embedding."""

from __future__ import annotations

from cudnn_aot.compiler.graph.extents import mul
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, wrong
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most, may_divide
from cudnn_aot.compiler.graph.rules.tables import documented, floats


def _rotated(port: str) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        dim, freqs = view.dim(port), view.dim("freqs")
        if len(dim) < 2:
            return wrong(port, f"rank {len(dim)}", "at least 2: positions, head dim")
        width = view.attr("rope_dim")
        if width < 0 or width % 2 or not may_be_at_most(view, width, dim[-1]):
            return Refusal(
                f"attribute rope_dim: got {width}, want an even number of at most {dim[-1]}, "
                "or 0 for all"
            )
        rotated = width or dim[-1]
        if not may_divide(view, 2, rotated):
            return wrong(port, f"head dim {rotated}", "an even number: it rotates in halves")
        if not may_be_at_most(view, dim[-2], mul(*freqs[:-1])):
            return wrong("freqs", f"{mul(*freqs[:-1])} positions", f"at least {port}'s {dim[-2]}")
        if not may_be_at_most(view, rotated, mul(2, freqs[-1])):
            return wrong("freqs", f"{freqs[-1]} angles", f"at least half of {rotated}")
        return None

    return documented(
        "rope_dim is even and at most the head dim; freqs has every position and half as many "
        "angles as rotate",
        rule,
    )


ROPE: tuple[Rule, ...] = (_rotated("input"), floats("input", "freqs", "OUT_0"))
ROPE_BACKWARD: tuple[Rule, ...] = (_rotated("dY"), floats("dY", "freqs", "OUT_0"))
