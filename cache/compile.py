"""``compile_cached``: from a ``KernelSpec`` to what a store holds for it, compiled at most once."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.cache import export, layout
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.executor import Executor, Failed
from cudnn_aot.cache.link import link
from cudnn_aot.cache.pool import CompilerPool
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.cache.switch import FORBID_VARIABLE
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.target.host import why_not_built_here, why_not_host
from cudnn_aot.errors import CompileError, CompileForbiddenError, StoreError

# Called while another builder compiles the kernel: who ("pid 12 on host"), seconds waited so far.
WaitNotice = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A stored kernel.

    Attributes:
        requirements: what a machine must have: ``gpu_arch``, ``smem_optin_bytes``, ``driver_min``,
            ``host_triple``, ``host_level``, ``glibc_min``; empty or 0 where nothing is asked.
        compiled: whether this call compiled it.
        seconds: that this call took to compile, link and publish; 0 for a hit.
    """

    key: str
    symbol: str
    object_digest: str
    blob_digest: str
    blob_bytes: int
    requirements: Mapping[str, Any]
    compiled: bool
    seconds: float


def compile_cached(
    spec: KernelSpec,
    store: StoreWriter,
    executor: Executor,
    forbid: bool = False,
    wait_notice: WaitNotice | None = None,
) -> KernelEntry:
    """What ``store`` holds for ``spec``, compiling and publishing it when it holds nothing whole.

    One compile per key among all builders of a store; different keys overlap. The entry is read
    back from the store, so it is what a later load sees. Thread-safe.

    Raises:
        CompileForbiddenError: the kernel is absent or damaged and ``forbid`` is set.
        CompileError: it does not compile or link, or what came out could not be served.
        NotReproducibleError: its damaged blob was compiled again and is another object.
        StoreError: the store cannot be written.
    """
    entry = stored_kernel(store.reader, spec.key)
    if entry is not None:
        return entry
    if forbid:
        raise CompileForbiddenError(
            f"kernel {spec.template} ({spec.key}) is not in the store and compiling is forbidden, "
            f"by {FORBID_VARIABLE} or by the call: allow it or use a complete store"
        )
    _check_host(spec)
    started = time.perf_counter()
    with store.lock(f"kernel-{spec.key}", wait_notice):
        entry = stored_kernel(store.reader, spec.key)
        if entry is not None:
            return entry  # the builder that we waited for made it
        _compile(spec, store, executor)
    return _reload(store.reader, spec.key, time.perf_counter() - started)


def stored_kernel(reader: StoreReader, key: str) -> KernelEntry | None:
    """The entry of a key if its record and its blob are there and whole."""
    try:
        return _reload(reader, key, None)
    except StoreError:  # not there, damaged or unreadable
        return None


def _reload(reader: StoreReader, key: str, seconds: float | None) -> KernelEntry:
    record = reader.kernel(key)
    blob = reader.blob(record["blob"]["sha256"])
    return KernelEntry(
        key=key,
        symbol=record["symbol"],
        object_digest=record["object"]["sha256"],
        blob_digest=record["blob"]["sha256"],
        blob_bytes=len(blob),
        requirements=record["requirements"],
        compiled=seconds is not None,
        seconds=seconds or 0.0,
    )


def _compile(spec: KernelSpec, store: StoreWriter, executor: Executor) -> None:
    made = executor.compile(spec)
    if isinstance(made, Failed):
        raise _compile_error(spec, made)
    with store.scratch() as folder:
        object_file = store.write_scratch(folder / "kernel.o", made.data)
        try:
            linked = link(
                object_file,
                folder / "kernel.so",
                spec.dsl_flavor,
                bool(spec.gpu_arch),
                spec.host_level,
            )
        except CompileError as error:
            raise CompileError(f"kernel {spec.template} ({spec.key[:12]}): {error}") from None
    blob = store.put_blob(linked.data)
    store.put_kernel(
        {
            "format": layout.FORMAT,
            "key": spec.key,
            "spec": spec.canonical(),
            "symbol": export.SYMBOL,
            "object": {"sha256": sha256_hex(made.data), "bytes": len(made.data)},
            "blob": {"sha256": blob, "bytes": len(linked.data)},
            "requirements": requirements_of(spec, made.smem_bytes, linked.glibc_min),
        }
    )


def requirements_of(spec: KernelSpec, smem_optin_bytes: int, glibc_min: str) -> dict[str, Any]:
    """What a machine must have to run the kernel of a spec; nothing of the target that it was for.

    Args:
        smem_optin_bytes: opt-in shared memory that its template asks for; 0 for none.
        glibc_min: lowest glibc that has its symbols; empty for any.
    """
    return {
        "gpu_arch": spec.gpu_arch,
        "smem_optin_bytes": smem_optin_bytes,
        "driver_min": spec.driver_min,
        "host_triple": spec.host_triple,
        "host_level": spec.host_level,
        "glibc_min": glibc_min,
    }


def _compile_error(spec: KernelSpec, failed: Failed) -> CompileError:
    arch = spec.gpu_arch or spec.host_level
    log = _keep_log(spec, failed.log)
    message = f"kernel {spec.template} ({spec.key[:12]}, {arch}) did not compile: {failed.reason}"
    return CompileError(message + (f"; log: {log}" if log else ""), failed.reason, str(log or ""))


def _keep_log(spec: KernelSpec, text: str) -> Path | None:
    """Keep what the worker printed where the user can read it after the build."""
    if not text.strip():
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    path = Path(cache) / "cudnn-aot" / "logs" / f"{spec.key[:16]}.log"
    try:
        if path.is_absolute():  # not of a user without a home
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return path
    except OSError:
        pass
    try:  # any user may write there: a name that was known before might lead elsewhere
        descriptor, name = tempfile.mkstemp(f"-{spec.key[:16]}.log", "cudnn-aot-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError:
        return None
    return Path(name)


def _check_host(spec: KernelSpec) -> None:
    fault = why_not_host(spec.host_triple, spec.host_level) or why_not_built_here(spec.host_triple)
    if fault is not None:
        raise CompileError(f"kernel {spec.template}: {fault}")


__all__ = [
    "CompilerPool",
    "KernelEntry",
    "WaitNotice",
    "compile_cached",
    "requirements_of",
    "stored_kernel",
]
