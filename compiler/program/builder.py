"""From a planned plan to one that can be loaded: its kernels from the store layers, or compiled.

What is compiled is published in the overlay before it is used, so the next process only loads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cudnn_aot.cache.canonical import canonical_bytes, sha256_hex
from cudnn_aot.cache.compile import CompilerPool, KernelEntry, compile_cached, stored_kernel
from cudnn_aot.cache.jobs import auto_jobs
from cudnn_aot.cache.layout import encode_name
from cudnn_aot.cache.place import CACHE_VARIABLE
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.cache.switch import FORBID_VARIABLE, is_compile_forbidden
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import records
from cudnn_aot.compiler.build.publish import publish
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.planning.providers import provider_order
from cudnn_aot.compiler.program.built import StoredPlan
from cudnn_aot.compiler.program.layers import Layers
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import (
    CompileForbiddenError,
    NotInStoreError,
    NotReproducibleError,
    StoreError,
    UsageError,
)


class Builder:
    """Builds plans of one graph; compile workers stay warm until it is closed."""

    def __init__(
        self, graph: Graph, target: Target, layers: Layers, forbid_compile: bool = False
    ) -> None:
        self._graph = graph
        self._target = target
        self._layers = layers
        self._forbidden_by = [FORBID_VARIABLE] if is_compile_forbidden() else []
        self._forbidden_by += ["enforce_precompiled"] if forbid_compile else []
        self._forbidden_by += layers.fixed_by
        self._open = contextlib.ExitStack()
        self._overlay: StoreWriter | None = None
        self._pool: CompilerPool | None = None

    def close(self) -> None:
        """End the compile workers and settle the overlay."""
        self._open.close()

    def build(self, planned: Planned) -> StoredPlan:
        """A plan with its kernels in the store layers.

        Raises:
            CompileForbiddenError: a kernel is in no layer and compiling is forbidden.
            CompileError: a kernel does not compile.
            StoreError: the overlay cannot be written.
        """
        found = {spec.key: self._stored(spec.key) for spec in planned.kernels}
        missing = {spec.key: spec for spec in planned.kernels if found[spec.key] is None}
        if missing:
            found |= self._compile(list(missing.values()))
        entries = [entry for spec in planned.kernels if (entry := found[spec.key])]
        record = records.plan_record(self._graph.key(), self._target.name, planned, entries)
        return StoredPlan(record, planned, self._blob_reader(planned.blobs))

    def publish(self, stored: StoredPlan, provider: str, plan_key: str) -> None:
        """Let the overlay say that this is a provider's plan of the graph under a plan key.

        It gets the blobs, and the kernels that only the base has, so that it is whole by itself.
        Where it cannot be written the plan is as good without it. Nobody would read it where the
        base is pinned or signed.
        """
        if self._layers.fixed_by:
            return
        order = provider_order(self._graph, self._target)
        try:
            writer = self._writer()
            self._layers.hold(self._layers.overlay, self._target.name, self._graph.key())
            for spec in stored.planned.kernels:
                self._copy(spec.key, writer)
            for blob in stored.record.get("blobs", ()):
                writer.put_blob(stored.read_blob(blob["blob"]))
            made = records.provider(plan_key, [writer.put_blob(canonical_bytes(stored.record))])
            publish(
                writer, self._target.name, self._graph, self._names(), provider, made, order=order
            )
        except NotReproducibleError:
            raise
        except StoreError:
            return

    def _blob_reader(self, blobs: Sequence[bytes]) -> Callable[[str], bytes]:
        """What gives a plan's bytes by digest: those made here, and those of the layers."""
        made = {sha256_hex(blob): blob for blob in blobs}
        layers = self._layers
        return lambda digest: made[digest] if digest in made else layers.blob(digest)

    def _names(self) -> tuple[str, ...]:
        """The graph's name, if a store can file it."""
        try:
            encode_name("graph name", self._graph.name)
        except UsageError:
            return ()
        return (self._graph.name,)

    def _stored(self, key: str) -> KernelEntry | None:
        for reader in self._layers.readers():
            entry = stored_kernel(reader, key)
            if entry is not None:
                return entry
        return None

    def _copy(self, key: str, writer: StoreWriter) -> None:
        if stored_kernel(writer.reader, key) is not None:
            return
        for reader in self._layers.readers():
            if stored_kernel(reader, key) is not None:
                record = reader.kernel(key)
                writer.put_blob(reader.blob(record["blob"]["sha256"]))
                writer.put_kernel(record)
                return
        raise NotInStoreError(f"kernel {key} is in no store any more ({self._layers})")

    def _compile(self, specs: list[KernelSpec]) -> dict[str, KernelEntry | None]:
        if self._forbidden_by:
            raise CompileForbiddenError(
                f"graph {self._graph.name!r} ({self._graph.key()}) for {self._target.name}: kernel "
                f"{specs[0].template} ({specs[0].key[:12]}) is in no store ({self._layers}) and "
                f"compiling is forbidden by {' and '.join(self._forbidden_by)}: allow it, or build "
                "the graph with "
                f"`cudnn-aot build GRAPH.json --target {self._target.name} --store DIR`"
            )
        writer, workers = self._writer(), min(len(specs), auto_jobs())
        if self._pool is None or self._pool.jobs < workers:
            self._pool = self._open.enter_context(CompilerPool(workers))
        with ThreadPoolExecutor(workers, thread_name_prefix="compile") as threads:
            pool = self._pool
            made = threads.map(lambda spec: compile_cached(spec, writer, pool), specs)
            return {entry.key: entry for entry in made}

    def _writer(self) -> StoreWriter:
        if self._overlay is None:
            try:
                writer = StoreWriter(self._layers.overlay)
            except StoreError as error:
                where = f"no place for compiled plans: set {CACHE_VARIABLE} to one"
                raise type(error)(f"{where}: {error}") from None
            self._overlay = self._open.enter_context(writer)
        return self._overlay
