"""A built plan as bytes: what comes back, and what is refused."""

from __future__ import annotations

import random

import pytest

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Stage
from cudnn_aot.compiler.program import container
from cudnn_aot.errors import (
    CompileForbiddenError,
    DamagedError,
    Error,
    RequirementError,
    SequenceError,
    UsageError,
)
from cudnn_aot.runtime import requirements


@pytest.fixture
def built(linear):
    it = linear()
    it.graph.build()
    return it


@pytest.fixture
def data(built) -> bytes:
    return built.graph.serialize(as_bytes=True)


def by_uid(it):
    return {tensor.uid: buffer for tensor, buffer in it.pack().items()}


def test_a_plan_comes_back_with_its_kernels(built, data, empty_overlay, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    g = cudnn.pygraph()
    g.deserialize(data)
    assert not empty_overlay.exists()
    assert g.key() == built.graph.key() and g.name == "linear" and g.stage is Stage.PLANNED
    assert [node.op for node in g.nodes] == ["matmul", "bias", "relu"]
    g.execute(by_uid(built), handle=cudnn.create_handle())
    built.check()
    g.execute({tensor.name: buffer for tensor, buffer in built.pack().items()})
    built.check()
    assert g.get_execution_plan_count() == 1 and g.get_plan_name() == "gemm.host.blocked"
    assert g.get_workspace_size() == 0
    assert g.serialize(as_bytes=True) == data


FORMS = {
    "bytes": lambda g, data: g.deserialize(data),
    "list": lambda g, data: g.deserialize(list(data)),
    "memoryview": lambda g, data: g.deserialize(memoryview(data)),
    "handle first": lambda g, data: g.deserialize(cudnn.create_handle(), data),
    "enforced": lambda g, data: g.deserialize(cudnn.create_handle(), data, True),
    "no handle": lambda g, data: g.deserialize(None, data, enforce_precompiled=True),
    "keywords": lambda g, data: g.deserialize(handle_=cudnn.create_handle(), pyobj=data),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_the_call(built, data, form):
    g = cudnn.pygraph()
    form(g, data)
    g.execute(by_uid(built))
    built.check()


def test_the_handle_of_the_call_is_the_graph_s(data):
    handle, g = cudnn.create_handle(), cudnn.pygraph()
    g.deserialize(handle, data)
    assert g._handle is handle


def test_serialize_gives_byte_values_unless_bytes_are_asked_for(built, data):
    assert built.graph.serialize() == list(data)


def test_equal_plans_give_equal_bytes(linear, data):
    other = linear()
    other.graph.build()
    assert other.graph.serialize(as_bytes=True) == data


def test_a_plan_without_kernels_takes_them_from_the_stores(built, data, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    short = built.graph.serialize(as_bytes=True, include_kernels=False)
    assert len(short) < len(data) / 2
    g = cudnn.pygraph()
    g.deserialize(short)
    g.execute(by_uid(built))
    built.check()


def test_a_plan_without_kernels_is_not_compiled_where_that_is_refused(built, empty_overlay):
    # Read before the overlay is empty: the graph's own layers are those that it was built with.
    short = built.graph.serialize(as_bytes=True, include_kernels=False)
    g = cudnn.pygraph()
    with pytest.raises(CompileForbiddenError, match="forbidden by enforce_precompiled: allow it"):
        g.deserialize(None, short, enforce_precompiled=True)
    assert g.nodes == () and g.get_execution_plan_count() == 0  # empty again


def test_a_graph_file_gives_the_graph_alone(built):
    g = cudnn.pygraph(target="cpu")
    g.deserialize(graph_json.dumps(built.graph))
    assert g.key() == built.graph.key() and g.plans == []
    g.execute(by_uid(built))
    built.check()


def test_only_an_empty_graph_becomes_another(built, data):
    with pytest.raises(SequenceError, match="not empty"):
        built.graph.deserialize(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got 0 bytes"),
        (b"CUDNN_FE_PYPLAN\0 and more", "no plan of cudnn-aot"),
        (b"\x7fELF" * 99, "no plan of cudnn-aot"),
        ([300], "no list of byte values"),
        (["a"], "no list of byte values"),
        (container.MAGIC, "changed or cut"),
    ],
)
def test_foreign_bytes(data, message):
    g = cudnn.pygraph()
    with pytest.raises(Error, match=message):
        g.deserialize(data)
    with pytest.raises(TypeError, match="got no data"):
        g.deserialize()
    with pytest.raises(TypeError, match="an argument 'x'"):
        g.deserialize(data, x=1)


def test_every_changed_or_missing_byte_is_found(data):
    chosen = random.Random(3)
    places = [*range(len(container.MAGIC), 90), *chosen.sample(range(len(data)), 60)]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << chosen.randrange(8)
        with pytest.raises((DamagedError, UsageError)):
            container.unpack(bytes(changed))
    for length in [*range(0, 90, 7), *chosen.sample(range(len(data)), 20)]:
        with pytest.raises((DamagedError, UsageError)):
            container.unpack(data[:length])
    with pytest.raises(DamagedError, match="1 bytes behind its end"):
        container.unpack(data + b"\0")


def repacked(data: bytes, change) -> bytes:
    """The same with its header changed, and sealed again."""
    import json

    from cudnn_aot.cache.canonical import canonical_bytes, sha256_hex

    start = len(container.MAGIC) + 40
    length = int.from_bytes(data[start - 8 : start], "little")
    document = json.loads(data[start : start + length])
    change(document)
    header = canonical_bytes(document)
    head = container.MAGIC + bytes.fromhex(sha256_hex(header)) + len(header).to_bytes(8, "little")
    return head + header + data[start + length :]


CHANGES = {
    "format": lambda d: d.update(format=2),
    "no graph": lambda d: d.pop("graph"),
    "bad graph": lambda d: d.update(graph="{}"),
    "other graph": lambda d: d.update(
        graph='{"cudnn_aot_graph":1,"tensors":[{"uid":1,"data_type":"HALF","dim":[4]},'
        '{"uid":2,"data_type":"HALF"}],"nodes":[{"op":"relu","inputs":{"input":1},'
        '"outputs":{"OUT_0":2}}]}'
    ),
    "record": lambda d: d.update(record=[]),
    "no kernels": lambda d: d["record"].pop("kernels"),
    "specs": lambda d: d.update(specs=[]),
    "spec": lambda d: d["specs"][0].update(template="gemm.kernels.other:f"),
    "target": lambda d: d.update(target="cpu"),
    "table": lambda d: d["record"]["table"].update(version=99),
    "requirement": lambda d: d["record"]["requirements"].update(moon_phase=1),
    "blobs": lambda d: d.update(blobs=[["zz", "zz"]]),
    "blob": lambda d: d["blobs"][0].__setitem__(1, -5),
    "document": lambda d: d.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_header_that_says_something_else(data, change):
    """Also when its digest is right: one of our errors, and the graph is empty again."""
    g = cudnn.pygraph()
    with pytest.raises(Error):
        g.deserialize(repacked(data, change))
    assert g.nodes == () and dict(g.tensors) == {} and g.plans == []
    g.deserialize(data)


def test_requirements_are_checked_before_anything_is_loaded(data, monkeypatch):
    from cudnn_aot import _native

    def load(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(_native, "load_kernel", load)
    host = _native.Host("x86_64-linux-gnu", "2.36", {"sse2"})
    monkeypatch.setattr(requirements, "this_host", lambda: host)
    with pytest.raises(RequirementError, match="host level: requires x86-64-v3"):
        cudnn.pygraph().deserialize(data)
