"""Any file is read or refused in one line. A larger run is bench/fuzz.py.

The inputs are drawn by hypothesis, so that a failure is made small; `slow_inputs` are those that a
fuzzer once made slow, large or deep.
"""

import json
import time
import tracemalloc
from typing import Any

import pytest
from fuzz_inputs import FORMS, MAGIC, read, seeds, wrecked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats.json_reader import MAX_BYTES, MAX_ITEMS
from cudnn_aot.compiler.formats.load import read_bytes
from cudnn_aot.errors import InvalidGraphError

SEEDS = seeds()


@pytest.mark.parametrize("form", FORMS)
def test_every_seed_is_read_as_it_is(form: str) -> None:
    assert len(SEEDS[form]) >= 2
    for document in SEEDS[form]:
        data = json.dumps(document).encode()
        if form == "blob":
            data = MAGIC + len(data).to_bytes(8, "little") + data + b"\x7fELF"
        assert read(data) == "graph"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_wrecked_files_are_read_or_refused(form: str, data: st.DataObject) -> None:
    numbers = data.draw(st.randoms(use_true_random=False))

    def below(count: int) -> int:
        return numbers.randrange(count) if count > 0 else 0

    document = SEEDS[form][below(len(SEEDS[form]))]
    assert read(wrecked(form, document, below)) in ("graph", "invalid", "unsupported")


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=64), is_blob=st.booleans())
def test_any_bytes_are_refused(data: bytes, is_blob: bool) -> None:
    assert read(MAGIC + data if is_blob else data) == "invalid"


def graph(**changes: Any) -> dict[str, Any]:
    return {
        "cudnn_aot_graph": 1,
        "io_data_type": "HALF",
        "tensors": [{"uid": 1, "dim": [4]}, {"uid": 2}],
        "nodes": [{"op": "relu", "inputs": {"input": 1}, "outputs": {"OUT_0": 2}}],
        **changes,
    }


def plan(**changes: Any) -> dict[str, Any]:
    tensor = {"dim": [4], "stride": [1], "is_virtual": False}
    node = {"node_type": "POINTWISE", "name": "r", "params": {"mode": "relu"}}
    return {
        "context": {"io_data_type": "HALF"},
        "graph_kwargs": {},
        "tensors": [{"uid": 1, **tensor}, {"uid": 2, **tensor}],
        "nodes": [{**node, "inputs": {"IN_0": 1}, "outputs": {"OUT_0": 2}}],
        **changes,
    }


def lowered(**changes: Any) -> dict[str, Any]:
    tensor = {"dim": [4], "stride": [1], "is_virtual": False, "data_type": "HALF"}
    node = {"tag": "POINTWISE", "name": "r", "mode": "RELU_FWD", "compute_data_type": "FLOAT"}
    return {
        "json_version": "2.0",
        "tensors": {"x": {"name": "x", "uid": 1, **tensor}, "y": {"name": "y", "uid": 2, **tensor}},
        "nodes": [{**node, "inputs": {"IN_0": "x"}, "outputs": {"OUT_0": "y"}}],
        **changes,
    }


def test_the_documents_below_are_right_before_they_are_changed() -> None:
    sums = [added(form, (1, 1, 2), (1, 2, 3), (2, 3, 4)) for form in (plan(), lowered())]
    for document in (graph(), plan(), lowered(), *sums):
        assert read(json.dumps(document).encode()) == "graph"


def sized(*dim: Any, **fields: Any) -> dict[str, Any]:
    """The graph form with this input."""
    return graph(tensors=[{"uid": 1, "dim": list(dim), **fields}, {"uid": 2}])


def noded(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A document with changes to its node."""
    return {**document, "nodes": [{**document["nodes"][0], **changes}]}


def chain(*uids: int) -> dict[str, Any]:
    """The graph form with nodes that read one uid and write the next."""
    nodes = [
        {"op": "relu", "inputs": {"input": a}, "outputs": {"OUT_0": b}}
        for a, b in zip(uids, uids[1:], strict=False)
    ]
    return graph(tensors=[{"uid": 1, "dim": [4]}, {"uid": 2}, {"uid": 3}], nodes=nodes)


def added(document: dict[str, Any], *tensors: Any) -> dict[str, Any]:
    """A document of nodes that add two of three tensors each; every line is IN_0, IN_1, OUT_0."""
    node = {**document["nodes"][0], "name": "", "params": {"mode": "add"}, "mode": "ADD"}
    if "json_version" in document:
        del node["params"]
    else:
        del node["mode"]
    row = {"dim": [4], "stride": [1], "is_virtual": False, "data_type": "HALF"}
    nodes = [
        {**node, "inputs": {"IN_0": a, "IN_1": b}, "outputs": {"OUT_0": c}} for a, b, c in tensors
    ]
    rows = [{"uid": uid, "name": str(uid), **row} for uid in (1, 2, 3, 4)]
    return {**document, "tensors": rows, "nodes": nodes}


CYCLIC_PLAN = added(plan(), (1, 3, 2), (1, 2, 3), (2, 3, 4))
CYCLIC_LOWERED = added(lowered(), (1, 3, 2), (1, 2, 3), (2, 3, 4))
NESTED: Any = 1
for _ in range(500):
    NESTED = [NESTED]
UNIT = {"uid": 1, "dim": [4]}
HUGE = 2**62
TOO_MANY = MAX_ITEMS + 1
TWICE = {"SUM": 2, "SQ_SUM": 2}
ONE_KEY_TWICE = ",".join(f'"k{place % MAX_ITEMS}":1' for place in range(MAX_ITEMS + 1))

SLOW = [
    (b"[" * MAX_BYTES, "nested deeper than"),
    (b'{"a":' * 10**6, "nested deeper than"),
    (b"[" + b"[]," * 10**6 + b"1]", r"\$: got a list, want an object"),
    (b"1" * 10**6, r"\$: got an integer of 1000000 digits, want an object"),
    (b"0." + b"1" * 10**6, r"\$: got 0.1"),
    (b'"' + b"x" * 10**6 + b'"', r'\$: got "xxx'),
    (graph(tensors=[UNIT] * TOO_MANY), r"\$.tensors: got 100001 items, want at most 100000"),
    (graph(tensors=[UNIT] * MAX_ITEMS), r"\$.tensors\[1\]: uid 1 is used twice"),
    (graph(name="n" * 10**6), r"\$.name: got text of 1000000 characters, want at most 1000"),
    (sized("*".join("M" * 10**6)), "bad extent: got text of 1999999 characters, want at most 200"),
    (sized(*[1] * 99), r"\$.tensors\[0\].dim: got rank 99, want 1 to 8"),
    (sized(*[HUGE] * 20_000), r"\$.tensors\[0\].dim: got rank 20000, want 1 to 8"),
    ({**sized(*["M"] * 20_000), "symbols": {"M": {}}}, "got rank 20000, want 1 to 8"),
    (sized(4, stride=["M*M*M*M"] * 20_000), r"\$.tensors\[0\].stride: got rank 20000, want"),
    (plan(tensors=[{"uid": 1, "dim": [HUGE] * 20_000}]), r"\$.tensors\[0\]: got rank 20000, want"),
    (lowered(tensors={"x": {"dim": [HUGE] * 20_000}}), r"\$.tensors.x: got rank 20000, want"),
    (f"{{{ONE_KEY_TWICE}}}".encode(), r"\$: key 'k0' is given twice"),
    (graph(nodes=graph()["nodes"] * 999), r"nodes\[1\].outputs.OUT_0: uid 2 is already produced"),
    (noded(plan(), params={"mode": "relu", "upper_clip": NESTED}), "nested deeper than 4 lists"),
    (noded(plan(), inputs={"IN_" + "1" * 5000: 1}), "no input port 'IN_111"),
    (plan(tensors=[{"uid": 1, "dim": NESTED}]), "nested deeper than 4 lists"),
    (lowered(json_version="2" * 10**6), "got text of 1000000 characters"),
]


@pytest.mark.parametrize(("document", "message"), SLOW, ids=range(len(SLOW)))
def test_large_and_deep_files_are_refused_quickly(document: Any, message: str) -> None:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    began = time.process_time()
    with pytest.raises(InvalidGraphError, match=message) as caught:
        read_bytes(data)
    assert time.process_time() - began < 5 and len(str(caught.value)) < 2000


def test_memory_is_bounded_by_the_size_of_the_file() -> None:
    """Small objects are the worst of what a file can hold."""
    data = b"[" + b'{"":[]},' * (MAX_BYTES // 80) + b"1]"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidGraphError):
            read_bytes(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * len(data)


WRONG = [
    # Extents.
    (sized(-4), r"tensors\[0\].dim\[0\]: bad extent: got -4"),
    (sized(2**63), "bad extent: got 9223372036854775808"),
    (sized(10**25), "got an integer of 26 digits, want"),
    (sized(HUGE), r"uid 1: got dim .*want fewer than 2\*\*63 bytes"),
    (sized(HUGE, HUGE, HUGE), r"want fewer than 2\*\*63 bytes"),
    (sized(2, stride=[HUGE]), r"want fewer than 2\*\*63 bytes"),
    ({**sized("M*M*M"), "symbols": {"M": {}}}, r"want fewer than 2\*\*63 bytes"),
    (sized("9223372036854775808*M"), "want a coefficient below 2"),
    (sized("99999999999*99999999999*M"), "want a coefficient below 2"),
    (plan(tensors=[{"uid": 1, "dim": [-4]}, {"uid": 2}]), "bad extent: got -4"),
    (plan(tensors=[{"uid": 1, "dim": [HUGE, 9], "stride": [9, 1]}, {"uid": 2}]), "want fewer than"),
    # Attributes.
    (noded(graph(), attrs={"upper_clip": float("nan")}), r"attrs.upper_clip: got NaN, want a num"),
    (noded(graph(), attrs={"upper_clip": float("inf")}), "upper_clip: got Infinity, want a number"),
    (noded(plan(), params={"mode": "relu", "upper_clip": float("nan")}), "upper_clip: got NaN"),
    # Keys that are given twice.
    (json.dumps(graph()).replace('"op"', '"op": 1, "op"'), r"nodes\[0\]: key 'op' is given twice"),
    (json.dumps(plan()).replace('"uid"', '"uid": 7, "uid"'), r"\[0\]: key 'uid' is given twice"),
    (json.dumps(lowered()).replace('"x":', '"x": {}, "x":'), r"tensors: key 'x' is given twice"),
    # Cycles.
    (chain(2, 2), r"\$.nodes\[0\]: the node depends on its own result"),
    (chain(1, 2, 3, 1), r"\$.nodes\[\d\]: the node depends on its own result"),
    (noded(plan(), inputs={"IN_0": 2}), r"\$.nodes\[0\]: the node depends on its own result"),
    (noded(lowered(), inputs={"IN_0": "y"}), r"\$.nodes\[0\]: the node depends on its own result"),
    (CYCLIC_PLAN, r"\$.nodes\[[01]\]: the node depends on its own result"),
    (CYCLIC_LOWERED, r"\$.nodes\[[01]\]: the node depends on its own result"),
    # Results.
    (
        noded(plan(), node_type="GENSTATS", params={}, inputs={"input": 1}, outputs=TWICE),
        "one tensor is on two of the ports that the node writes",
    ),
    # uids of no tensor, and tensors of no node.
    (chain(1, 9), r"\$.nodes\[0\].outputs.OUT_0: no tensor has uid 9"),
    (chain(9, 2), r"\$.nodes\[0\].inputs.input: no tensor has uid 9"),
    (sized(4, ragged_offset=9), r"tensors\[0\].ragged_offset: no tensor has uid 9"),
    (noded(plan(), inputs={"IN_0": 9}), r"\$.nodes\[0\]: port input: no tensor has uid 9"),
    (noded(lowered(), inputs={"IN_0": "z"}), r'IN_0: no tensor "z"'),
    (chain(1, 2), "tensor uid 3 is not used by any node"),
]


@pytest.mark.parametrize(("document", "message"), WRONG, ids=range(len(WRONG)))
def test_each_fault_has_one_clear_error(document: Any, message: str) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(InvalidGraphError, match=message) as caught:
        read_bytes(text.encode())
    assert "\n" not in str(caught.value)


def test_a_blob_whose_header_is_longer_than_the_file() -> None:
    with pytest.raises(InvalidGraphError, match="want a header of 9999 bytes after the magic"):
        read_bytes(MAGIC + (9999).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidGraphError, match="plan blob: got 18 bytes"):
        read_bytes(MAGIC + b"\xff\xff")
