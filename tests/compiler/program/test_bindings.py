"""The forms in which a call gives its buffers, its stream and its shapes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import cudnn_aot as cudnn
from cudnn_aot.errors import RefusedError, UsageError


@pytest.fixture
def built(linear):
    it = linear()
    it.graph.build()
    return it


def by_uid(it):
    return {tensor.uid: buffer for tensor, buffer in it.pack().items()}


class Foreign:
    """A tensor of another library, which tells its uid by a method."""

    def __init__(self, uid: int) -> None:
        self.get_uid = lambda: uid


FORMS = {
    "tensor": lambda it: it.pack(),
    "name": lambda it: {tensor.name: buffer for tensor, buffer in it.pack().items()},
    "uid": by_uid,
    "mixed": lambda it: {it.a: it.buffers[0], "B": it.buffers[1], 3: it.buffers[2], "Y": it.result},
    "None keys": lambda it: {None: 7, **by_uid(it)},
    "further uids": lambda it: {**by_uid(it), 991: it.result},
    "address": lambda it: {**by_uid(it), it.y.uid: it.result.ctypes.data},
    "another's tensor": lambda it: {Foreign(uid): buffer for uid, buffer in by_uid(it).items()},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_dict(built, form):
    built.graph.execute(form(built))
    built.check()


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_with_uids_in_any_order(built, kind):
    pack = {**by_uid(built), 991: None}
    built.graph.execute(kind(reversed(pack.values())), None, tensor_uids=kind(reversed(pack)))
    built.check()
    built.graph.execute_plan_at_index(list(pack.values()), None, 0, tensor_uids=list(pack))
    built.check()


@pytest.mark.parametrize(
    ("buffers", "uids", "message"),
    [
        ([1, 2], [1], "got 1 uids for 2 buffers"),
        ([1, 2], [1, 1], "got 1 twice"),
        ([1], ["A"], "got 'A', want integers"),
        ({1: 1}, [1], "buffers: got dict"),
        ([1], 1, "tensor_uids: got int"),
        ([1, 2], None, "got list, want a dict"),
        ({"Z": 1}, None, "no tensor is named 'Z', want one of 'A', 'B', 'bias', 'Y'"),
        ({2.5: 1}, None, "bound to float"),
    ],
)
def test_what_is_no_pack(built, buffers, uids, message):
    with pytest.raises(ValueError, match=message) as caught:
        built.graph.execute(buffers, tensor_uids=uids)
    assert isinstance(caught.value, RefusedError)


def test_a_missing_operand_is_named(built):
    pack = by_uid(built)
    del pack[built.bias.uid]
    with pytest.raises(ValueError, match="bias"):
        built.graph.execute(pack)


def test_a_name_that_two_tensors_have(linear):
    it = linear()
    it.b.set_name("A")
    with pytest.raises(ValueError, match="name 'A' is that of 2 tensors"):
        it.graph.execute({"A": it.buffers[0]})
    it.graph.execute(by_uid(it))
    it.check()


def test_operands_bound_in_the_graph_fill_in_and_explicit_ones_win():
    a, b = np.ones((1, 4, 8), np.float32), np.ones((1, 8, 16), np.float32)
    g = cudnn.pygraph("bound", "FLOAT", "FLOAT", "FLOAT", target="cpu")
    y = g.matmul(a, b).set_output(True)
    result = np.zeros((1, 4, 16), np.float32)
    g.execute({y: result})
    assert (result == 8).all()
    g.execute([2 * a, result], tensor_uids=[1, y.uid])
    assert (result == 16).all()


def test_a_stream_comes_from_the_handle(built, monkeypatch):
    seen = []
    plan = SimpleNamespace(execute=lambda *call: seen.append(call[2]))
    monkeypatch.setattr(built.graph._program, "current", SimpleNamespace(plan=plan))
    handle = cudnn.create_handle()
    cudnn.set_stream(handle, 7)
    built.graph.execute(by_uid(built))
    built.graph.execute(by_uid(built), handle=handle)
    built.graph._handle = handle
    built.graph.execute(by_uid(built))
    built.graph.execute(by_uid(built), handle=cudnn.create_handle())
    assert seen == [None, 7, 7, 0]


def test_a_handle_that_has_no_stream_raises(built):
    handle = cudnn.create_handle()
    cudnn.destroy_handle(handle)
    with pytest.raises(UsageError, match="the handle is destroyed"):
        built.graph.execute(by_uid(built), handle=handle)
    with pytest.raises(TypeError, match="want a handle"):
        built.graph.execute(by_uid(built), handle=140234)


def test_overridden_rows():
    g = cudnn.pygraph(
        "rows", "FLOAT", "FLOAT", "FLOAT", is_override_shape_enabled=True, target="cpu"
    )
    a, b = g.tensor([1, 64, 8], name="A"), g.tensor([1, 8, 16], name="B")
    y = g.matmul(a, b).set_output(True)
    g.build()
    uids, shapes = [a.uid, y.uid], [[1, 3, 8], [1, 3, 16]]
    strides = [[24, 8, 1], [48, 16, 1]]
    room = np.empty(g.get_workspace_size(None, uids, shapes, strides), np.uint8)
    with pytest.raises(RefusedError, match=r"got 4, want M \(M = 3 of 0.."):
        g.get_workspace_size(None, uids, [[1, 3, 8], [1, 4, 16]], strides)
    left, right = np.ones((1, 3, 8), np.float32), np.ones((1, 8, 16), np.float32)
    result = np.zeros((1, 3, 16), np.float32)
    g.execute({a: left, b: right, y: result}, room, None, uids, shapes, strides)
    assert (result == 8).all()
    result[:] = 0
    g.execute({a: left, b: right, y: result.ctypes.data}, symbols={"M": 3})
    assert (result == 8).all()
    with pytest.raises(ValueError, match="override"):
        g.execute({a: left, b: right, y: result}, room, None, uids, shapes[:1], strides)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([[1, 10, 8]], r"dim\[1\]: got 10, want 4\*M \(M = 2 of 1..8\)"),
        ([[1, 36, 8]], "symbol 'M': got 9, want 1..8"),
        ([[1, 0, 8]], "symbol 'M': got 0, want 1..8"),
        ([[1, -4, 8]], "symbol 'M': got -1, want 1..8"),
        ([[1, 8, 9]], r"dim\[2\]: got 9, want 8"),
        ([[1, 8]], "got 2 extents, want 3"),
        ([[1, 8, 8], [1, 12, 16]], r"dim\[1\]: got 12, want 4\*M \(M = 2 of 1..8\)"),
        ([[1, 8.0, 8]], "want a list of integers"),
        ([7], "want a list of integers"),
        ([[1, 8, 8]] * 3, "got 3 for 2 uids"),
    ],
)
def test_workspace_for_shapes_that_are_none_of_the_graph_s(shapes, message):
    from cudnn_aot.compiler.program.bindings import symbols_of_call

    g = cudnn.pygraph("rows", "FLOAT", "FLOAT", "FLOAT", symbols={"M": {"min": 1, "max": 8}})
    a, b = g.tensor([1, "4*M", 8], name="A"), g.tensor([1, 8, 16], name="B")
    y = g.matmul(a, b).set_output(True)
    uids = [a.uid, y.uid][: max(len(shapes), 1)]
    with pytest.raises(RefusedError, match=message):
        symbols_of_call(g, ["M"], uids, shapes)
    assert symbols_of_call(g, ["M"], [a.uid], [[1, np.int64(8), 8]]) == {"M": 2}
    assert symbols_of_call(g, ["M"], [b.uid], [[1, 8, 16]]) is None
    assert symbols_of_call(g, ["M"], None, None) is None


def test_calls_from_many_threads(built):
    """Each with buffers of its own."""
    wrong: list[int] = []

    def call(seed: int) -> None:
        a = np.full((1, 4, 8), seed, np.float32)
        result = np.empty((1, 4, 16), np.float32)
        ones, none = np.ones((1, 8, 16), np.float32), np.zeros((1, 1, 16), np.float32)
        for _ in range(200):
            result.fill(-1)
            built.graph.execute({built.a: a, built.b: ones, built.bias: none, built.y: result})
            if not (result == 8 * seed).all():
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
