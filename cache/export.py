"""The step from a template to an object file; runs in a compile worker only.

All that decides bytes and is not a template, a parameter or a tool is in this file, and its source
belongs to every kernel key. Three things that the DSL would take from the build machine are
bound here: its flavour (it asks the driver), its default arch (it asks the device) and the host
processor (it generates code for the one it runs on).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

SYMBOL = "kernel"
# The DSL wants an arch before its first import, also to compile for the host.
HOST_KERNEL_ARCH = "sm_90a"

_LEVEL_1 = ("cx8", "fxsr", "mmx", "sse", "sse2")
_LEVEL_2 = (*_LEVEL_1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_LEVEL_3 = (*_LEVEL_2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_LEVEL_4 = (*_LEVEL_3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
# Processor and features, as LLVM names them, of each host level of ``compiler/target/host.py``.
HOST_CODE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "": ("generic", ("fp-armv8", "neon")),  # Armv8-A
    "x86-64": ("x86-64", _LEVEL_1),
    "x86-64-v2": ("x86-64-v2", _LEVEL_2),
    "x86-64-v3": ("x86-64-v3", _LEVEL_3),
    "x86-64-v4": ("x86-64-v4", _LEVEL_4),
}


def bind_environment(gpu_arch: str) -> None:
    """Leave the DSL one variable, the arch: some of its variables change bytes, some break it.

    torch is kept out: tvm-ffi imports it where it is installed, which asks the driver and may build
    an extension.
    """
    # None is how Python spells "not importable".
    sys.modules["torch"] = None  # type: ignore[assignment]
    for name in [name for name in os.environ if name.startswith("CUTE_DSL_")]:
        del os.environ[name]
    os.environ["CUTE_DSL_ARCH"] = gpu_arch or HOST_KERNEL_ARCH


def bind_flavor(flavor: str, libraries: Path) -> None:
    """Load the code generator of ``flavor`` before the DSL picks one by asking the driver.

    Args:
        libraries: the DSL's ``cutlass/_mlir/_mlir_libs`` folder.
    """
    name = "cutlass._mlir._mlir_libs._cutlass_ir"
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    found = [libraries / f"_cutlass_ir.{flavor}{suffix}" for suffix in suffixes]
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        raise ImportError(f"the DSL has no code generator {found[0].name}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    import cutlass._mlir._mlir_libs as parent

    parent._cutlass_ir = module
    for late in ("cutlass.cute", "tvm_ffi"):  # now, and not in the middle of the first kernel
        importlib.import_module(late)
    if sys.modules[name] is not module:
        raise ImportError("the DSL replaced the code generator that was bound")


def export(
    module: str,
    function: str,
    params: Mapping[str, Any],
    gpu_arch: str,
    host_level: str,
    options: tuple[str, ...],
    output: Path,
) -> int:
    """Compile one template into the object file ``output``; returns its opt-in shared memory."""
    import cutlass.cute as cute

    template = getattr(importlib.import_module(module), function)(params)
    words = ["--enable-tvm-ffi", *(("--gpu-arch", gpu_arch) if gpu_arch else ()), *options]
    compiled = cute.compile(template.function, *template.args, options=" ".join(words))
    write_object(compiled, host_level, output)
    return int(template.smem_bytes)


def write_object(compiled: Any, host_level: str, output: Path) -> None:
    """Write what the DSL compiled, with host code for a level, as an object file."""
    _tabulate_errors(compiled.ir_module)
    _pin_host(compiled.ir_module, host_level)
    compiled.export_to_c(str(output), function_name=SYMBOL, export_only_tvm_ffi_symbols=True)


# What a failing check of an argument calls: with the kind of error, how many parts its message has,
# and the parts, each an address.
_RAISE = "__tvm_ffi__set_error_from_parts_"
# In its place, with a row of a table: numbers of the kind and of each part, and a 0. A number says
# where in a text the part stands.
_RAISE_ROW = Template("""
llvm.mlir.global internal constant @error_text("$text") : !llvm.array<$text_size x i8>
llvm.mlir.global internal constant @error_places(dense<$places> : tensor<${places_size}xi16>)
  : !llvm.array<$places_size x i16>
llvm.mlir.global internal constant @error_rows("$rows") : !llvm.array<$rows_size x i8>
llvm.func @TVMFFIErrorSetRaisedFromCStrParts(!llvm.ptr, !llvm.ptr, i32)
llvm.func internal @raise_row(%row: i32) attributes {passthrough = ["noinline"]} {
  %none = llvm.mlir.constant(0 : i8) : i8
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %most = llvm.mlir.constant($most_parts : i32) : i32
  %parts = llvm.alloca %most x !llvm.ptr : (i32) -> !llvm.ptr
  %text = llvm.mlir.addressof @error_text : !llvm.ptr
  %places = llvm.mlir.addressof @error_places : !llvm.ptr
  %rows = llvm.mlir.addressof @error_rows : !llvm.ptr
  %start = llvm.getelementptr %rows[%row] : (!llvm.ptr, i32) -> !llvm.ptr, i8
  llvm.br ^each(%zero : i32)
^each(%count: i32):
  %at = llvm.getelementptr %start[%count] : (!llvm.ptr, i32) -> !llvm.ptr, i8
  %next = llvm.load %at : !llvm.ptr -> i8
  %is_end = llvm.icmp "eq" %next, %none : i8
  llvm.cond_br %is_end, ^end, ^part
^part:
  %number = llvm.zext %next : i8 to i64
  %entry = llvm.getelementptr %places[%number] : (!llvm.ptr, i64) -> !llvm.ptr, i16
  %place = llvm.load %entry : !llvm.ptr -> i16
  %offset = llvm.zext %place : i16 to i64
  %part = llvm.getelementptr %text[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %slot = llvm.getelementptr %parts[%count] : (!llvm.ptr, i32) -> !llvm.ptr, !llvm.ptr
  llvm.store %part, %slot : !llvm.ptr, !llvm.ptr
  %behind = llvm.add %count, %one : i32
  llvm.br ^each(%behind : i32)
^end:
  %kind = llvm.load %parts : !llvm.ptr -> !llvm.ptr
  %message = llvm.getelementptr %parts[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
  %size = llvm.sub %count, %one : i32
  llvm.call @TVMFFIErrorSetRaisedFromCStrParts(%kind, %message, %size)
    : (!llvm.ptr, !llvm.ptr, i32) -> ()
  llvm.return
}
""")


def _tabulate_errors(module: Any) -> None:
    """Let a failing check of an argument name a row of a table, not the parts of its message: their
    addresses take a hundred bytes of code, and a kernel has up to 150 checks.
    """
    ir: Any = importlib.import_module("cutlass._mlir.ir")
    llvm: Any = importlib.import_module("cutlass._mlir.dialects.llvm")
    raises = _raises(module, ir, llvm)
    text, rows = bytearray(), bytearray()
    places = [0]  # by number: none is 0
    numbers: dict[bytes, int] = {}
    starts: dict[tuple[bytes, ...], int] = {}
    for _, parts in raises:
        for part in parts:
            if part not in numbers:
                numbers[part] = len(places)
                places.append(len(text))
                text += part
        if parts not in starts:
            starts[parts] = len(rows)
            rows += bytes([*(numbers[part] for part in parts), 0])
    if not raises or len(places) > 1 << 8 or len(text) > 1 << 16:
        return
    source = _RAISE_ROW.substitute(
        text=_escaped(text),
        text_size=len(text),
        places=places,
        places_size=len(places),
        rows=_escaped(rows),
        rows_size=len(rows),
        most_parts=max(map(len, starts)),
    )
    with module.context, ir.Location.unknown():
        known = ir.SymbolTable(module.operation)  # what it calls is declared already
        made = ir.Module.parse(source)
        with ir.InsertionPoint(module.body):
            for each in made.body.operations:
                if each.sym_name.value not in known:
                    each.clone()
        i32 = ir.IntegerType.get_signless(32)
        ends: dict[Any, Any] = {}  # of functions: what all their failing checks go to
        for (call, status, leave), parts in raises:
            block = call.block
            if block.owner not in ends:
                end = ends[block.owner] = block.region.blocks.append(i32)
                with ir.InsertionPoint(end):
                    llvm.call(None, list(end.arguments), [], [], callee="raise_row")
                    llvm.return_(arg=llvm.mlir_constant(status.attributes["value"]))
            for each in (leave, status, call):
                each.erase()
            with ir.InsertionPoint(block):
                row = llvm.mlir_constant(ir.IntegerAttr.get(i32, starts[parts]))
                llvm.br([row], ends[block.owner])


def _escaped(data: bytes | bytearray) -> str:
    """What stands in a string of MLIR."""
    return "".join(f"\\{byte:02X}" for byte in data)


def _raises(module: Any, ir: Any, llvm: Any) -> list[tuple[list[Any], tuple[bytes, ...]]]:
    """Each end of a block that raises what is known here: the call, the function's status and its
    return; with the kind and the parts of the message, and their ends.
    """
    texts: dict[str, bytes] = {}
    calls = []

    def find(operation: Any) -> Any:
        attributes = operation.attributes
        if operation.name == "llvm.mlir.global" and "value" in attributes:
            if isinstance(attributes["value"], ir.StringAttr):
                texts[attributes["sym_name"].value] = attributes["value"].value_bytes
        elif operation.name == "llvm.call" and "callee" in attributes:
            if attributes["callee"].value.startswith(_RAISE):
                calls.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(find)
    found = []
    for call in calls:
        kind, count, *parts = call.operands
        if count.owner.name != "llvm.mlir.constant":
            continue
        used = [kind, *parts[: count.owner.attributes["value"].value]]
        operations = [each.operation for each in call.block.operations]
        end = operations[operations.index(call) :]
        names = [each.name for each in end]
        if names == ["llvm.call", "llvm.mlir.constant", "llvm.return"]:
            if all(isinstance(each.owner, llvm.AddressOfOp) for each in used):
                symbols = [each.owner.attributes["global_name"].value for each in used]
                if all(symbol in texts for symbol in symbols):
                    found.append((end, tuple(texts[symbol] for symbol in symbols)))
    return found


def _pin_host(module: Any, level: str) -> None:
    """Generate host code for ``level``, whatever processor this is.

    A function that names its processor and features is compiled for them; the code generator's
    default is the processor that it runs on.
    """
    ir: Any = importlib.import_module("cutlass._mlir.ir")
    cpu, names = HOST_CODE[level]
    features = ",".join(f'"+{name}"' for name in names)
    with module.context, ir.Location.unknown():
        processor = ir.StringAttr.get(cpu)
        wanted = ir.Attribute.parse(f"#llvm.target_features<[{features}]>")

        def pin(operation: Any) -> Any:
            if operation.name == "llvm.func":
                operation.attributes["target_cpu"] = processor
                operation.attributes["target_features"] = wanted
                # Else it gets tables for exceptions, of which it raises none.
                operation.attributes["no_unwind"] = ir.UnitAttr.get()
            return ir.WalkResult.ADVANCE

        module.operation.walk(pin)
