"""Everything that programs can name or call, here and in the cuDNN frontend's own wheel."""

import json
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import compare
import document
import pytest
from calls import mismatches
from parity_differences import DIFFERENCES, patterns
from perform import behaviour, perform

import cudnn_aot
from cudnn_aot.compiler.graph import graph as graph_module
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError


@pytest.fixture(scope="module")
def found(theirs: dict[str, Any], asked: list[dict[str, Any]]) -> Counter[str]:
    """Every difference, and how often it was seen."""
    surface = theirs["surface"]
    seen: Counter[str] = Counter()
    for kind in (compare.names, compare.enums, compare.methods, compare.builders):
        seen.update(kind(surface))
    with pytest.MonkeyPatch.context() as patched:
        # Inference is compared on combinations too that the semantic rules refuse.
        patched.setattr(graph_module, "check_rules", lambda graph: None)
        for call, answer in zip(asked, theirs["answers"], strict=True):
            ours = json.loads(json.dumps(perform(cudnn_aot, call)))
            assert "refused" not in ours, (call, ours["refused"])
            seen.update(compare.answers(call, answer, ours))
    ours = json.loads(json.dumps(behaviour(cudnn_aot)))
    seen.update(compare.behaviours(theirs["behaviour"], ours))
    return seen


def test_every_difference_has_a_reason_and_every_reason_a_difference(found: Counter[str]) -> None:
    rows = {pattern: False for _, text, _ in DIFFERENCES for pattern in patterns(text)}
    unlisted = []
    for difference in found:
        matching = [pattern for pattern in rows if fnmatchcase(difference, pattern)]
        rows.update(dict.fromkeys(matching, True))
        if not matching:
            unlisted.append(difference)
    assert unlisted == []
    assert [pattern for pattern, is_used in rows.items() if not is_used] == []


def test_every_op_was_called_with_all_that_it_takes(
    theirs: dict[str, Any], asked: list[dict[str, Any]]
) -> None:
    assert theirs["surface"]["version"] == "1.32.0"
    assert theirs["surface"]["ops"].keys() == OPS.keys() and len(OPS) == 107
    answered = Counter(
        call["op"]
        for call, answer in zip(asked, theirs["answers"], strict=True)
        if "error" not in answer
    )
    assert answered.keys() == OPS.keys() and answered.total() > 1500
    for name, spec in OPS.items():
        given = {key for call in asked if call["op"] == name for key in call["kwargs"]}
        wanted = {port.name for port in spec.ports}
        wanted |= {attr.name for attr in spec.attrs if attr.is_parameter and not attr.required}
        assert wanted - given <= {"score_mod", "score_mod_bprop", "fn"}, name


def test_the_document_is_made_from_the_table() -> None:
    path = Path(__file__).resolve().parents[2] / "docs/parity.md"
    assert path.read_text(encoding="utf-8") == document.markdown()


def test_operands_that_do_not_fit_are_a_value_error(theirs: dict[str, Any]) -> None:
    """`validate` raises it in both, and callers catch it."""
    assert len(theirs["refusals"]) == 4
    for call, answer in zip(mismatches(), theirs["refusals"], strict=True):
        assert answer["refused"].startswith("ValueError: ")
        refused = perform(cudnn_aot, call)["refused"]
        assert refused.startswith("InvalidGraphError: node ") and "want" in refused
    assert issubclass(InvalidGraphError, ValueError)
