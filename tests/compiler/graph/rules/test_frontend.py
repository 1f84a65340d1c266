"""The same graphs, right and wrong, get the same verdict as in the cuDNN frontend's wheel.

Its rules in Python and its analysis before planning run without a GPU; where only its native
library judges a graph, there is nothing to compare with.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rule_graphs
from frontend_wheel import real_frontend  # noqa: F401  (a fixture)
from rule_cases import CASES, MENUS
from rule_graphs import VALID, Spec, build, changed, refusing, verdict

import cudnn_aot

# Rules, by how their description starts, whose graphs the frontend lets pass here: why.
OURS_ALONE = {
    "extents: ": "its kernels would refuse, or read beyond, operands that do not agree",
    "type of ": "a float cannot count rows or tokens; its kernels refuse one",
    "lower_clip is at most": "no number is between such clips",
    "axis is one of the input's": "there are no indices of an axis that is not there",
    "SCATTER, COMBINE: token_index": "its kernels route every row of token",
    "descale_q, descale_k, descale_v": "one factor scales the whole of a tensor",
    "cu_seqlens has": "there is no end of nothing",
    "the last axis of token": "for matmul it checks the same",
    "doutput and token": "for matmul it checks the same",
    "block_size has": "no block is empty, or along an axis that is not there",
    "descale has": "a block without a scale has no value",
    "OUT_0 has the input's rank": "another result is no reduction of the input",
    "dropout is": "its native builder takes no other tuple",
    "the heads of q, k and v divide": "its kernels need it",
    "the head dims of q and v are multiples of 16": "its native library checks it",
    "descale_q, descale_q_T": "its native library checks it",
}
# Graphs that are valid here, by op and one of the changes: why its analysis declines them.
THEIRS_ALONE = {
    ("sdpa", "k.dim"): "heads of k and v differ: a limit of its Python engines, not of the op",
    ("sdpa", "q.ragged"): "o is not ragged too: a limit of its Python engines, not of the op",
}
# Where both refuse, with another kind of error.
OTHER_KIND = {
    ("matmul", "B.dim"): "its error is a ValueError unless its own GEMM engines are switched on",
}


def theirs(frontend: Path, specs: list[Spec]) -> list[str]:
    done = subprocess.run(
        [sys.executable, rule_graphs.__file__],
        input=json.dumps(specs),
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(frontend),
            "CUDNN_FRONTEND_ENABLE_FROST_ENGINES": "1",  # for its own rules of matrix products
        },
    )
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout)
    return answers


def _difference(op: str, changes: Spec, theirs: str) -> Any:
    """What is not expected of the two verdicts, or None."""
    spec = changed(op, changes)
    ours = verdict(cudnn_aot, spec)
    keys = {(op, path) for path in changes}
    if theirs in ("-", ours) or theirs == "declined" and ours != "ok":
        return None
    if ours == "ok":
        return None if keys & THEIRS_ALONE.keys() else (op, changes, "ok", theirs)
    if theirs != "ok":
        return None if keys & OTHER_KIND.keys() else (op, changes, ours, theirs)
    rule = _refused_by(spec)
    text = rule.__doc__ if rule is not None else ""
    if any(text.startswith(start) for start in OURS_ALONE):
        return None
    return op, changes, ours, theirs, text


def _refused_by(spec: Spec) -> Any:
    graph = build(cudnn_aot, spec)
    with pytest.raises(cudnn_aot.errors.Error):
        graph.validate()
    return refusing(graph)


def test_every_case_has_the_verdict_of_the_frontend(real_frontend: Path) -> None:  # noqa: F811
    cases: list[tuple[str, Spec]] = [(op, {}) for op in VALID]
    cases += [(op, changes) for op, changes, _ in CASES]
    answers = theirs(real_frontend, [changed(op, changes) for op, changes in cases])
    both = zip(cases, answers, strict=True)
    found = [_difference(op, changes, answer) for (op, changes), answer in both]
    assert [difference for difference in found if difference] == []
    assert answers.count("-") < len(answers) / 2


def test_random_masks_are_accepted_and_refused_alike(real_frontend: Path) -> None:  # noqa: F811
    rng = random.Random(0)
    specs = []
    for _ in range(400):
        op = rng.choice(list(MENUS))
        changes: Spec = {}
        for fragment in rng.sample(MENUS[op], rng.choice((1, 2, 2, 3, 4))):
            changes |= fragment
        specs.append(changed(op, changes))
    answers = theirs(real_frontend, specs)
    for spec, answer in zip(specs, answers, strict=True):
        ours = verdict(cudnn_aot, spec)
        if answer == "declined":  # by its engines: packed batches need every operand packed
            continue
        assert (ours == "ok") == (answer == "ok"), (spec, ours, answer)
    assert 40 < answers.count("ok") < 360
