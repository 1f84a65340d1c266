"""Every protocol that an operand may speak, described alike."""

from __future__ import annotations

import array
import ctypes
import mmap

import numpy as np
import pytest
from exchange import BORROWING, NEWER, ReadOnly, Writable, publish
from tables import operand, table

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

X = operand(1, [2, 3], [3, 1])
PLAN = _native.Plan(table([X]))
PACKED = np.arange(6, dtype=np.float32).reshape(2, 3)
WIDE = np.arange(20, dtype=np.float32).reshape(2, 10)[:, 2:5]


def seen(buffer, plan=PLAN):
    entry = plan.resolve({1: buffer})["operands"][1]
    return entry["address"], entry["stride"], entry["nbytes"]


def described(view):
    strides = [stride // view.itemsize for stride in view.strides]
    return view.ctypes.data, strides, 4 * (strides[0] + 3)


class OnlyDLPack:
    """What a framework without the C exchange offers; ``old`` ones know no max_version."""

    def __init__(self, held, old=False):
        self.held, self.old, self.exports = held, old, 0

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("unexpected keyword argument")
        assert "stream" not in options  # host memory has none
        self.exports += 1
        return self.held.__dlpack__(**options)


class Interface:
    def __init__(self, held):
        self.held = held

    @property
    def __array_interface__(self):
        return self.held.__array_interface__


@pytest.mark.parametrize("view", [PACKED, WIDE], ids=["packed", "strided"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda view: view,
        memoryview,
        OnlyDLPack,
        lambda view: OnlyDLPack(view, old=True),
        Interface,
    ],
    ids=["numpy", "memoryview", "dlpack", "old-dlpack", "array-interface"],
)
def test_host_protocols(view, wrap):
    assert seen(wrap(view)) == described(view)


def test_plain_buffers():
    floats = array.array("f", range(6))
    assert seen(floats) == (floats.buffer_info()[0], [3, 1], 24)
    octets = bytearray(24)
    address = ctypes.addressof(ctypes.c_char.from_buffer(octets))
    assert seen(octets) == (address, [3, 1], 24)
    memory = (ctypes.c_float * 6)()
    assert seen(memory) == (ctypes.addressof(memory), [3, 1], 24)


def test_element_types_that_numpy_has_no_format_for():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = operand(1, [2, 3], [3, 1], dtype="BFLOAT16")
    values = np.zeros((2, 3), ml_dtypes.bfloat16)
    assert seen(values, _native.Plan(table([x])))[2] == 12


def test_read_only_exports():
    y = _native.Plan(table([X | {"kind": "output"}]))
    frozen = PACKED.copy()
    frozen.flags.writeable = False
    for wrap in (lambda view: view, OnlyDLPack, Interface, lambda view: view.tobytes()):
        with pytest.raises(RefusedError, match="read-only"):
            y.resolve({1: wrap(frozen)})


def test_other_objects_are_named():
    for thing in ("text", 2.5, True, [1, 2], object()):
        with pytest.raises(
            TypeError, match=rf"^operand 1 't1': got a {type(thing).__name__}, want"
        ):
            PLAN.resolve({1: thing})


@pytest.mark.parametrize(
    "address", [2**65, -8, -1, 10**5000], ids=["beyond", "below", "last", "long"]
)
def test_what_is_no_address(address):
    with pytest.raises(RefusedError, match="operand 1 't1': got .*, want an address") as refused:
        PLAN.resolve({1: address})
    assert (refused.value.rule, refused.value.operand) == ("address", 1)
    with pytest.raises(RefusedError, match="workspace: got .*, want an address"):
        PLAN.resolve({1: PACKED}, workspace=address)


def test_upper_half_addresses():
    assert seen(2**64 - 64)[0] == 2**64 - 64


class HostBuffers(mmap.mmap):
    """A type with the buffer protocol, of which this instance has none: an array of a device."""

    def __new__(cls, held):
        array = super().__new__(cls, -1, 1)
        array.close()
        array.held, array.asked = held, []
        return array

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        self.asked.append(options)
        return self.held.__dlpack__()


def test_a_type_that_has_the_buffer_protocol_on_the_host_alone():
    """As that of jax: read through DLPack, and asked for no stream, which it would wait on."""
    array = HostBuffers(PACKED)
    assert seen(array) == seen(PACKED)
    assert array.asked == [{"max_version": (1, 0)}]


def test_errors_of_a_producer_are_its_own():
    class Broken(OnlyDLPack):
        def __dlpack__(self, **options):
            raise BufferError("not now")

    with pytest.raises(BufferError, match="not now"):
        PLAN.resolve({1: Broken(PACKED)})


def test_strides_that_are_no_multiple_of_the_element():
    records = np.zeros((2, 3), np.dtype([("x", "<f4"), ("pad", "u1")]))["x"]
    with pytest.raises(RefusedError, match="got a stride of 15 bytes, want a multiple") as refused:
        PLAN.resolve({1: records})
    assert (refused.value.rule, refused.value.operand) == ("interface", 1)


@pytest.mark.parametrize(
    ("buffer", "got"),
    [
        (PACKED.astype(">f4"), ">f"),
        (Interface(PACKED.astype(">f4")), ">f4"),
        ((ctypes.c_float.__ctype_be__ * 6)(), ">f"),
        (np.zeros((2, 3), [("x>", "<f4"), ("y", ">i2")]), "T{"),
        (np.zeros((2, 3), object), "O"),
        (np.zeros((2, 3), [("x", "O")]), "T{O"),
        (np.zeros((2, 3), "M8[s]"), "<M8"),
        (np.zeros((2, 3), "V0"), ""),
        (np.zeros((2, 3), "V5000"), "5000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_elements_that_cannot_be_read(buffer, got):
    with pytest.raises(RefusedError, match="operand 1 't1': got element format '") as refused:
        PLAN.resolve({1: buffer})
    assert (refused.value.rule, refused.value.operand) == ("dtype", 1)
    assert got in str(refused.value) and "\n" not in str(refused.value)


def test_the_order_of_single_bytes_does_not_matter():
    x = _native.Plan(table([X | {"dtype": "UINT8"}]))
    assert seen((ctypes.c_uint8 * 6)(), x)[2] == 6
    assert seen(np.zeros((2, 3), [("a>", "u1")]), x)[2] == 6


def interface(**fields):
    found = {**PACKED.__array_interface__, **fields}
    return type("Interface", (), {"__array_interface__": found, "keep": PACKED})()


@pytest.mark.parametrize(
    ("fields", "got", "want"),
    [
        ({"strides": [12, 4]}, "strides [12, 4]", "none or a tuple of 2"),
        ({"strides": (4,)}, "strides (4,)", "none or a tuple of 2"),
        ({"strides": (12, 4, 4)}, "strides (12, 4, 4)", "none or a tuple of 2"),
        ({"strides": (12, 4.0)}, "strides (12, 4.0)", "integers that fit int64"),
        ({"strides": (2**70, 4)}, f"strides ({2**70}, 4)", "integers that fit int64"),
        ({"strides": (12, 3)}, "a stride of 3 bytes", "a multiple of the 4 bytes"),
        ({"shape": [2, 3]}, "shape [2, 3]", "a tuple"),
        ({"shape": (-2, -3)}, "shape (-2, -3)", "no extent below 0"),
        ({"shape": ("2", 3)}, "shape ('2', 3)", "integers that fit int64"),
        ({"data": None}, "data none", "a tuple of an address"),
        ({"data": (2**70, False)}, str(2**70), "an address"),
        ({"typestr": 4}, "typestr 4", "a string"),
        ({"typestr": "f4"}, "'f4'", "one such as '<f4'"),
        ({"typestr": "<f4x"}, "'<f4x'", "one such as '<f4'"),
        ({"mask": PACKED}, "mask array(", "none"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_interface_that_says_something_else(fields, got, want):
    with pytest.raises(RefusedError) as refused:
        PLAN.resolve({1: interface(**fields)})
    assert refused.value.operand == 1
    assert got in str(refused.value) and f"want {want}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_interface_without_strides_is_packed():
    assert seen(interface(strides=None))[1:] == ([3, 1], 24)


def test_references_are_given_back():
    import sys

    held = OnlyDLPack(PACKED)
    before = sys.getrefcount(held), sys.getrefcount(PACKED)
    for _ in range(50):
        PLAN.resolve({1: held})
        with pytest.raises(RefusedError):
            PLAN.resolve({1: np.zeros(2, np.float32), 2: held})
    assert held.exports == 50
    assert (sys.getrefcount(held), sys.getrefcount(PACKED)) == before


@pytest.mark.parametrize(
    "api", [BORROWING, NEWER], ids=["version-1", "newer-with-version-1-behind"]
)
def test_the_c_exchange(api):
    producer = publish(api)
    for held in (PACKED, WIDE):
        assert seen(producer.of(held)) == described(held)
        assert seen(producer.of(held, offset=16)) == described(held)


def test_the_c_exchange_without_borrowing():
    producer = ReadOnly.of(PACKED)
    assert seen(producer) == described(PACKED)
    assert producer.deleted == 1
    with pytest.raises(RefusedError, match="read-only"):
        _native.Plan(table([X | {"kind": "output"}])).resolve({1: producer})


def test_the_device_of_a_buffer():
    for device, name in (((2, 1), "cuda:1"), ((7, 0), "DLPack device type 7")):
        with pytest.raises(RefusedError, match=f"got {name}, want cpu") as refused:
            seen(Writable.of(PACKED, device=device))
        assert (refused.value.rule, refused.value.operand) == ("device", 1)
    for device in ((3, 0), (13, 0)):  # pinned and managed memory, which the host reads
        assert seen(Writable.of(PACKED, device=device))[1] == [3, 1]


def test_devices_of_a_gpu_plan_are_compared_before_any_use_of_cuda():
    gpu = _native.Plan(table([X, operand(2, [2, 3], [3, 1])], device="cuda"))
    for a, b, operand_ in (
        (Writable.of(PACKED, device=(2, 0)), Writable.of(PACKED, device=(2, 1)), 2),
        (PACKED, Writable.of(PACKED, device=(2, 0)), 1),
    ):
        with pytest.raises(RefusedError) as refused:
            gpu.resolve({1: a, 2: b})
        assert (refused.value.rule, refused.value.operand) == ("device", operand_)
