"""What a linked kernel may need, export and hold."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_aot.cache import elf, launch_hook
from cudnn_aot.cache.instructions import check_instructions, instruction_tools
from cudnn_aot.cache.link import check_symbols, link
from cudnn_aot.cache.toolchain import device_runtime
from cudnn_aot.errors import CompileError


def object_file(folder: Path, text: str) -> Path:
    source = folder / "kernel.c"
    source.write_text(text)
    output = folder / "kernel.o"
    command = ["cc", "-O1", "-fPIC", "-w", "-fno-builtin", "-fcf-protection=none", "-c", "-o"]
    subprocess.run([*command, str(output), str(source)], check=True)
    return output


def linked(folder: Path, text: str, gpu: bool = False) -> bytes:
    made = link(object_file(folder, text), folder / "kernel.so", "cu12", gpu, "x86-64-v3")
    return made.data


def test_only_tvm_ffi_symbols_are_exported(tmp_path: Path) -> None:
    data = linked(tmp_path, "int helper(void) { return 1; } int __tvm_ffi_kernel() { helper(); }")
    assert elf.exported_symbols(data) == ["__tvm_ffi_kernel"]
    assert elf.imported_symbols(data) == []


def test_a_kernel_without_its_symbol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="exports nothing, want only __tvm_ffi_ symbols"):
        linked(tmp_path, "int kernel(void) { return 1; }")


@pytest.mark.parametrize(
    ("called", "gpu", "fine"),
    [
        ("TVMFFIErrorSetRaisedFromCStr", False, True),
        ("CuteDSLRT_TVMFFISetRaisedCudaError", True, True),
        ("CuteDSLRT_SomethingElse", True, False),
        ("cudaLaunchKernelExC", True, True),
        ("cudaLaunchKernelExC", False, False),
        ("cuLaunchKernel", True, False),
        ("expf", False, True),
        ("expf", True, False),
        ("memset", True, True),
        ("__truncsfbf2", False, False),
        ("pthread_create", False, False),
        ("system", False, False),
    ],
)
def test_undefined_symbols(tmp_path: Path, called: str, gpu: bool, fine: bool) -> None:
    text = f"int {called}(); int __tvm_ffi_kernel() {{ return {called}(); }}"
    if fine:
        linked(tmp_path, text, gpu)
        return
    with pytest.raises(CompileError) as caught:
        linked(tmp_path, text, gpu)
    assert (
        str(caught.value) == f"the linked kernel needs {called}, which no serving process provides"
    )


def test_what_a_launch_comes_to_is_looked_up(tmp_path: Path) -> None:
    """No other function of the CUDA runtime is, and none that is missing is called."""
    functions: dict[str, set[str]] = {}
    listing = subprocess.run(
        ["objdump", "-dr", device_runtime("cu12")], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        if named := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            function = functions.setdefault(named[1], set())
        elif named := re.search(r"R_\w+\s+(\w+)", line):
            function.add(named[1])
    libraries = ("cuda_dialect_init_library_once", "cuda_dialect_unload_library_once")
    reached = {*launch_hook.HARMLESS, *libraries}
    for _ in functions:
        reached |= {called for name in reached for called in functions.get(name, ())}
    assert "cudaLaunchKernelExC" in reached
    assert not reached & set(launch_hook.UNCALLED)

    calls = "".join(f"{name}();" for name in sorted(launch_hook.HARMLESS))
    data = linked(tmp_path, f"void __tvm_ffi_kernel() {{ {calls} }}", gpu=True)
    imports = {symbol.name for symbol in elf.imported_symbols(data)}
    assert {name for name in imports if name.startswith("cuda")} <= reached | {"cudaGetLastError"}


@pytest.mark.parametrize(("function", "since"), [("exp", ""), ("pow", ""), ("roundeven", "2.25")])
def test_libm_is_needed_by_name_and_without_a_version(
    tmp_path: Path, function: str, since: str
) -> None:
    """The build machine's glibc would pin exp@GLIBC_2.29."""
    text = (
        f"double {function}(double, double);"
        f"double __tvm_ffi_kernel(double x, double y) {{ return {function}(x, y); }}"
    )
    made = link(object_file(tmp_path, text), tmp_path / "k.so", "cu12", False, "x86-64-v3")
    assert elf.imported_symbols(made.data) == [elf.Import(function, "")]
    assert made.glibc_min == since
    program = (
        "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).__tvm_ffi_kernel;"
        "f.restype, f.argtypes = ctypes.c_double, [ctypes.c_double] * 2; print(f(1.0, 3.0))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "k.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(math.e if function == "exp" else 1.0)


@pytest.mark.parametrize("version", ["GLIBC_2.29", "GLIBC_2.38", "GLIBC_PRIVATE", "LIBX_1"])
def test_a_glibc_above_the_floor_is_refused(version: str) -> None:
    with pytest.raises(CompileError, match=rf"needs fmodf@{version}, want GLIBC_2\.28 or older"):
        check_symbols([elf.Import("fmodf", version)], ["__tvm_ffi_kernel"], gpu=False)


def test_linked_bytes_depend_on_no_path(tmp_path: Path) -> None:
    text = "float expf(float); float __tvm_ffi_kernel(float x) { return expf(x) + 1; }"
    made = []
    for name in ("a", "a longer folder name"):
        (tmp_path / name).mkdir()
        made.append(linked(tmp_path / name, text))
    assert made[0] == made[1]


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = object_file(tmp_path, "int __tvm_ffi_kernel() { return 0; }")
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(CompileError, match="no C compiler 'no-such-cc' to link with: install gcc"):
        link(kernel, tmp_path / "k.so", "cu12", False, "x86-64-v3")


def test_a_failed_link_says_why(tmp_path: Path) -> None:
    (tmp_path / "kernel.o").write_bytes(b"no object")
    with pytest.raises(CompileError, match=r"^cannot link with .*kernel\.o") as caught:
        link(tmp_path / "kernel.o", tmp_path / "k.so", "cu12", False, "x86-64-v3")
    assert "\n" not in str(caught.value)


LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


@pytest.mark.skipif(instruction_tools("x86-64-v3") is None, reason="no GNU binutils for x86-64")
@pytest.mark.parametrize(
    ("instruction", "lowest"),
    [
        ("addps %xmm1, %xmm2", "x86-64"),
        ("endbr64", "x86-64"),
        ("jmp . + 5", "x86-64"),
        ("pmulld %xmm1, %xmm2", "x86-64-v2"),
        ("popcnt %eax, %ebx", "x86-64-v2"),
        ("vpaddd %ymm1, %ymm2, %ymm3", "x86-64-v3"),
        ("vfmadd231ps %ymm1, %ymm2, %ymm3", "x86-64-v3"),
        ("vcvtph2ps %xmm1, %ymm2", "x86-64-v3"),
        ("andn %eax, %ebx, %ecx", "x86-64-v3"),
        ("vaddps %zmm1, %zmm2, %zmm3", "x86-64-v4"),
        ("vaddps %ymm17, %ymm2, %ymm3", "x86-64-v4"),
        ("vaddps %ymm1, %ymm2, %ymm3{%k1}", "x86-64-v4"),
        ("vaddps (%rax){1to8}, %ymm2, %ymm3", "x86-64-v4"),
        ("kmovw %k1, %eax", "x86-64-v4"),
        ("vpternlogd $1, %ymm1, %ymm2, %ymm3", "x86-64-v4"),
        ("vpdpbusd %zmm1, %zmm2, %zmm3", None),
        ("vaddph %zmm1, %zmm2, %zmm3", None),
        ("gf2p8mulb %xmm1, %xmm2", None),
        ("sha256rnds2 %xmm1, %xmm2", None),
        ("adcx %eax, %ebx", None),
    ],
)
def test_instructions_above_the_level(tmp_path: Path, instruction: str, lowest: str | None) -> None:
    source, output = tmp_path / "x.s", tmp_path / "x.o"
    source.write_text(f".text\n{instruction}\n")
    subprocess.run(["as", "-o", str(output), str(source)], check=True)
    for level in LEVELS:
        if lowest is not None and LEVELS.index(level) >= LEVELS.index(lowest):
            check_instructions(output, level)
        else:
            with pytest.raises(CompileError, match=f"which {level} does not have"):
                check_instructions(output, level)


LAUNCH = "return _cudaLaunchKernelEx(0, 0, 0);"
DECLARED = "int _cudaLaunchKernelEx(); int _cudaMemsetAsync(); int _cudaGetDevice(int *);"


@pytest.mark.parametrize(
    ("body", "hooked"),
    [
        (LAUNCH, True),
        ("int d; _cudaGetDevice(&d); " + LAUNCH, True),
        ("_cudaMemsetAsync(0, 0, 0, 0); " + LAUNCH, False),
        ("return 0;", False),
    ],
)
def test_a_host_function_that_does_nothing_but_launch_has_a_hook(
    tmp_path: Path, body: str, hooked: bool
) -> None:
    text = f"{DECLARED} int __tvm_ffi_kernel() {{ {body} }}"
    made = link(object_file(tmp_path, text), tmp_path / "kernel.so", "cu12", True, "x86-64-v3")
    exported = ["__tvm_ffi_kernel", launch_hook.NAME] if hooked else ["__tvm_ffi_kernel"]
    assert elf.exported_symbols(made.data) == exported
