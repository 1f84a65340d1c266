"""Every rule refuses what it is for, with one line, and every rule is tested."""

from typing import Any

import pytest
from rule_cases import CASES
from rule_graphs import VALID, Spec, build, changed, refusing

import cudnn_aot
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

WITH_RULES = [row for row in OPS.values() if row.rules]


def _ids() -> list[str]:
    return [f"{op}-{'-'.join(changes)}-{i}" for i, (op, changes, _) in enumerate(CASES)]


@pytest.mark.parametrize("op", [row.name for row in WITH_RULES])
def test_a_valid_graph_of_every_op_with_rules(op: str) -> None:
    build(cudnn_aot, changed(op, {})).validate()
    assert set(VALID) == {row.name for row in WITH_RULES}


@pytest.mark.parametrize(("op", "changes", "text"), CASES, ids=_ids())
def test_what_is_refused(op: str, changes: Spec, text: str | None) -> None:
    if text is None:
        build(cudnn_aot, changed(op, changes)).validate()
        return
    kind = cudnnGraphNotSupportedError if text.startswith("!") else InvalidGraphError
    with pytest.raises(kind) as caught:
        build(cudnn_aot, changed(op, changes)).validate()
    message = str(caught.value)
    assert text.removeprefix("!") in message and "\n" not in message
    assert message.startswith(f"node '{op}.0' ({op}): ")


def test_a_scale_is_a_number_or_a_tensor() -> None:
    """Builders take one argument for both; a file may say both."""
    graph = build(cudnn_aot, changed("sdpa", {}))
    node = graph.nodes[0]
    inputs = {**node.inputs, "attn_scale": graph.tensor([1, 1, 1, 1], None, "FLOAT")}
    twice = graph.add_node("sdpa", inputs, {"attn_scale": 0.5})
    twice.outputs["O"].set_output(True)
    with pytest.raises(InvalidGraphError, match="port attn_scale: got a tensor and a number"):
        graph.validate()


def test_every_rule_is_documented_and_tested() -> None:
    used = {rule.__doc__ for row in WITH_RULES for rule in row.rules}
    assert None not in used and all("\n" not in str(text) for text in used)
    seen = {"attn_scale is a number or a tensor"}  # which has a test of its own
    for op, changes, text in CASES:
        if text is None:
            continue
        try:
            graph = build(cudnn_aot, changed(op, changes))
        except InvalidGraphError:
            continue  # refused while it was built
        try:
            graph.validate()
        except (InvalidGraphError, cudnnGraphNotSupportedError) as error:
            if ": port" in str(error) or ": attribute" in str(error):
                seen.add(getattr(_rule_of(graph), "__doc__", None))
    assert used - seen == set()


def _rule_of(graph: Any) -> Any:
    try:
        return refusing(graph)
    except InvalidGraphError:
        return None  # inference refused it, so rules have nothing to look at
