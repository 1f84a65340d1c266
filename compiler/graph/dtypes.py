"""Facts about every data type: width, number class, significand, DLPack code, framework names.

One row per type; whoever needs a width, a code or a name reads it here.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.errors import InvalidGraphError


class Dtype(Record):
    """One data type.

    Attributes:
        bits: storage bits per element.
        kind: ``"float"``, ``"int"``, ``"uint"``, ``"bool"`` or ``"packed"`` (several numbers per
            element).
        significand_bits: bits of precision of a float, the implicit one included; 0 for other
            kinds.
        dlpack: DLPack (code, bits) or None where DLPack has no word for it.
        names: names of the same type in torch and numpy.
        least_exponent: of a float, of its smallest normal number.
        largest: of a float, its largest finite number.
        least: of a float, its least number: minus the largest, unless it has no sign.
    """

    bits: int
    kind: str
    significand_bits: int = 0
    dlpack: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    least_exponent: int = 0
    largest: float = 0.0
    least: float = 0.0

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    def nearest(self, value: float) -> float | None:
        """The number of a float type that is nearest to `value`, ties to even; None beyond all."""
        exponent = max(math.frexp(value)[1] - 1, self.least_exponent)
        step = exponent - (self.significand_bits - 1)
        if self.significand_bits < 53:
            magnitude = math.ldexp(round(math.ldexp(abs(value), -step)), step)
            value = math.copysign(magnitude, value) if magnitude or self.least < 0 else 0.0
        return value if self.least <= value <= self.largest else None

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest integer of a type that is no float."""
        if self.kind == "bool":
            return 0, 1
        if self.kind == "uint":
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1


def _float(
    bits: int,
    significand: int,
    least_exponent: int,
    largest: float,
    dlpack: tuple[int, int] | None = None,
    *names: str,
    least: float | None = None,
) -> Dtype:
    least = -largest if least is None else least
    return Dtype(bits, "float", significand, dlpack, names, least_exponent, largest, least)


# DLPack codes: int 0, uint 1, float 2, bfloat 4, bool 6, float8_e4m3fn 10, float8_e5m2 12,
# float8_e8m0fnu 14, float4_e2m1fn 17 (dlpack.h, DLDataTypeCode).
DTYPES: dict[data_type, Dtype] = {
    data_type.FLOAT: _float(32, 24, -126, 2.0**127 * (2 - 2.0**-23), (2, 32), "float32", "float"),
    data_type.DOUBLE: _float(64, 53, -1022, sys.float_info.max, (2, 64), "float64", "double"),
    data_type.HALF: _float(16, 11, -14, 65504.0, (2, 16), "float16", "half"),
    data_type.BFLOAT16: _float(16, 8, -126, 2.0**127 * (2 - 2.0**-7), (4, 16), "bfloat16"),
    data_type.INT8: Dtype(8, "int", 0, (0, 8), ("int8",)),
    data_type.INT32: Dtype(32, "int", 0, (0, 32), ("int32",)),
    data_type.INT64: Dtype(64, "int", 0, (0, 64), ("int64",)),
    data_type.UINT8: Dtype(8, "uint", 0, (1, 8), ("uint8",)),
    data_type.BOOLEAN: Dtype(8, "bool", 0, (6, 8), ("bool",)),
    data_type.FP8_E4M3: _float(8, 4, -6, 448.0, (10, 8), "float8_e4m3fn"),
    data_type.FP8_E5M2: _float(8, 3, -14, 57344.0, (12, 8), "float8_e5m2"),
    data_type.FP8_E8M0: _float(8, 1, -127, 2.0**127, (14, 8), "float8_e8m0fnu", least=2.0**-127),
    data_type.FP8_E5M3: _float(8, 4, -14, 114688.0, least=0.0),
    data_type.FP4_E2M1: _float(4, 2, 0, 6.0, (17, 4), "float4_e2m1fn", "float4_e2m1fn_x2"),
    data_type.INT4: Dtype(4, "int", 0, (0, 4), ("int4",)),
    data_type.INT8x4: Dtype(32, "packed"),
    data_type.UINT8x4: Dtype(32, "packed"),
    data_type.INT8x32: Dtype(256, "packed"),
    data_type.FAST_FLOAT_FOR_FP8: _float(32, 24, -126, 2.0**127 * (2 - 2.0**-23)),
}

_BY_NAME = {name: member for member, row in DTYPES.items() for name in row.names}


def as_data_type(value: Any) -> data_type | None:
    """The `data_type` that `value` means, or None for None and ``NOT_SET``.

    Takes a `data_type`, its name, another library's enum member of that name, or a torch or numpy
    dtype. No framework is imported: their dtypes are recognised by name.
    """
    if value is None or value is data_type.NOT_SET:
        return None
    if isinstance(value, data_type):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None) or str(value)
    if isinstance(name, str):
        if name == "NOT_SET":
            return None
        if name in data_type.__members__:
            return data_type[name]
        found = _BY_NAME.get(name.removeprefix("torch."))
        if found is None and isinstance(value, type):  # numpy.float32 itself, not its dtype
            found = _BY_NAME.get(value.__name__)
        if found is not None:
            return found
    raise InvalidGraphError(
        f"bad data_type: got {value!r}, want one of {', '.join(d.name for d in DTYPES)}"
    )
