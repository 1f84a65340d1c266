"""The variant pack: rules of normalisation, symbols, overrides, and each refusal by its rule."""

import numpy as np
import pytest
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

M, K = 5, 8
X = operand(1, [1, "M", K], [["mul", "M", K], K, 1], dtype="BFLOAT16")
SYMBOLS = {"M": symbol(1, 64)}


def plan(*operands, **fields):
    symbols = SYMBOLS if "M" in str(operands) else {}
    return _native.Plan(table(list(operands), symbols=symbols, **fields))


def bound(buffer, operands=(X,), uid=1, **call):
    """dim, stride, nbytes and address of an operand after normalisation."""
    seen = plan(*operands).resolve({uid: buffer}, **call)["operands"][uid]
    return seen["dim"], seen["stride"], seen["nbytes"]


def refusal(function, *args, **kwargs):
    with pytest.raises(RefusedError) as refused:
        function(*args, **kwargs)
    assert "\n" not in str(refused.value)
    return refused.value.rule, refused.value.operand


DECLARED = ([1, M, K], [M * K, K, 1])


def test_rule_1_an_address_takes_the_declaration():
    assert bound(4096, symbols={"M": M}) == (*DECLARED, 2 * M * K)
    assert refusal(bound, 4096) == ("symbol_unbound", None)
    assert refusal(bound, 0, symbols={"M": M}) == ("presence", 1)


def test_rule_2_declared_extents_keep_their_strides():
    wide = np.zeros((1, M, 24), np.uint16)
    assert bound(wide[..., :K]) == ([1, M, K], [M * K, 24, 1], 2 * (4 * 24 + K))
    turned = np.zeros((1, K, M), np.uint16).transpose(0, 2, 1)
    assert bound(turned)[1] == [M * K, 1, M]
    backwards = np.zeros((1, M, K), np.uint16)[:, ::-1]
    assert bound(backwards)[1] == [M * K, -K, 1]


def test_rule_2_slots_of_the_same_width_are_read_as_declared():
    for dtype in (np.uint16, "V2"):
        assert bound(np.zeros((1, M, K), dtype)) == (*DECLARED, 2 * M * K)
    for dtype in (np.float32, np.uint8, np.complex128):
        assert refusal(bound, np.zeros((1, M, K), dtype)) == ("dtype", 1)


STORAGE = {"FLOAT": "u4 V4 f4", "DOUBLE": "u8 V8 f8", "HALF": "u2 V2 f2", "BFLOAT16": "u2 V2"}
STORAGE |= {"INT8": "u1 V1 i1", "INT32": "u4 V4 i4", "INT64": "u8 V8 i8", "UINT8": "u1 V1"}
STORAGE |= {"BOOLEAN": "u1 V1 ?", "FP8_E4M3": "u1 V1", "FP8_E5M2": "u1 V1", "FP8_E8M0": "u1 V1"}
EVERY = "? i1 u1 V1 i2 u2 V2 f2 i4 u4 V4 f4 i8 u8 V8 f8 c8 V16 c16 g".split()


@pytest.mark.parametrize("dtype", STORAGE)
def test_rule_2_a_named_type_is_read_as_itself_alone(dtype):
    """Unsigned integers and plain bytes are storage for any type of their width."""
    typed = _native.Plan(table([operand(1, [2, 4], dtype=dtype)]))
    layout = {"override_uids": [1], "override_shapes": [[2, 4]], "override_strides": [[4, 1]]}
    width = np.dtype(STORAGE[dtype].split()[0]).itemsize
    for given in EVERY:
        # Of other extents, a buffer of another width is a blob; the same width is the same type.
        flat = np.zeros(99, given)
        calls = [(flat, {}, flat.itemsize != width), (flat, layout, flat.itemsize != width)]
        for shape in ((2, 4), (2, 1, 4)):
            calls += [(np.zeros(shape, given), {}, False), (np.zeros(shape, given), layout, False)]
        for buffer, call, blob in calls:
            if blob or given in STORAGE[dtype].split():
                typed.resolve({1: buffer}, **call)
            else:
                assert refusal(typed.resolve, {1: buffer}, **call) == ("dtype", 1)


@pytest.mark.parametrize(
    "shape", [(M, K), (M, 1, K), (1, 1, M, K, 1), (1, M, K, 1)], ids=lambda shape: f"{len(shape)}d"
)
def test_rule_3_unit_axes_do_not_matter_to_a_dense_buffer(shape):
    assert bound(np.zeros(shape, np.uint16)) == (*DECLARED, 2 * M * K)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((M * K,), np.uint16), ((M * K * 2,), np.uint8), ((K, M), np.uint16), ((99, 9), np.float64)],
)
def test_rule_3_a_dense_buffer_of_other_extents_is_described_as_declared(shape, dtype):
    buffer = np.zeros(shape, dtype)
    assert bound(buffer, symbols={"M": M}) == (*DECLARED, buffer.nbytes)


def test_rule_3_a_scalar_tensor():
    one = operand(1, [1, 1, 1])
    assert bound(np.float32(3), (one,)) == ([1, 1, 1], [1, 1, 1], 4)
    assert refusal(bound, np.float64(3), (one,)) == ("dtype", 1)


def test_rule_4_a_strided_buffer_equal_up_to_unit_axes_keeps_its_strides():
    wide = np.zeros((M, 24), np.uint16)
    assert bound(wide[:, :K]) == ([1, M, K], [M * K, 24, 1], 2 * (4 * 24 + K))
    # Dense, but not in the order of its axes: reading it straight would transpose it.
    assert bound(np.zeros((K, M), np.uint16).T) == ([1, M, K], [M * K, 1, M], 2 * M * K)


N_SYMBOLS = {name: symbol(1, 64) for name in "MN"}
B = operand(2, [1, 4, "N"], [["mul", 4, "N"], "N", 1])
Y = operand(9, [1, "M", "N"], [["mul", "M", "N"], "N", 1], kind="output")


def floats(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("y", "symbols", "named"),
    [
        (floats(1, 3, 7), {"M": 3}, "'N' is 5"),  # B has 5 columns
        (floats(1, 3, 7), {"M": 3, "N": 5}, "'N' is 5"),  # its rows would begin elsewhere
        (floats(1, 2, 7), {"M": 3}, "'M' is 3"),
        (floats(1, 2, 9), {"M": 2, "N": 5}, "'N' is 5"),
        (np.zeros((5, 9), np.float32).T[None], {"M": 5, "N": 5}, "'M' is 5"),  # by columns
    ],
    ids=["another-operand", "another-pitch", "two-symbols", "columns", "transposed"],
)
def test_rule_4_a_buffer_that_spells_another_value_of_a_symbol_is_refused(y, symbols, named):
    both = _native.Plan(table([B, Y], symbols=N_SYMBOLS))
    with pytest.raises(RefusedError, match=f"^operand 9 't9': got float32 .*symbol {named}") as no:
        both.resolve({2: floats(1, 4, 5), 9: y}, symbols=symbols)
    assert (no.value.rule, no.value.operand) == ("extents", 9)


def test_rule_4_a_value_that_another_operand_spells_is_no_value_of_the_call():
    """Nobody said that 4 of the 6 rows are meant."""
    x, y = operand(1, ["M", K], [K, 1]), operand(2, ["M", K], [K, 1], kind="output")
    both = plan(x, y)
    with pytest.raises(RefusedError, match="want FLOAT .4, 8., where symbol 'M' is 4"):
        both.resolve({1: floats(4, K), 2: floats(6, K)})
    room = {1: floats(4, K), 2: floats(6, K)}
    seen = both.resolve(room, symbols={"M": 4})["operands"][2]
    assert (seen["dim"], seen["stride"], seen["nbytes"]) == ([4, K], [K, 1], 4 * 6 * K)
    assert both.bind({"M": 4}).resolve(room)["operands"][2]["dim"] == [4, K]


@pytest.mark.parametrize(
    "y",
    [floats(21), floats(1, 21), floats(1, 21, 1), floats(3, 7), floats(7, 3, 1), floats(2, 3, 5)],
    ids=lambda y: "x".join(map(str, y.shape)),
)
def test_rule_4_a_blob_spells_no_symbol(y):
    """Flat, of another rank, or with other extents where the declaration has numbers."""
    both = _native.Plan(table([B, Y], symbols=N_SYMBOLS))
    seen = both.resolve({2: floats(1, 4, 5), 9: y}, symbols={"M": 3})["operands"][9]
    assert (seen["dim"], seen["stride"]) == ([1, 3, 5], [15, 5, 1])


def test_rule_5_anything_else():
    given = {"symbols": {"M": M}}
    assert refusal(bound, np.zeros((M, 24), np.uint16)[:, :9], **given) == ("extents", 1)
    assert refusal(bound, np.zeros((1, M - 1, K), np.uint16), **given) == ("extents", 1)
    assert refusal(bound, np.zeros(M * K - 1, np.uint16), **given) == ("capacity", 1)
    assert refusal(bound, np.zeros((M, K), np.uint8), **given) == ("dtype", 1)
    assert refusal(bound, np.zeros((M, K), np.float32), **given) == ("dtype", 1)


def test_strides_of_unit_axes_are_the_declared_ones():
    odd = np.lib.stride_tricks.as_strided(np.zeros(99, np.uint16), (1, 1, K), (14, 22, 2))
    assert bound(odd) == ([1, 1, K], [K, K, 1], 2 * K)


def test_strides_of_an_empty_tensor_are_the_declared_ones():
    x = operand(1, ["M", K], [K, 1])
    empty = np.zeros((0, K), np.float32)
    assert _native.Plan(table([x], symbols={"M": symbol()})).resolve({1: empty})["operands"][1][
        "stride"
    ] == [K, 1]
    assert bound(4096, (operand(1, [0, 4], [4, 1]),))[2] == 0


def test_a_padded_declaration_needs_its_padding():
    padded = operand(1, [4, 6], [10, 1])
    assert bound(np.zeros((4, 6), np.float32), (padded,))[1] == [6, 1]  # its own, rule 2
    assert refusal(bound, np.zeros(24, np.float32), (padded,)) == ("capacity", 1)
    assert bound(np.zeros(36, np.float32), (padded,))[1] == [10, 1]


def test_a_ragged_operand_may_be_smaller_than_declared():
    q = operand(1, ["B", 4, 8], [32, 8, 1], ragged=True)
    lengths = operand(2, ["B"], [1])
    ragged = _native.Plan(table([q, lengths], symbols={"B": symbol()}))
    seen = ragged.resolve({1: np.zeros((3, 4, 8), np.float32), 2: np.zeros(7, np.float32)})
    assert seen["symbols"] == {"B": 7}  # its extents bind nothing: they are tokens
    assert seen["operands"][1]["dim"] == [7, 4, 8]
    assert seen["operands"][1]["nbytes"] == 3 * 4 * 8 * 4


def test_symbols_come_from_the_call_then_overrides_then_the_lowest_uid():
    a, b = operand(1, ["M", K], [K, 1]), operand(2, ["M", 3], [3, 1])
    both = plan(a, b)
    small = np.zeros((4, 3), np.float32)
    large = np.zeros((6, K), np.float32)
    assert both.resolve({1: large, 2: np.zeros(99, np.float32)})["symbols"] == {"M": 6}
    assert both.resolve({1: 4096, 2: small})["symbols"] == {"M": 4}
    override = {"override_uids": [2], "override_shapes": [[2, 3]], "override_strides": [[3, 1]]}
    assert both.resolve({1: large, 2: small}, **override)["symbols"] == {"M": 2}
    assert both.resolve({1: large, 2: small}, symbols={"M": 1})["symbols"] == {"M": 1}
    assert refusal(both.resolve, {1: large, 2: small}) == ("extents", 2)


@pytest.mark.parametrize(
    ("extent", "size", "value"),
    [
        (["mul", 4, "M"], 12, 3),
        (["mul", "M", 4], 13, None),
        (["add", "M", 1], 5, None),  # a sum is compared, not solved
        (["mul", "M", "M"], 9, None),
    ],
)
def test_products_are_solved_for_one_symbol(extent, size, value):
    x = plan(operand(1, [extent], [1]))
    if value is None:
        assert refusal(x.resolve, {1: np.zeros(size, np.float32)}) == ("symbol_unbound", None)
    else:
        assert x.resolve({1: np.zeros(size, np.float32)})["symbols"] == {"M": value}


def test_a_symbol_of_one_is_bound_up_to_unit_axes():
    for shape in ((1, 1, K), (1, K), (K,)):
        assert plan(X).resolve({1: np.zeros(shape, np.uint16)})["symbols"] == {"M": 1}
    two = operand(1, ["M", "N"], ["N", 1])
    ambiguous = _native.Plan(table([two], symbols={"M": symbol(), "N": symbol()}))
    assert refusal(ambiguous.resolve, {1: np.zeros(5, np.float32)}) == ("symbol_unbound", None)


def test_symbols_stay_in_their_range():
    x = _native.Plan(table([operand(1, ["M"], [1])], symbols={"M": symbol(8, 64, multiple_of=8)}))
    for size in (0, 72, 12):
        assert refusal(x.resolve, {1: np.zeros(size, np.float32)}) == ("symbol_range", 1)
        assert refusal(x.resolve, {1: 4096}, symbols={"M": size}) == ("symbol_range", None)
    assert refusal(x.resolve, {1: 4096}, symbols={"N": 8}) == ("symbol_unknown", None)


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({"M": 5.0}, "^symbol 'M': got 5.0, want an integer from 0 to 1048576 "),
        ({"M": 2**70}, f"^symbol 'M': got {2**70}, want an integer from "),
        ({"M": 10**5000}, "^symbol 'M': got a int, want an integer from "),
        ({"M": None}, "^symbol 'M': got None, want an integer from "),
        ({1: 5}, "^symbols: got 1, want 'M'"),
        ({"N": 5}, "^symbols: got 'N', want 'M'"),
        ({"\ud800": 5}, "^symbols: got a str, want 'M'|^symbols: got '.ud800', want 'M'"),
    ],
    ids=["float", "beyond", "long", "none", "integer-key", "unknown", "no-text"],
)
def test_a_bad_symbol_is_named(symbols, message):
    x = _native.Plan(table([operand(1, ["M"], [1])], symbols={"M": symbol()}))
    for call in (lambda: x.resolve({1: 4096}, symbols=symbols), lambda: x.workspace_bytes(symbols)):
        with pytest.raises(RefusedError, match=message) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_a_buffer_of_another_width_is_named_instead_of_the_unbound_symbol():
    assert refusal(bound, np.zeros((M, K), np.float32)) == ("dtype", 1)


def test_overrides_describe_the_operand():
    seen = plan(X).resolve(
        {1: np.zeros(200, np.uint16)},
        override_uids=[1],
        override_shapes=[[1, 4, K]],
        override_strides=[[0, 32, 1]],
    )
    assert seen["operands"][1]["dim"] == [1, 4, K]
    assert seen["operands"][1]["stride"] == [4 * K, 32, 1]
    assert seen["operands"][1]["nbytes"] == 400


@pytest.mark.parametrize(
    ("uids", "shapes", "strides", "rule"),
    [
        ([1], [[1, 4, K]], None, "override"),
        ([1], [[1, 4, K]], [], "override"),
        ([7], [[1, 4, K]], [[K, K, 1]], "override"),
        ([1], [[4, K]], [[K, 1]], "override"),
        ([1], [[1, 4, 9]], [[36, 9, 1]], "symbol_unbound"),
        ([1], [[1, 14, K]], [[112, K, 1]], "capacity"),
        ([1], [[1, 99, K]], [[112, K, 1]], "symbol_range"),
        ([1], [[1, 4, K]], [[K, -K, 1]], "override"),
        ([1], [[1, 4, K]], [[-1, K, 1]], "override"),  # an axis that moves nothing
        ([1, 1], [[1, 4, K]] * 2, [[K, K, 1]] * 2, "override"),
        ([2**70], [[1, 4, K]], [[K, K, 1]], "override"),
        (1, [[1, 4, K]], [[K, K, 1]], "override"),
        ([1], [[1, 4.0, K]], [[K, K, 1]], "override"),
        ([1], [[1, 4, K]], [[K, 2**64, 1]], "override"),
        ([1], [4], [[K, K, 1]], "override"),
        ([1], "a", [[K, K, 1]], "override"),
        ([1], [[1, 4, K]], [[K, 2**62, 1]], "arithmetic"),
        ([1], [[1, -4, K]], [[K, K, 1]], "symbol_range"),
    ],
)
def test_bad_overrides(uids, shapes, strides, rule):
    got, _ = refusal(
        plan(X).resolve,
        {1: np.zeros(100, np.uint16)},
        override_uids=uids,
        override_shapes=shapes,
        override_strides=strides,
    )
    assert got == rule


def test_a_bad_override_says_where():
    for shapes, message in (
        ([[1, 4.0, K]], r"^override_shapes\[0\]: got 4.0, want an integer that fits int64"),
        ([None], r"^override_shapes\[0\]: got None, want a sequence of integers"),
        (7, "^override_shapes: got 7, want a sequence of shapes"),
    ):
        with pytest.raises(RefusedError, match=message):
            plan(X).resolve(
                {1: 4096}, override_uids=[1], override_shapes=shapes, override_strides=[[K, K, 1]]
            )


def test_an_override_is_of_the_declared_type():
    wide = {"override_uids": [1], "override_shapes": [[1, M, K]], "override_strides": [[0, K, 1]]}
    assert refusal(bound, np.zeros((M, K), np.float32), **wide) == ("dtype", 1)
    assert refusal(bound, np.zeros(M * K, np.float16), **wide) == ("dtype", 1)
    assert bound(np.zeros(2 * M * K, np.uint8), **wide) == (*DECLARED, 2 * M * K)


OUT = operand(9, [4], kind="output", optional=True)


def test_keys_sequences_and_presence():
    alpha, beta = scalar(3), scalar(4, value=2.5)
    both = plan(X, alpha, beta, OUT)
    x, y = np.zeros((M, K), np.uint16), np.zeros(4, np.float32)

    def seen(bindings):
        operands = both.resolve(bindings)["operands"]
        return operands[3]["value"], operands[4]["value"], operands[9]["present"]

    assert seen({1: x, 3: 1, None: 0, 77: "ignored"}) == (1.0, 2.5, False)
    assert seen({"t1": x, "t3": 0.5, "t9": y}) == (0.5, 2.5, True)
    assert seen([x, 1, 7, y]) == (1.0, 7.0, True)
    assert seen((x, 1, None)) == (1.0, 2.5, False)  # without the scalars that have a default
    assert seen({1: x, 3: 1, 9: None}) == (1.0, 2.5, False)
    assert refusal(seen, [x, 1]) == ("presence", None)
    assert refusal(seen, {1: x}) == ("presence", 3)
    assert refusal(seen, {3: 1}) == ("presence", 1)
    assert refusal(seen, {1: x, 3: 1, "t8": y}) == ("name", None)
    with pytest.raises(TypeError, match="want a uid or a name"):
        seen({1: x, 3: 1, 2.5: y})
    with pytest.raises(TypeError, match="want a dict"):
        seen(x)


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (3, "FLOAT", 3.0),
        (0.1, "FLOAT", float(np.float32(0.1))),
        (0.1, "HALF", float(np.float16(0.1))),
        (1 + 2**-8, "BFLOAT16", 1.0),
        (1 + 2**-8 + 2**-20, "BFLOAT16", 1 + 2**-7),
        (1e39, "FLOAT", float("inf")),
        (np.float16(0.5), "FLOAT", 0.5),
        (np.array([[2.0]]), "FLOAT", 2.0),
        (np.array(0x3FC0, np.uint16), "BFLOAT16", 1.5),
        (np.int32(-3), "FLOAT", -3.0),
        (-7, "INT32", -7),
        (np.array(9, np.uint8), "INT64", 9),
        (True, "BOOLEAN", 1),
        (2**70, "FLOAT", 2.0**70),
        (-128, "INT8", -128),
        (255, "UINT8", 255),
    ],
)
def test_scalars(value, dtype, want):
    assert plan(X, scalar(3, dtype=dtype)).resolve({1: 64, 3: value}, symbols={"M": 1})["operands"][
        3
    ] == {"value": want}


def test_bad_scalars():
    floats, integers = plan(X, scalar(3)), plan(X, scalar(3, dtype="INT32"))
    assert refusal(integers.resolve, {1: 64, 3: 0.5}, symbols={"M": 1}) == ("dtype", 3)
    with pytest.raises(TypeError, match="got a str, want"):
        floats.resolve({1: 64, 3: "x"}, symbols={"M": 1})
    for value, rule in (
        (np.zeros(2), "extents"),
        (np.array(2, ">f4"), "dtype"),
        (np.array(2, "c8"), "dtype"),
        (np.zeros((), "V8"), "dtype"),
        (10**400, "dtype"),
        (10**5000, "dtype"),
    ):
        assert refusal(floats.resolve, {1: 64, 3: value}, symbols={"M": 1}) == (rule, 3)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**70, "INT64"),
        (2**31, "INT32"),
        (-129, "INT8"),
        (np.int16(128), "INT8"),
        (256, "UINT8"),
        (-1, "UINT8"),
        (2, "BOOLEAN"),
    ],
)
def test_an_integer_that_its_type_does_not_hold(value, dtype):
    integers = plan(X, scalar(3, dtype=dtype))
    assert refusal(integers.resolve, {1: 64, 3: value}, symbols={"M": 1}) == ("dtype", 3)
    with pytest.raises(ValueError, match=r"value: got"):
        plan(scalar(3, int(value), dtype=dtype))


def test_an_address_is_a_multiple_of_the_element():
    assert refusal(bound, 4097, symbols={"M": M}) == ("alignment", 1)
    odd = np.zeros(2 * M * K + 1, np.uint8)[1:]
    assert refusal(bound, odd, symbols={"M": M}) == ("alignment", 1)


def test_wrong_device_and_read_only():
    class OnGpu:
        __cuda_array_interface__ = {
            "shape": (M, K),
            "typestr": "<u2",
            "data": (4096, False),
            "version": 3,
        }

    assert refusal(bound, OnGpu()) == ("device", 1)
    y = np.zeros(4, np.float32)
    y.flags.writeable = False
    x = np.zeros((M, K), np.uint16)
    x.flags.writeable = False
    assert refusal(plan(X, OUT).resolve, {1: x, 9: y}) == ("readonly", 9)
    plan(X, OUT).resolve({1: x})


@pytest.mark.parametrize(
    ("check", "buffer", "message"),
    [
        ({"rule": "alignment", "bytes": 16}, (8, 4, 1), "a multiple of 16 bytes"),
        ({"rule": "unit_stride", "axis": 1}, (0, 8, 2), "got stride 2 on axis 1, want 1"),
        (
            {"rule": "divisible", "expr": ["stride", 1, 0], "by": 8},
            (0, 5, 1),
            "got stride 5 on axis 0, want a multiple of 8",
        ),
        ({"rule": "range", "expr": ["stride", 1, 0], "min": 0, "max": 4}, (0, 8, 1), "0 to 4"),
        (
            {"rule": "equal", "a": ["stride", 1, 0], "b": 4},
            (0, 8, 1),
            "got stride 8 on axis 0, want 4",
        ),
        (
            {
                "rule": "equal",
                "a": ["select", ["lt", 1, ["dim", 1, 0]], ["stride", 1, 0], 4],
                "b": 4,
            },
            (0, 8, 1),
            "got stride 8 on axis 0, want 4",
        ),
        (
            {
                "rule": "equal",
                "a": ["select", ["lt", 1, ["stride", 1, 0]], 7, ["stride", 1, 0]],
                "b": ["select", ["eq", ["stride", 1, 0], 4], 7, 6],
            },
            (0, 8, 1),
            "got 7, want 6",
        ),
    ],
    ids=lambda value: value.get("rule") if isinstance(value, dict) else "",
)
def test_checks(check, buffer, message):
    offset, *strides = buffer
    memory = np.zeros(400, np.uint8)
    start = -memory.ctypes.data % 16
    view = np.lib.stride_tricks.as_strided(
        memory[start + offset :].view(np.float32)[:64] if offset % 4 == 0 else None,
        (3, 2),
        [4 * s for s in strides],
    )
    good = np.lib.stride_tricks.as_strided(memory[start:][:256].view(np.float32), (3, 2), (16, 4))
    x = operand(1, [3, 2], [4, 1])
    y = operand(5, [1], optional=True)
    checks = [check | {"operand": 1}, {"rule": "alignment", "operand": 5, "bytes": 1 << 20}]
    checked = _native.Plan(table([x, y], checks=checks))
    with pytest.raises(RefusedError, match=message) as refused:
        checked.resolve({1: view})
    assert (refused.value.rule, refused.value.operand) == (check["rule"], 1)
    if check["rule"] != "divisible":
        checked.resolve({1: good})


def test_no_branch_names_what_was_bound_and_the_branches():
    x = operand(1, [4])
    guarded = _native.Plan(
        table([x], dispatch=[{"when": ["divides", 8, ["stride", 1, 0]], "branch": "only"}])
    )
    with pytest.raises(RefusedError, match=r"t1.*\[4\] with strides \[1\].*'only'") as refused:
        guarded.resolve({1: np.zeros(4, np.float32)})
    assert refused.value.rule == "no_branch"


def test_a_view_may_not_leave_its_buffer():
    x = operand(1, [4])
    arg = {"arg": "tensor", "operand": 1, "dim": [4], "stride": [1], "offset": 1}
    assert refusal(_native.Plan(table([x], kernel(arg))).resolve, {1: 4096}) == ("capacity", 1)
    absent = operand(2, [4], optional=True)
    assert refusal(_native.Plan(table([absent], kernel(whole(absent)))).resolve, {}) == (
        "presence",
        2,
    )
