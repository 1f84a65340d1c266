"""Every row of the op table builds, infers and keys; builders are called as the frontend's are."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_graphs import OPS, bare, example, operands, required_attrs, value_of

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph import attr as attr_types
from cudnn_aot.compiler.graph.document import markdown
from cudnn_aot.compiler.graph.enums import data_type, reduction_mode
from cudnn_aot.compiler.graph.graph import Graph, Stage
from cudnn_aot.compiler.graph.op import Refusal, Style, unsupported, wrong
from cudnn_aot.compiler.graph.ops import (
    attention,
    linear_attention,
    norms,
    pointwise,
    structured,
)
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "ops.md"
EMPTY = inspect.Parameter.empty


def new_graph() -> Graph:
    return Graph("", data_type.HALF, data_type.FLOAT, data_type.FLOAT)


def test_the_table_has_every_op_of_the_cudnn_frontend() -> None:
    assert len(pointwise.ROWS) == 54
    assert len(norms.ROWS) + len(structured.ROWS) == 26
    assert len(attention.ROWS) == 6
    assert len(linear_attention.ROWS) == 20
    assert len(OPS) == 107  # and matmul


def test_the_document_is_made_from_the_rows() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == markdown(), "python -m cudnn_aot.compiler.graph.document > docs/ops.md"
    for row in OPS.values():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{row.name}` |")]
        for named in (*row.ports, *row.attrs, *row.outputs):
            assert f"`{named.name}`" in line


@pytest.mark.parametrize("op", OPS)
def test_a_row_is_consistent(op: str) -> None:
    row = OPS[op]
    inputs = set(row.inputs)
    assert len({port.name for port in row.ports}) == len(row.ports)
    assert len(set(row.results)) == len(row.results)
    assert len({attr.name for attr in row.attrs}) == len(row.attrs)
    assert not inputs & set(row.results)
    # attn_scale is a number or a tensor; no other name means two things
    assert inputs & {attr.name for attr in row.attrs} <= {"attn_scale"}
    for output in row.outputs:
        assert not isinstance(output.data_type, str) or output.data_type in inputs
    for attr in row.attrs:
        if attr.default is not None:
            assert attr.normalise(attr.default) == attr.default
        assert all(attr.normalise(choice) == choice for choice in attr.choices)


@pytest.mark.parametrize("every_port", [False, True], ids=["required", "all"])
@pytest.mark.parametrize("op", OPS)
def test_every_op_builds_and_every_result_is_complete(op: str, every_port: bool) -> None:
    spec = bare(op)
    graph = example(spec, [port.name for port in spec.ports] if every_port else [])
    graph.freeze()
    (node,) = graph.nodes
    assert set(node.inputs.values()) | set(node.outputs.values()) == set(graph.tensors.values())
    assert [port for port in spec.results if port in node.outputs] == list(node.outputs)
    for tensor in node.outputs.values():
        assert tensor.dim and len(tensor.stride) == len(tensor.dim) and tensor.data_type
    assert (node.compute_data_type is None) == (op in ("reshape", "concatenate"))
    assert node.view.op == op and node.spec.node_type.isupper()


@pytest.mark.parametrize("op", OPS)
def test_a_refused_node_leaves_the_graph_as_it_was(op: str) -> None:
    spec = bare(op)
    ports = [port.name for port in spec.ports]
    right = example(spec, ports)
    graph = Graph("", data_type.HALF, data_type.FLOAT, data_type.FLOAT)
    made = operands(graph, spec, spec.ports)
    written = {name: made.pop(name) for name in list(made) if name in spec.declared}
    attrs = required_attrs(spec)
    other, array = Graph("", "HALF").tensor([4, 4]), np.zeros((4, 4), np.float16)
    first, *_, last = [*made, *made]

    def add(inputs=None, results=None, out_dims=None, **fields):
        return graph.add_node(
            spec,
            {**made, **(inputs or {})},
            {**attrs, **fields.pop("attrs", {})},
            results={**written, **(results or {})},
            out_dims=out_dims or {},
            **fields,
        )

    faults: list[Any] = [{"inputs": {name: other}} for name in made] + [
        {"inputs": {first: array, last: other if first == last else 5}},
        {"inputs": {first: array, "nothing": array}},
        {"inputs": {first: array}, "attrs": {"nothing": 1}},
        {"inputs": {first: array}, "compute_data_type": "WORDS"},
        {"inputs": {first: array}, "out_dims": {"nothing": [1]}},
        {"inputs": {first: array}, "out_dims": {spec.outputs[0].name: "words"}},
        *({"inputs": {first: array}, "results": {name: other}} for name in written),
        *({"results": {name: made[first]}} for name in written),
    ]
    if not spec.has_compute_data_type:
        faults = [fault for fault in faults if "compute_data_type" not in fault]

    def state() -> Any:
        return graph.nodes, repr(graph.tensors), graph.bindings, graph.stage

    before = state()
    for fault in faults:
        with pytest.raises((InvalidGraphError, TypeError)):
            add(**fault)
        assert state() == before, fault
    for name, tensor in add().outputs.items():
        tensor.set_output(True)
        tensor.set_dim(right.nodes[0].outputs[name].dim)
    assert graph.key() == right.key()
    assert graph_json.dumps(graph) == graph_json.dumps(right)


def test_a_refused_call_leaves_a_valid_graph_valid() -> None:
    graph, other = Graph("", "HALF"), Graph("", "HALF").tensor([4, 4])
    x = graph.tensor([4, 4])
    graph.relu(x).set_output(True)
    graph.validate()
    for call in (
        lambda: graph.add(x, other),
        lambda: graph.relu(x, compute_data_type="WORDS"),
        lambda: graph.tensor([4], uid=-2),
        lambda: graph.tensor([4], ragged_offset=other),
        lambda: graph.tensor_scalar("words"),
        lambda: graph.tensor_scalar(1.0, "words"),
        lambda: graph.tensor_like("words"),
    ):
        with pytest.raises(InvalidGraphError):
            call()
        assert graph.stage is Stage.VALID and len(graph.tensors) == 2 and len(graph.nodes) == 1
    x.set_uid(7)
    with pytest.raises(InvalidGraphError, match="uid 7 is used twice"):
        graph.tensor([4], uid=7, ragged_offset=np.zeros(5, np.int32))
    assert graph.bindings == {} and len(graph.tensors) == 2
    assert graph.relu(x).uid == 3 and graph.nodes[1].name == "relu.1"  # as if it were the next call


@pytest.mark.parametrize("op", OPS)
def test_every_attribute_and_every_port_changes_the_key(op: str) -> None:
    """But for attributes that say the same as others, which test_spellings.py covers."""
    spec = bare(op)
    respelled = {name for spelling in spec.spellings for name in spelling.attrs}
    keys = {"nothing": example(spec).key()}
    for attr in spec.attrs:
        if attr.name in respelled:
            continue
        if attr.type is not attr_types.FUNCTION and not attr.required:
            keys[f"attribute {attr.name}"] = example(spec, attrs={attr.name: value_of(attr)}).key()
    for port in spec.ports:
        if port.optional:
            keys[f"port {port.name}"] = example(spec, [port.name]).key()
    assert len(set(keys.values())) == len(keys)


def _reorder(graph: Graph, tensor: Tensor) -> None:
    """Permute the elements of `tensor`, if its type has a way, else align them."""
    if len(tensor.dim) > 1 and tensor.data_type in (data_type.HALF, data_type.BFLOAT16):
        tensor.set_reordering_type("F16x16")
    else:
        tensor.set_alignment_value(32)


@pytest.mark.parametrize("op", OPS)
def test_every_field_of_every_tensor_changes_the_key(op: str) -> None:
    spec = bare(op)
    every = [port.name for port in spec.ports]
    key = example(spec, every).key()
    assert key == example(spec, every).key()
    for index in range(len(example(spec, every).tensors)):
        keys = [key]
        for change in (
            lambda g, t: t.set_data_type("DOUBLE"),
            lambda g, t: t.set_alignment_value(16),
            lambda g, t: t.set_stride([1000 * step for step in range(1, 1 + len(t.dim))]),
            lambda g, t: t.set_ragged_offset(g.tensor([t.dim[0] + 1], None, "INT32", uid=900)),
            lambda g, t: t.set_uid(901),
            _reorder,
        ):
            graph = example(spec, every)
            tensor = list(graph.tensors.values())[index]
            if not tensor.dim:
                graph.validate()
            change(graph, tensor)
            keys.append(graph.key())
        assert len(set(keys)) == len(keys), f"{tensor}"


@pytest.mark.parametrize("op", OPS)
def test_names_do_not_change_the_key(op: str) -> None:
    spec = bare(op)
    graph = example(spec)
    for tensor in graph.tensors.values():
        tensor.name = f"renamed {tensor.uid}"
    graph.nodes[0].name = "renamed"
    graph.name = "renamed"
    assert graph.key() == example(spec).key()


@pytest.mark.parametrize("op", OPS)
def test_signatures_stand_in_the_order_of_the_row(op: str) -> None:
    row = OPS[op]
    parameters = list(inspect.signature(getattr(Graph, op)).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    ports = [p.name for p in row.ports if not (p.is_keyword_only or p.is_list or p.is_result)]
    attrs = [attr.name for attr in row.attrs if attr.is_parameter]
    if row.style is Style.STRUCTURED:
        assert names == [*ports, *attrs]
    elif row.style is Style.CAPTURED:
        assert names == [p.name for p in row.ports if not p.optional]
    by_name = {p.name: p for p in parameters}
    assert set(by_name) == {
        *(port.name for port in row.ports),
        *attrs,
        "name",
        "compute_data_type",
        *(["out_dims"] if row.style in (Style.STRUCTURED, Style.CAPTURED) else []),
    }
    for port in row.ports:
        if port.optional:
            assert by_name[port.name].default is None
    assert by_name["name"].default == "" and by_name["compute_data_type"].default is None


def test_signatures_of_the_larger_ops() -> None:
    assert str(inspect.signature(Graph.batchnorm)) == (
        "(self, input, scale, bias, in_running_mean=None, in_running_var=None, epsilon=None, "
        "momentum=None, *, peer_stats=None, name='', compute_data_type=None, out_dims=None)"
    )
    assert str(inspect.signature(Graph.gdn_summary)) == (
        "(self, k, v, g, beta, cu_seqlens, initial_state=None, a_log=None, dt_bias=None, "
        "output_transition=False, use_qk_l2norm=False, use_beta_sigmoid=False, "
        "allow_neg_eigval=False, safe_gate=False, gate_domain='log', batch_invariant=False, *, "
        "name='', compute_data_type=None, out_dims=None)"
    )
    parameters = inspect.signature(Graph.sdpa).parameters
    assert [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY] == [
        "self", "q", "k", "v",
    ]  # fmt: skip
    assert {n for n, p in parameters.items() if p.default is EMPTY} == {"self", "q", "k", "v"}
    assert parameters["is_inference"].default is True


def test_conditional_outputs_come_as_none_in_their_place() -> None:
    graph = new_graph()
    q = graph.tensor([2, 4, 16, 8])
    out, stats = graph.sdpa(q, q, q)
    assert stats is None and out.dim == (2, 4, 16, 8)
    assert graph.sdpa(q, q, q, is_inference=False)[1].dim == (2, 4, 16, 1)
    assert graph.sdpa(q, q, q, generate_stats=True)[1] is not None
    assert graph.sdpa(q, q, q, is_inference=False, generate_stats=False)[1] is None
    x, one = graph.tensor([2, 3, 4, 4]), graph.tensor([1, 1, 1, 1])
    row = graph.tensor([1, 3, 1, 1])
    built = graph.batchnorm(x, row, row, row, None, one)
    assert [None if t is None else t.name.split("::")[1] for t in built] == [
        "Y", "MEAN", "INV_VARIANCE", "NEXT_RUNNING_MEAN", None,
    ]  # fmt: skip
    assert graph.layernorm(x, row, row, one, "INFERENCE")[1:] == [None, None]
    assert graph.rmsnorm_backward(x, x, None, one)[1:] == [None, None]
    assert graph.rmsnorm_backward(x, x, row, one, has_dbias=False)[2] is None
    assert graph.conv_fprop(x, x).name == "conv_fprop.0::Y"


def test_what_an_attention_node_is_given() -> None:
    graph = new_graph()
    q, one = graph.tensor([2, 4, 16, 8]), graph.tensor([1, 1, 1, 1])
    dump = graph.tensor([2, 4, 16, 16])
    graph.sdpa(q, q, q, attn_scale=0.5, dropout=(0.1, one, one), rng_dump=dump)
    graph.sdpa(q, q, q, attn_scale=one, dropout=(one, one), is_inference=False)
    first, second = graph.nodes
    assert dict(first.attrs) == {"attn_scale": 0.5, "dropout_0": 0.1}
    assert list(first.inputs) == ["q", "k", "v", "dropout_1", "dropout_2"]
    assert list(first.outputs) == ["O", "rng_dump"] and graph.producer(dump) is first
    assert dict(second.attrs) == {"is_inference": False}
    assert list(second.inputs) == ["q", "k", "v", "attn_scale", "dropout_0", "dropout_1"]
    assert second.view.many_names("dropout") == ("dropout_0", "dropout_1")
    assert second.view.many("dropout") == (one, one)


def test_statistics_of_attention_are_float() -> None:
    graph = Graph("", "HALF", "HALF", "FLOAT")
    q = graph.tensor([2, 4, 16, 8])
    out, stats = graph.sdpa(q, q, q, is_inference=False)
    out.set_output(True)
    graph.validate()
    assert stats.data_type is data_type.FLOAT  # discarded: nobody reads it
    stats.set_output(True).set_data_type("HALF")
    with pytest.raises(cudnnGraphNotSupportedError, match="port Stats: got HALF, want FLOAT"):
        graph.validate()


def test_gradients_have_the_type_of_what_they_are_the_gradient_of() -> None:
    graph = Graph("", "BFLOAT16", "FLOAT", "FLOAT")
    qkv, g = graph.tensor([24, 4, 8]), graph.tensor([24, 4], None, "FLOAT")
    cu, state = graph.tensor([4], None, "INT32"), graph.tensor([3, 4, 8, 8], None, "FLOAT")
    built = graph.gdn_bwd(qkv, qkv, qkv, g, g, cu, qkv, initial_state=state)
    assert [None if t is None else t.name[11:] for t in built] == [
        "dQ", "dK", "dV", "dG", "dBeta", "d_initial_state", None, None,
    ]  # fmt: skip
    for tensor in built[:6]:
        tensor.set_output(True)
    graph.validate()
    assert built[0].data_type is data_type.BFLOAT16
    assert (built[5].data_type, built[5].dim) == (data_type.FLOAT, (3, 4, 8, 8))


def test_list_ports_are_numbered() -> None:
    graph = new_graph()
    x, y = graph.tensor([2, 3, 4]), graph.tensor([2, 5, 4])
    out = graph.concatenate(inputs=[x, y, x], axis=-2)
    (node,) = graph.nodes
    assert list(node.inputs.items()) == [("inputs_0", x), ("inputs_1", y), ("inputs_2", x)]
    assert out.dim == (2, 11, 4)
    with pytest.raises(InvalidGraphError, match=r"\(concatenate\): input port inputs is not wired"):
        graph.concatenate(inputs=[], axis=0)
    with pytest.raises(InvalidGraphError, match="input port inputs_1 is not wired"):
        graph.add_node("concatenate", {"inputs_0": x, "inputs_2": y}, {"axis": 0})
    with pytest.raises(
        InvalidGraphError, match=r"no input port 'inputs' \(did you mean .*\?\); it has: inputs"
    ):
        graph.add_node("concatenate", {"inputs": x}, {"axis": 0})


def test_out_dims_are_the_caller_s() -> None:
    graph = new_graph()
    x = graph.tensor([2, 3, 8, 8])
    total = graph.reduction(x, mode=reduction_mode.ADD, out_dims=[1, 3, 1, 1]).set_output(True)
    assert total.dim == (1, 3, 1, 1) and total.dim_assigned
    scales = graph.block_scale_quantize(x, block_size=8, out_dims={"Y": [2, 3, 8, 8]})
    assert (scales[0].dim_assigned, scales[1].dim_assigned) == (True, False)
    scales[0].set_output(True)
    with pytest.raises(InvalidGraphError, match=r"out_dims: no output 'Z' .*has: OUT_0"):
        graph.reshape(x, out_dims={"Z": [6]})
    with pytest.raises(InvalidGraphError, match=r"port OUT_0 has no dim: .*out_dims or set_dim"):
        late = new_graph()
        late.reshape(late.tensor([4])).set_output(True)
        late.validate()


def test_a_reduction_that_is_not_told_of_what_keeps_every_axis() -> None:
    graph = new_graph()
    whole = graph.reduction(graph.tensor([2, 4]), mode="MAX").set_output(True)
    assert whole.dim == (2, 4)
    whole.set_dim([2, 1])
    graph.validate()
    assert whole.dim == (2, 1)
    whole = new_graph()
    whole.reduction(whole.tensor([2, 4]), mode="MAX").set_output(True)
    whole.validate()
    assert whole.outputs()[0].dim == (2, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x: g.reduction(x), "attribute mode is not given, want a reduction_mode: ADD"),
        (lambda g, x: g.reduction(x, mode="SUM"), "attribute mode: got 'SUM', want .*ADD, MUL"),
        (lambda g, x: g.reduction(x, mode="NOT_SET"), "attribute mode: got 'NOT_SET'"),
        (lambda g, x: g.rmsnorm(x, norm_forward_phase="TRAINING"), "port epsilon is not wired"),
        (lambda g, x: g.rmsnorm(x, epsilon=x), "attribute norm_forward_phase is not given"),
        (lambda g, x: g.transpose(x, [0, "1"]), r"permutation: got .*, want a list of int"),
        (lambda g, x: g.slice(x, [slice(0, 4, -1)]), "want slices with a step of at least 1"),
        (lambda g, x: g.gdn(*[x] * 6, gate_domain="exp"), "got 'exp', want 'log' or 'linear'"),
        (lambda g, x: g.sdpa(x, x, x, softmax_precision="BFLOAT16"), "want 'FLOAT' or 'HALF'"),
        (lambda g, x: g.sdpa(x, x, x, use_causal_mask=1), "got 1, want true or false"),
        (lambda g, x: g.sdpa(x, x, x, attn_scale="1"), "attribute attn_scale: got '1', want a num"),
        (lambda g, x: g.sdpa(x, x, x, score_max=x), "port score_max: .* is already read"),
        (lambda g, x: g.add_node("sdpa", {"q": x, "k": x, "v": x, "score_max": x}), "no input por"),
        (lambda g, x: g.add_node("sdpa", dict.fromkeys("qkv", x), results={"O": x}), "no output p"),
        (lambda g, x: g.gen_index(x, 2**63), "attribute axis: .* want an integer of 64 bits"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_they_want(call: Any, message: str) -> None:
    graph = new_graph()
    with pytest.raises(InvalidGraphError, match=message) as caught:
        call(graph, graph.tensor([4, 4], name="x"))
    assert "\n" not in str(caught.value)


def test_wrong_arguments_are_type_errors() -> None:
    graph = new_graph()
    x = graph.tensor([4, 4])
    with pytest.raises(TypeError, match=r"sdpa\(\) got an unexpected keyword .*'window'"):
        graph.sdpa(x, x, x, window=3)
    with pytest.raises(TypeError, match=r"sdpa\(\) takes 4 positional arguments but 5"):
        graph.sdpa(x, x, x, True)
    with pytest.raises(TypeError, match=r"leaky_relu\(\) missing .*'negative_slope'"):
        graph.leaky_relu(x)


def test_enums_are_taken_by_name_and_from_other_libraries() -> None:
    class Foreign:
        name = "AVG"

    graph = new_graph()
    x = graph.tensor([4])
    for given in (reduction_mode.AVG, "AVG", Foreign()):
        graph.reduction(x, mode=given)
        assert graph.nodes[-1].attrs["mode"] is reduction_mode.AVG


def test_infinity_is_no_limit() -> None:
    limit = OPS["mamba2"].attr("dt_max")
    assert limit.normalise(float("inf")) is None and limit.normalise(2) == 2.0
    with pytest.raises(InvalidGraphError, match="got -inf, want a finite number"):
        limit.normalise(float("-inf"))
    spec = bare("mamba2")
    assert example(spec, attrs={"dt_max": float("inf")}).key() == example(spec).key()


def test_a_function_builds_but_has_no_key() -> None:
    graph = new_graph()
    q = graph.tensor([2, 4, 16, 8])
    graph.sdpa(q, q, q, score_mod=lambda graph, score: score)[0].set_output(True)
    with pytest.raises(InvalidGraphError, match="a Python function cannot be written or keyed"):
        graph.key()


def test_rules_refuse_by_their_kind() -> None:
    def build(*answers: Refusal | None) -> Graph:
        rules = tuple(lambda view, answer=answer: answer for answer in answers)
        return example(OPS["relu"].replace(rules=rules))

    build(None).validate()
    with pytest.raises(InvalidGraphError, match=r"^node 'relu.0' \(relu\): port x: got 1, want 2$"):
        build(None, wrong("x", 1, "2")).validate()
    with pytest.raises(cudnnGraphNotSupportedError, match=r"\(relu\): port x: got 1, want 2"):
        build(unsupported("x", 1, "2"), wrong("x", 1, "3")).validate()


def test_a_rule_sees_ports_attributes_and_ranges() -> None:
    seen = []

    def rule(view: Any) -> None:
        seen.append((view.dim("input"), view.attr("negative_slope"), view.attr("upper_clip")))
        seen.append([view.range(extent) for extent in view.dim("OUT_0")])
        seen.append((view.has("input"), view.has("loss"), view.dim("loss"), view.tensor("loss")))
        seen.append(view.producer("input").op)

    graph = Graph("", "HALF", "FLOAT", "FLOAT", symbols={"M": {"min": 2, "max": 9}})
    x = graph.tanh(graph.tensor(["M", "4*M"]))
    spec = OPS["relu"].replace(rules=(rule,))
    node = graph.add_node(spec, {"input": x}, {"upper_clip": 6})
    node.outputs["OUT_0"].set_output(True)
    graph.validate()
    assert [str(extent) for extent in seen[0][0]] == ["M", "4*M"] and seen[0][1:] == (0.0, 6.0)
    assert seen[1] == [(2, 9), (8, 36)]
    assert seen[2] == (True, False, (), None)
    assert seen[3] == "tanh"
