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
    _pin_host(compiled.ir_module, host_level)
    compiled.export_to_c(str(output), function_name=SYMBOL, export_only_tvm_ffi_symbols=True)


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
