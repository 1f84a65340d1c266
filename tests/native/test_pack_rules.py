"""The cuDNN frontend's rules of the variant pack, each as a caller sees it.

| rule | tests |
|---|---|
| 1 one normalisation, in one crossing | `test_01_*`; `test_buffers.py` for every protocol |
| 2 operands by ascending uid; ragged offsets are operands; numbers are not | `test_02_*` |
| 3 a missing operand is named by uid and name | `test_03_*` |
| 4 an address takes the declaration, and its bytes are unknown | `test_04_*` |
| 5 a dense buffer of other extents is described from the declaration | `test_05_*` |
| 6 declared extents keep their strides | `test_06_*` |
| 7 too small in bytes | `test_07_*`: refused here, not kept |
| 8 slots of the declared width are read as the declared type | `test_08_*` |
| 9 4-bit slots, F8_128x4 blobs | `test_09_*` |
| 10 overrides | `test_10_*` |
| 11 workspace | `test_11_*`; `test_workspace.py` |
| 12 pointers belong to the call; devices per operand | `test_12_*`; `test_threads.py` |
| 13 the declaration is laid out once | `test_13_*`; `test_pack_model.py` |

The last tests bind what public programs bind (``tests/data/peer_graphs/real_programs``).
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from exchange import Writable
from graph_tables import pack_table
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

U8, U16, F32, I32, I64 = np.uint8, np.uint16, np.float32, np.int32, np.int64


def resolved(entries: Any, bindings: Any, ranges: Any = None, **call: Any) -> Any:
    return _native.Plan(table(entries, symbols=ranges or {})).resolve(bindings, **call)


def laid_out(entry: Any, buffer: Any, ranges: Any = None, **call: Any) -> Any:
    """Extents and strides in slots, and whether they are the declaration's."""
    seen = resolved([entry], {1: buffer}, ranges, **call)
    row = seen["operands"][1]
    return row["dim"], row["stride"], seen["graph_described"] == [1]


def refused(function: Any, *args: Any, **kwargs: Any) -> tuple[str, int | None, str]:
    with pytest.raises(RefusedError) as caught:
        function(*args, **kwargs)
    return caught.value.rule, caught.value.operand, str(caught.value)


def overriding(shape: Any, stride: Any, uid: int = 1) -> Any:
    return {"override_uids": [uid], "override_shapes": [shape], "override_strides": [stride]}


A = operand(1, [1, 4, 6], dtype="BFLOAT16")
Y = operand(9, [1, 4], kind="output", optional=True)


def test_01_one_answer_whatever_the_object_is():
    held = np.zeros((4, 6), U16)
    address = held.ctypes.data
    forms = [held, memoryview(held), Writable(address, (4, 6), None, (4, 16, 1)), address]
    answers = [resolved([A], {1: form}) for form in forms]
    for answer in answers:
        assert answer["operands"][1]["address"] == address
        assert answer["operands"][1]["stride"] == [24, 6, 1]
        assert answer["graph_described"] == [1]


def test_01_one_crossing():
    """Nothing of Python runs between the call and its end."""
    plan = _native.Plan(table([A, operand(2, [3]), Y]))
    bindings = {1: np.zeros((4, 6), U16), 2: np.zeros(3, F32), 9: np.zeros(4, F32)}
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        plan.resolve(bindings)
    finally:
        sys.setprofile(None)
    assert events.count("call") == 0 and events.count("c_call") <= 2  # and that of setprofile


def test_02_operands_ascend_by_uid_and_ragged_offsets_are_among_them():
    q = operand(3, [2, 1, 4, 8], [32, 8, 8, 1], ragged=True)
    offsets = operand(2, [3, 1, 1, 1], dtype="INT32")
    plan = _native.Plan(table([q, offsets, scalar(5, 1.0)], kernel(whole(offsets))))
    assert plan.uids == (2, 3, 5)
    packed, starts = np.zeros((5, 8), F32), np.zeros(3, I32)
    for bindings in ({3: packed, 2: starts}, [starts, packed], [starts, packed, 1.0]):
        seen = plan.resolve(bindings)
        assert seen["operands"][2]["address"] == starts.ctypes.data
        assert seen["operands"][3]["address"] == packed.ctypes.data
        assert seen["operands"][5] == {"value": 1.0}
    assert refused(plan.resolve, {3: packed})[:2] == ("presence", 2)


def test_02_a_port_that_is_left_out_is_not_requested():
    for bindings in ({1: 4096}, {1: 4096, 9: None}, [4096, None]):
        assert resolved([A, Y], bindings)["operands"][9]["present"] is False


def test_03_a_missing_operand_is_named():
    rule, uid, text = refused(resolved, [A, operand(4, [1]) | {"name": "bias"}], {1: 4096})
    assert (rule, uid) == ("presence", 4) and text.startswith("operand 4 'bias': got nothing")


def test_04_an_address_takes_the_declaration():
    seen = resolved([A], {1: 4096})
    row = seen["operands"][1]
    assert (row["dim"], row["stride"], row["nbytes"]) == ([1, 4, 6], [24, 6, 1], 48)
    assert (row["observed_bytes"], row["observed_device"]) == (-1, (-1, -1))
    assert seen["graph_described"] == [1]


@pytest.mark.parametrize(
    ("entry", "buffer"),
    [
        (A, np.zeros((4, 6), U16)),
        (A, np.zeros(24, U16)),
        (A, np.zeros(48, U8)),
        (A, np.zeros((8, 3), U16)),
        (A, np.zeros(100, U16)),
        (A, np.zeros((6, 4), np.float64)),
        (operand(1, [1, 1, 1]), np.float32(3)),
        (operand(1, [1, 1, 1]), np.zeros(1, F32)),
    ],
    ids=["2-D", "flat", "bytes", "other-rank", "room", "wider", "0-d", "one-element"],
)
def test_05_a_dense_buffer_is_described_from_the_declaration(entry, buffer):
    assert laid_out(entry, buffer) == (entry["dim"], entry["stride"], True)


def test_06_declared_extents_keep_their_strides():
    assert laid_out(A, np.zeros((1, 4, 6), U16)) == ([1, 4, 6], [24, 6, 1], False)
    assert laid_out(A, np.zeros((1, 4, 9), U16)[..., :6]) == ([1, 4, 6], [24, 9, 1], False)
    assert laid_out(A, np.zeros((1, 6, 4), U16).swapaxes(1, 2)) == ([1, 4, 6], [24, 1, 4], False)
    assert laid_out(A, np.zeros((4, 9), U16)[:, :6]) == ([1, 4, 6], [24, 9, 1], False)


def test_06_a_strided_buffer_of_other_extents_is_refused_not_kept():
    rule, uid, _ = refused(laid_out, A, np.zeros((8, 6), U16)[:, :3])
    assert (rule, uid) == ("extents", 1)


def test_07_too_small_is_counted_in_bytes_and_names_the_operand():
    assert refused(laid_out, A, np.zeros(23, U16))[:2] == ("capacity", 1)
    assert refused(laid_out, A, np.zeros(24, U8))[:2] == ("capacity", 1)  # slots enough, not bytes
    assert refused(laid_out, A, np.zeros((1, 3, 6), U16))[:2] == ("extents", 1)
    ragged = A | {"ragged": True}
    assert laid_out(ragged, np.zeros((2, 6), U16)) == ([1, 4, 6], [24, 6, 1], True)


@pytest.mark.parametrize("dtype", ["FP8_E4M3", "FP8_E8M0", "INT8", "BOOLEAN"])
def test_08_bytes_are_read_as_the_declared_type(dtype):
    x = operand(1, [2, 3], dtype=dtype)
    view = np.zeros((2, 5), U8)[:, :3]
    plan = _native.Plan(table([x], kernel(whole(x))))
    (argument,) = plan.resolve({1: view})["steps"][0]["args"]
    whole_table = _native.Plan(table([x], kernel(whole(x)))).resolve({1: 4096})
    assert argument["dtype"] == whole_table["steps"][0]["args"][0]["dtype"] != "uint8"
    assert argument["stride"] == [5, 1]
    assert refused(laid_out, x, np.zeros((2, 3), U16))[:2] == ("dtype", 1)
    named = Writable(4096, (2, 3), None, (12, 8, 1))
    assert refused(laid_out, x, named)[:2] == ("dtype", 1)


FP4 = operand(1, [1, 4, 6], dtype="FP4_E2M1")  # K-major: two elements of a row share a slot
BY_COLUMN = operand(1, [1, 6, 4], [24, 1, 6], dtype="FP4_E2M1")
ROWS = {"M": symbol(1, 64), "K": symbol(1, 64)}
SYMBOLIC = operand(1, ["M", "K"], ["K", 1], dtype="FP4_E2M1")
TORCH_FP4 = (17, 4, 2)  # float4_e2m1fn_x2


@pytest.mark.parametrize("dtype", ["FP4_E2M1", "INT4"])
def test_09_two_elements_share_a_slot_along_the_unit_stride_axis(dtype):
    rows, columns = FP4 | {"dtype": dtype}, BY_COLUMN | {"dtype": dtype}
    assert laid_out(rows, 4096) == ([1, 4, 3], [12, 3, 1], True)
    assert laid_out(columns, 4096) == ([1, 3, 4], [12, 1, 3], True)
    assert laid_out(rows, np.zeros((4, 3), U8)) == ([1, 4, 3], [12, 3, 1], True)
    assert laid_out(rows, np.zeros(12, U8)) == ([1, 4, 3], [12, 3, 1], True)
    assert laid_out(rows, np.zeros((1, 4, 8), U8)[..., :3]) == ([1, 4, 3], [12, 8, 1], False)
    assert laid_out(columns, np.zeros((4, 3), U8).T) == ([1, 3, 4], [12, 1, 3], False)
    assert resolved([rows], {1: 4096})["operands"][1]["nbytes"] == 12
    assert refused(laid_out, rows, np.zeros(11, U8))[:2] == ("capacity", 1)


def test_09_a_kernel_sees_slots():
    plan = _native.Plan(table([FP4], kernel(whole(FP4), {"arg": "int", "value": ["dim", 1, 2]})))
    for buffer in (np.zeros((1, 4, 3), U8), Writable(4096, (4, 3), None, TORCH_FP4)):
        view, slots = plan.resolve({1: buffer})["steps"][0]["args"]
        assert (view["dtype"], view["dim"], slots) == ("float4_e2m1fn_x2", [1, 4, 3], 3)


def test_09_one_element_to_a_byte_is_not_slots():
    """It covers the declared bytes, and would be read as a blob with room to spare."""
    rule, uid, text = refused(laid_out, FP4, np.zeros((4, 6), U8))
    assert (rule, uid) == ("extents", 1) and "one element to a byte" in text
    elements = Writable(4096, (4, 6), None, (17, 4, 1))  # a producer that counts elements
    assert laid_out(FP4, elements) == ([1, 4, 3], [12, 3, 1], True)


@pytest.mark.parametrize(
    ("dim", "stride", "message"),
    [
        ([4, 5], [5, 1], r"dim\[1\]: got 5, want a multiple of 2: 2 elements of FP4_E2M1 share"),
        ([4, 6], [7, 1], r"stride\[0\]: got 7, want a multiple of 2"),
        ([4, 6], [12, 2], "got no stride 1 on an axis of more than one element"),
        ([], [], "got no stride 1 on an axis of more than one element"),
    ],
)
def test_09_a_geometry_without_slots_is_no_declaration(dim, stride, message):
    with pytest.raises(ValueError, match=message):
        _native.Plan(table([operand(1, dim, stride, dtype="FP4_E2M1")]))
    with pytest.raises(ValueError, match="got a scalar of FP4_E2M1, want a type of whole bytes"):
        _native.Plan(table([scalar(1, 1.0, dtype="FP4_E2M1")]))


def test_09_symbols_of_slots_are_elements():
    seen = resolved([SYMBOLIC], {1: np.zeros((5, 4), U8)}, ROWS)
    assert seen["symbols"] == {"M": 5, "K": 8}
    assert laid_out(SYMBOLIC, 4096, ROWS, symbols={"M": 3, "K": 6}) == ([3, 3], [3, 1], True)
    rule, uid, text = refused(laid_out, SYMBOLIC, 4096, ROWS, symbols={"M": 3, "K": 7})
    assert (rule, uid) == ("extents", 1) and "FP4_E2M1 [3, 7]" in text


def test_09_workspace_is_sized_by_slots():
    sized = table(
        [SYMBOLIC],
        symbols=ROWS,
        workspace=[{"name": "s", "bytes": ["mul", ["dim", 1, 0], ["dim", 1, 1]], "align": 1}],
    )
    assert _native.Plan(sized).workspace_bytes({"M": 3, "K": 8}) == 12
    by_bytes = table(
        [SYMBOLIC], symbols=ROWS, workspace=[{"name": "s", "bytes": ["nbytes", 1], "align": 1}]
    )
    assert _native.Plan(by_bytes).workspace_bytes({"M": 3, "K": 8}) == 12


SCALES = operand(1, [1, "M", 5], [["mul", "M", 5], 5, 1], dtype="FP8_E4M3",
                 reordering_type="F8_128x4")  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "tiles"), [(1, 2), (128, 2), (129, 4), (300, 6)], ids=lambda value: str(value)
)
def test_09_a_reordered_blob_is_whole_tiles(rows, tiles):
    """Of 128 rows by 4 scales, one byte each: five scales take two tiles."""
    held, given = 512 * tiles, {"symbols": {"M": rows}}
    declared = ([1, rows, 5], [5 * rows, 5, 1], True)
    for shape in ((held,), (tiles, 512), (1, held // 8, 8), (held + 1,)):
        assert laid_out(SCALES, np.zeros(shape, U8), {"M": symbol()}, **given) == declared
    assert refused(laid_out, SCALES, np.zeros(held - 1, U8), {"M": symbol()}, **given)[:2] == (
        "capacity",
        1,
    )
    seen = resolved([SCALES], {1: 4096}, {"M": symbol()}, **given)
    assert seen["operands"][1]["nbytes"] == held


def test_09_strides_say_nothing_of_a_reordered_blob():
    entry = SCALES | {"dim": [1, 128, 8], "stride": [1024, 8, 1]}
    turned = np.zeros((1, 8, 128), U8).swapaxes(1, 2)
    assert laid_out(entry, turned) == ([1, 128, 8], [1024, 8, 1], True)
    gaps = np.zeros((1, 128, 16), U8)[..., :8]
    assert refused(laid_out, entry, gaps)[:2] == ("extents", 1)
    # Scales along the other axis: 5 of them for 100 rows, so 2 tiles and not 32.
    columns = SCALES | {"dim": [1, 5, 100], "stride": [500, 1, 5]}
    assert resolved([columns], {1: 4096})["operands"][1]["nbytes"] == 2 * 512
    empty = SCALES | {"dim": [0, 5, 7], "stride": [35, 7, 1]}
    assert resolved([empty], {1: 0})["operands"][1]["nbytes"] == 0


def test_09_padded_rows_of_a_blob_are_no_symbol():
    rule, uid, _ = refused(laid_out, SCALES, np.zeros((1, 128, 8), U8), {"M": symbol()})
    assert (rule, uid) == ("symbol_unbound", None)


def test_09_a_reordered_blob_has_a_bound_for_workspace():
    slices = [{"name": "s", "bytes": ["nbytes", 1], "align": 1}]
    plan = _native.Plan(table([SCALES], symbols={"M": symbol(1, 1000)}, workspace=slices))
    for rows in (1, 128, 129, 1000):
        need = plan.resolve({1: 4096}, symbols={"M": rows})["workspace_bytes"]
        assert need <= plan.workspace_bytes({"M": rows}) <= plan.workspace_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reordering_type": "INT8x32"}, "got 'INT8x32', want 'NONE' or 'F8_128x4'"),
        ({"dtype": "BFLOAT16"}, "got F8_128x4 of BFLOAT16, want a type of 8 bits"),
        ({"dtype": "FP4_E2M1", "dim": [2, 4], "stride": [4, 1]}, "want a type of 8 bits"),
        ({"dim": [4], "stride": [1]}, "got F8_128x4 of 1 axes, want at least 2"),
        ({"ragged": True}, "got F8_128x4 of a ragged operand"),
    ],
)
def test_09_what_cannot_be_reordered(change, message):
    with pytest.raises(ValueError, match=message):
        _native.Plan(table([SCALES | change], symbols={"M": symbol()}))


def test_10_overrides_are_three_equal_lists_of_known_uids():
    for lists in (([1], [[1, 4, 6]], []), ([1], None, None), ([], [[1, 4, 6]], [])):
        names = ("override_uids", "override_shapes", "override_strides")
        call = dict(zip(names, lists, strict=True))
        assert refused(resolved, [A], {1: 4096}, **call)[0] == "override"
    assert refused(resolved, [A], {1: 4096}, **overriding([1], [1], uid=3))[0] == "override"


def test_10_an_override_speaks_of_elements_in_the_graphs_axis_order():
    x = operand(1, [1, "M", 6], [["mul", "M", 6], 6, 1], dtype="BFLOAT16")
    seen = resolved(
        [x], {1: np.zeros(400, U16)}, {"M": symbol()}, **overriding([1, 9, 6], [0, 8, 1])
    )
    assert seen["symbols"] == {"M": 9}
    assert (seen["overridden"], seen["graph_described"]) == ([1], [])
    row = seen["operands"][1]
    assert (row["dim"], row["stride"], row["nbytes"]) == ([1, 9, 6], [54, 8, 1], 800)


def test_10_an_override_of_a_4_bit_operand_becomes_slots():
    room = np.zeros(64, U8)
    call = overriding([4, 6], [8, 1])
    assert laid_out(SYMBOLIC, room, ROWS, **call) == ([4, 3], [4, 1], False)
    call = overriding([4, 5], [1, 4])  # packed along the rows
    assert laid_out(SYMBOLIC, room, ROWS, **call) == ([2, 5], [1, 2], False)
    for shape, stride in (([4, 5], [6, 1]), ([4, 6], [7, 1]), ([4, 6], [12, 2]), ([1, 1], [1, 1])):
        rule, uid, text = refused(laid_out, SYMBOLIC, room, ROWS, **overriding(shape, stride))
        assert (rule, uid) == ("override", 1) and "multiples of 2" in text
    assert (
        refused(laid_out, SYMBOLIC, room[:10], ROWS, **overriding([4, 6], [6, 1]))[0] == "capacity"
    )


def test_10_an_override_of_a_reordered_blob_needs_its_tiles():
    call = overriding([1, 129, 5], [645, 5, 1])
    assert laid_out(SCALES, np.zeros(2048, U8), {"M": symbol()}, **call)[0] == [1, 129, 5]
    held = np.zeros(2047, U8)
    assert refused(laid_out, SCALES, held, {"M": symbol()}, **call)[:2] == ("capacity", 1)
    gaps = np.zeros((64, 64), U8)[:, :40]
    assert refused(laid_out, SCALES, gaps, {"M": symbol()}, **call)[:2] == ("capacity", 1)


def test_11_workspace_of_unknown_capacity_and_of_none():
    slices = [{"name": "s", "bytes": 64, "align": 16}]
    plan = _native.Plan(table([A], workspace=slices))
    assert plan.resolve({1: 4096}, workspace=4096)["workspace_bytes"] == 64
    for short in (np.zeros(0, U8), np.zeros(63, U8), np.zeros((16, 8), U8)[:, :4]):
        assert refused(plan.resolve, {1: 4096}, workspace=short)[0] == "workspace"
    with pytest.raises(RefusedError, match="workspace: got none, want 64 bytes"):
        _native.Plan(table([A], workspace=slices), []).execute({1: 4096})


def test_12_pointers_belong_to_the_call(load):
    x = operand(1, [1, 6], [6, 1])
    y = operand(9, [1, 6], [6, 1], kind="output")
    step = kernel(whole(y), whole(x), {"arg": "scalar", "operand": 3})
    plan = _native.Plan(table([x, scalar(3), y], step), [load("scale")])
    wrong = []

    def work(seed: int) -> None:
        source, result = np.full((1, 6), seed, F32), np.zeros((1, 6), F32)
        for turn in range(200):
            plan.execute({1: source, 3: turn, 9: result})
            if not (result == F32(seed * turn)).all():
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_12_devices_are_observed_per_operand():
    pinned = Writable(4096, (4, 6), None, (4, 16, 1), (3, 0))
    seen = resolved([A, operand(2, [1]), Y], {1: pinned, 2: np.zeros(1, F32), 9: 4096})
    observed = {uid: row["observed_device"] for uid, row in seen["operands"].items()}
    assert observed == {1: (3, 0), 2: (1, 0), 9: (-1, -1)}
    assert seen["operands"][1]["observed_bytes"] == 48


def test_13_a_call_does_not_change_the_declaration():
    """Own strides and overrides are the call's: the next one starts from the declaration."""
    plan = _native.Plan(table([A, SYMBOLIC | {"uid": 2}], symbols=ROWS))
    rows = overriding([3, 4], [4, 1], uid=2)
    plan.resolve({1: np.zeros((1, 4, 9), U16)[..., :6], 2: np.zeros(64, U8)}, **rows)
    seen = plan.resolve({1: 4096, 2: 4096}, symbols={"M": 2, "K": 6})["operands"]
    assert (seen[1]["stride"], seen[2]["dim"], seen[2]["stride"]) == ([24, 6, 1], [2, 3], [3, 1])


# ---- What public programs bind ------------------------------------------------------------------


def bound(name: str, buffers: dict[int, Any], **call: Any) -> Any:
    made = pack_table(name)
    everything = {entry["uid"]: 4096 for entry in made["operands"] if entry["kind"] != "scalar"}
    return _native.Plan(made).resolve(everything | buffers, **call)


def shape_of(seen: Any, uid: int) -> Any:
    return seen["operands"][uid]["dim"], seen["operands"][uid]["stride"]


def untouched(shape: tuple[int, ...], dtype: Any) -> Any:
    """Memory that is never written takes no room."""
    return np.empty(shape, dtype)


@pytest.mark.parametrize("rows", [1, 77, 8192])
def test_an_override_matmul_takes_matrices_and_each_calls_rows(rows):
    a, b = untouched((rows, 4096), U16), untouched((6144, 4096), U16).T
    y = untouched((rows, 6144), U16)
    call = {
        "override_uids": [1, 5],
        "override_shapes": [[1, rows, 4096], [1, rows, 6144]],
        "override_strides": [[rows * 4096, 4096, 1], [rows * 6144, 6144, 1]],
    }
    seen = bound(
        "fi_mm_bf16_override_qkv_bias", {1: a, 2: b, 3: untouched((6144,), U16), 5: y}, **call
    )
    assert list(seen["symbols"].values()) == [rows]
    assert seen["overridden"] == [1, 5] and seen["graph_described"] == [3]
    assert shape_of(seen, 1) == ([1, rows, 4096], [rows * 4096, 4096, 1])
    assert shape_of(seen, 2) == ([1, 4096, 6144], [25165824, 1, 4096])
    # Without overrides the matrices say as much.
    seen = bound("fi_mm_bf16_override_qkv_bias", {1: a, 2: b, 5: y})
    assert list(seen["symbols"].values()) == [rows]


def test_a_matmul_takes_m_major_operands():
    made = {
        entry["uid"]: entry for entry in pack_table("fi_mm_bf16_a_m_major_b_n_major")["operands"]
    }
    _, m, k = made[1]["dim"]
    seen = bound("fi_mm_bf16_a_m_major_b_n_major", {1: untouched((k, m), U16).T})
    assert shape_of(seen, 1) == ([1, m, k], [made[1]["stride"][0], 1, m])


@pytest.mark.parametrize("scale", [np.zeros((), F32), np.zeros(1, F32)], ids=["0-d", "one"])
def test_fp8_scales_are_scalars_of_any_rank(scale):
    seen = bound("fi_bmm_fp8_b64", {1: untouched((64, 4, 7168), U8), 3: scale, 4: scale})
    assert shape_of(seen, 3) == ([1, 1, 1], [1, 1, 1])
    assert {3, 4} <= set(seen["graph_described"]) and 1 not in seen["graph_described"]


def test_an_fp4_matmul_takes_bytes_and_flat_scale_blobs():
    buffers = {
        1: untouched((512, 3584), U8),
        2: untouched((1024, 3584), U8).T,
        3: untouched((512 * 448,), U8),
        4: untouched((1024, 448), U8),
        5: np.zeros((), F32),
    }
    seen = bound("fi_mm_fp4_m512", buffers)
    assert shape_of(seen, 1) == ([1, 512, 3584], [512 * 3584, 3584, 1])
    assert shape_of(seen, 2) == ([1, 3584, 1024], [1024 * 3584, 1, 3584])
    assert shape_of(seen, 3) == ([1, 512, 448], [229376, 448, 1])
    assert shape_of(seen, 4) == ([1, 448, 1024], [458752, 1, 448])
    assert seen["graph_described"] == [1, 3, 4, 5, 9]
    for uid, short in ((1, untouched((512 * 3584 - 1,), U8)), (3, untouched((512 * 448 - 1,), U8))):
        assert refused(bound, "fi_mm_fp4_m512", buffers | {uid: short})[:2] == ("capacity", uid)


def test_grouped_offsets_stay_on_the_device():
    seen = bound("fi_grouped_mm_e8", {1: untouched((1024, 512), U16), 3: np.zeros(8, I32)})
    assert shape_of(seen, 3) == ([8, 1, 1], [1, 1, 1]) and {1, 3} <= set(seen["graph_described"])


def test_one_pool_interleaves_k_and_v():
    pages, heads, page, d = 1024, 8, 16, 128
    pool = untouched((pages, 2, page, heads, d), U16)
    k, v = (pool[:, i].transpose(0, 2, 1, 3) for i in (0, 1))
    q, table_of_pages = untouched((16, 64, 128), U16), np.zeros((16, 64), I32)
    lengths = np.zeros(16, I32)
    seen = bound("fi_paged_decode_b16_64_8", {1: q, 2: k, 3: v, 4: table_of_pages, 7: lengths})
    for uid in (2, 3):
        assert shape_of(seen, uid) == (
            [pages, heads, page, d],
            [2 * page * heads * d, d, heads * d, 1],
        )
    assert seen["operands"][3]["address"] - seen["operands"][2]["address"] == 2 * page * heads * d
    assert shape_of(seen, 4) == ([16, 1, 64, 1], [64, 64, 1, 1])


def test_packed_tokens_lie_under_a_padded_declaration():
    tokens = 1000
    q, o = untouched((tokens, 128, 192), U16), untouched((tokens, 128, 128), U16)
    offsets = np.zeros(17, I32)
    seen = bound("fi_ragged_prefill_deepseek", {1: q, 10: o, 4: offsets})
    assert shape_of(seen, 1) == ([16, 128, 1024, 192], [25165824, 192, 24576, 1])
    assert seen["operands"][1]["nbytes"] == q.nbytes and seen["operands"][10]["nbytes"] == o.nbytes
    assert shape_of(seen, 4) == ([17, 1, 1, 1], [1, 1, 1, 1])
    short = np.zeros(16, I32)  # one offset too few
    assert refused(bound, "fi_ragged_prefill_deepseek", {1: q, 4: short})[:2] == ("capacity", 4)


def test_thd_offsets_are_64_bit_and_statistics_are_packed_too():
    tokens = 5000
    buffers = {
        1: untouched((tokens, 32, 128), U16),
        4: np.zeros(9, I64),
        13: untouched((tokens, 32), F32),
    }
    seen = bound("te_thd_sink", buffers)
    assert seen["operands"][13]["nbytes"] == tokens * 32 * 4
    assert refused(bound, "te_thd_sink", {4: np.zeros(9, I32)})[:2] == ("dtype", 4)


def test_q_k_and_v_are_slices_of_one_buffer():
    s, heads, d = 8836, 16, 72
    fused = untouched((s, 3 * heads * d), U16)
    parts = [fused[:, i * heads * d : (i + 1) * heads * d].reshape(s, heads, d).transpose(1, 0, 2)
             for i in range(3)]  # fmt: skip
    assert all(part.base is not None for part in parts)
    seen = bound("vit_qwen3vl_fused_qkv_s8836", {1 + i: part for i, part in enumerate(parts)})
    for uid in (1, 2, 3):
        assert shape_of(seen, uid) == ([1, heads, s, d], [30537216, d, 3 * heads * d, 1])
    assert seen["graph_described"] == [4]


def test_a_scale_by_value_is_a_number_of_the_call():
    q = untouched((4, 1024, 16, 64), U16).transpose(0, 2, 1, 3)
    seen = bound("torch_sdpa_scale_tensor_b4", {1: q, 2: q, 3: q, 4: 0.125})
    assert seen["operands"][4] == {"value": 0.125}
    assert shape_of(seen, 1) == ([4, 16, 1024, 64], [1048576, 64, 1024, 1])
    assert refused(bound, "torch_sdpa_scale_tensor_b4", {})[:2] == ("presence", 4)


def test_a_training_view_keeps_its_layout():
    entry = {row["uid"]: row for row in pack_table("train_llama_fwd")["operands"]}[1]
    batch, heads, s, d = entry["dim"]
    q = untouched((batch, s, heads, d), U16).transpose(0, 2, 1, 3)
    seen = bound("train_llama_fwd", {1: q})
    assert shape_of(seen, 1) == (entry["dim"], entry["stride"])


def test_a_state_is_read_and_written_in_place():
    state = untouched((16, 128, 128), F32)
    seen = bound("fi_gdn_linear_t2048", {6: np.zeros(2, I32), 7: state, 9: state})
    assert seen["operands"][7]["address"] == seen["operands"][9]["address"] == state.ctypes.data
