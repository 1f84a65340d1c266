"""The build: graph files in, a store out, every step resumable.

Order of publication: the record of the build, kernels, plan record, then what `publish` adds. A
build that is killed and repeated therefore only does what is missing.
A graph whose stored plan key equals today's and whose kernels are all present and whole is not
planned again and nothing is written. No recipe is imported then, unless a tuning file is given:
which entries of it speak of the graph, the family's analyzer tells.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.plan_record import engines_of
from cudnn_aot.cache.progress import Event, ProgressCallback, Stage, silent
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import records
from cudnn_aot.compiler.build.estimate import estimated_seconds, longest_first
from cudnn_aot.compiler.build.executors import ExecutorChoice
from cudnn_aot.compiler.build.provenance import build_record
from cudnn_aot.compiler.build.publish import add_to_class, publish, put_names
from cudnn_aot.compiler.build.shards import Shard, parse_shard, partition
from cudnn_aot.compiler.build.sources import Source, expand, failure_line, read_sources
from cudnn_aot.compiler.build.stored import StoredPlan, stored_plan
from cudnn_aot.compiler.build.summary import (
    BuildSummary,
    GraphResult,
    KernelFailure,
    KernelResult,
    KernelTotals,
    Status,
)
from cudnn_aot.compiler.planning.manifest import check_providers
from cudnn_aot.compiler.planning.plan import hints, plan_configs, plan_graph, plan_key
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.planning.providers import provider_order
from cudnn_aot.compiler.planning.tuning import Tuning, load_tuning
from cudnn_aot.compiler.target.target import Target, load_targets, need_builder
from cudnn_aot.errors import CompileError, UsageError, cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from cudnn_aot.cache.compile import KernelEntry
    from cudnn_aot.compiler.build.backend import BackendOutcome
    from cudnn_aot.compiler.planning.cudnn import Cudnn

_NOTES_EVERY_S = 0.2


@dataclass(slots=True)
class _Job:
    """One graph on one target for one provider, and all sources that hold that graph."""

    target: Target
    sources: list[Source]
    provider: str = "native"
    backend: BackendOutcome | None = None
    plan_key: str = ""
    planned: Planned | None = None
    others: tuple[Planned, ...] = ()  # to be measured beside it
    stored: StoredPlan | None = None
    status: Status | None = None
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    waiting_for: set[str] = field(default_factory=set)

    @property
    def source(self) -> Source:
        return self.sources[0]

    @property
    def specs(self) -> Iterator[KernelSpec]:
        """The kernels of all its plans."""
        for planned in (self.planned, *self.others):
            if planned is not None:
                yield from planned.kernels

    @property
    def label(self) -> str:
        return f"{self.source.name} for {self.target.name}"

    def fail(self, reason: str) -> None:
        self.status = Status.FAILED
        self.reasons = (*self.reasons, reason)


def build(
    files: Sequence[str | Path],
    targets: Sequence[str],
    store: str | Path,
    *,
    jobs: int | None = None,
    forbid_compile: bool = False,
    tuning: str | Path | None = None,
    progress: ProgressCallback = silent,
    engines: Sequence[str] = ("native",),
    host: str | None = None,
    executor: str = "local",
    ray_address: str | None = None,
    shard: str | None = None,
    lock_timeout_s: float | None = None,
    all_configs: bool = False,
) -> BuildSummary:
    """Build every graph of ``files`` for every target into ``store``.

    Args:
        files: graph files, ours or the peer's, a file may hold several graphs; and folders, whose
            ``*.json`` files are taken.
        targets: names of known targets or paths of target files.
        store: folder of the store; created when there is at least one graph to put in.
        jobs: compile workers; None fits them to processors and memory.
        executor: where kernels are compiled, of ``executors.EXECUTORS``.
        ray_address: the Ray cluster, for ``"ray"``; None for the one that is running.
        shard: ``"i/N"`` to build the i-th of N parts, which other machines divide the same way.
        lock_timeout_s: fail what waits longer for another builder; None to wait as long as it
            takes.
        forbid_compile: fail a graph that needs a compile instead of compiling.
        tuning: file of measured plans, which come before those that the heuristics rank.
        progress: called from the calling thread only.
        engines: providers to ask, of ``manifest.PROVIDERS``; what others have made stays.
        host: ``TRIPLE[/LEVEL]`` in place of each target's own host.
        all_configs: build beside each best plan every other that is worth measuring.

    Raises:
        CompileError: the host is one that no kernel can be compiled for here.
        UsageError: no or unknown target, an unknown provider or executor, a part of no whole, a
            path that is not a store, one name for two graphs, a tuning file that is none.
        StoreError: the store cannot be written, or is pruned for longer than ``lock_timeout_s``.
    """
    started = time.perf_counter()
    if not files:
        raise UsageError("no graph file given: name at least one")
    if not targets:
        raise UsageError("no target given: name at least one")
    engines = check_providers(engines)
    loaded_targets = load_targets(targets, host)
    if "native" in engines and not forbid_compile:
        need_builder(loaded_targets.values())
    measured = None if tuning is None else load_tuning(tuning)
    choice = ExecutorChoice(executor, jobs, ray_address)
    part = None if shard is None else parse_shard(shard)
    paths = expand(files)
    sources, unreadable = read_sources(paths, progress)

    results: list[GraphResult] = []
    totals = KernelTotals()
    files_written = workers = 0
    if sources:
        cudnn = _cudnn(engines)
        targeted = list(loaded_targets.values())

        def waiting(seconds: float) -> None:
            progress(Event(Stage.NOTE, 0, 0, f"waiting for a prune of {store} ({seconds:.0f} s)"))

        with StoreWriter(
            Path(store), create=True, notice=waiting, lock_timeout_s=lock_timeout_s
        ) as writer:
            asked = [(source.name, source.key) for source in sources]
            writer.introduce(lambda: build_record(asked, targeted, engines, measured, cudnn))
            run = _Run(writer, choice, forbid_compile, measured, progress, cudnn, all_configs)
            for note in _notes_on_hints(sources):
                progress(Event(Stage.NOTE, 0, 0, note))
            all_jobs = _jobs(sources, targeted, engines)
            mine = all_jobs if part is None else _of_shard(all_jobs, part, measured, all_configs)
            results, totals = run.build(mine)
            workers = run.workers
        files_written = writer.files_written
    results += _for_targets(unreadable, loaded_targets)
    in_order = dict.fromkeys(map(str, paths))
    position = {file: place for place, file in enumerate(in_order)}
    return BuildSummary(
        store=str(store),
        jobs=workers,
        graphs=tuple(sorted(results, key=lambda result: (position[result.file], result.name))),
        kernels=totals,
        files_written=files_written,
        seconds=time.perf_counter() - started,
        executor=choice.name,
        shard=None if part is None else (part.index, part.count),
    )


def _cudnn(engines: Sequence[str]) -> Cudnn | None:
    """cuDNN, if it is asked: few builds do, and its modules take as long as fifty plans."""
    if "cudnn" not in engines:
        return None
    from cudnn_aot.compiler.planning.cudnn import Cudnn

    return Cudnn()


def _for_targets(
    unreadable: Sequence[GraphResult], targets: Mapping[str, Target]
) -> list[GraphResult]:
    """A file declined as a whole is declined for every target; a failed one has no target."""
    results: list[GraphResult] = []
    for result in unreadable:
        declined = result.status is Status.DECLINED
        results += [replace(result, target=t) for t in targets] if declined else [result]
    return results


def _notes_on_hints(sources: Sequence[Source]) -> list[str]:
    """For each graph that is another one but for its hints, which of the two is planned for."""
    first: dict[str, Source] = {}
    notes = []
    for source in sources:
        planned = first.setdefault(source.key, source)
        asked, taken = hints(source.graph), hints(planned.graph)
        if asked != taken:
            differ = ", ".join(
                f"{name}: {asked[name]} and {taken[name]}"
                for name in asked
                if asked[name] != taken[name]
            )
            notes.append(
                f"{source.name!r} of {source.file} and {planned.name!r} of {planned.file} are one "
                f"graph with other hints ({differ}): the plan of both is that for the latter"
            )
    return notes


def _jobs(
    sources: list[Source], targets: list[Target], engines: Sequence[str] = ("native",)
) -> list[_Job]:
    """One job per distinct graph, target and provider, in the order given.

    Of graphs that differ in hints alone the first is planned, as a store has one plan of them.
    """
    jobs: dict[tuple[str, str, str], _Job] = {}
    for target in targets:
        for source in sources:
            for provider in engines:
                key = (source.key, target.name, provider)
                job = jobs.setdefault(key, _Job(target, [], provider))
                if all(source.name != other.name for other in job.sources):
                    job.sources.append(source)
    return list(jobs.values())


def _planned(job: _Job, tuning: Tuning | None, all_configs: bool) -> tuple[Planned, ...]:
    """The plans that a build makes of a graph, the best first."""
    if all_configs:
        return plan_configs(job.source.graph, job.target, tuning=tuning)
    return (plan_graph(job.source.graph, job.target, tuning=tuning),)


def _of_shard(
    jobs: list[_Job], shard: Shard, tuning: Tuning | None, all_configs: bool
) -> list[_Job]:
    """The jobs of one part. What is stored has no say, so that every machine divides alike."""
    kernels: dict[str, dict[str, None]] = {}
    seconds: dict[str, float] = {}
    for job in jobs:
        needed = kernels.setdefault(_place(job), {})
        if job.provider == "native":
            try:
                plans = _planned(job, tuning, all_configs)
            except Exception:  # told by the part that the graph falls to
                continue
            for spec in (spec for planned in plans for spec in planned.kernels):
                needed[spec.key] = None
                seconds[spec.key] = estimated_seconds(spec)
    graphs = {place: tuple(needed) for place, needed in kernels.items()}
    parts = partition(graphs, seconds, shard.count)
    return [job for job in jobs if parts[_place(job)] == shard.index]


def _place(job: _Job) -> str:
    """What all providers' jobs of a graph on a target have in common: they share its pointer."""
    return f"{job.source.key} {job.target.name}"


class _Run:
    """The state of one build.

    Attributes:
        workers: kernels compiled at once; 0 when nothing had to be.
    """

    def __init__(
        self,
        writer: StoreWriter,
        choice: ExecutorChoice,
        forbid: bool,
        tuning: Tuning | None,
        progress: ProgressCallback,
        cudnn: Cudnn | None,
        all_configs: bool,
    ) -> None:
        self.workers = 0
        self._all_configs = all_configs
        self._writer = writer
        self._choice = choice
        self._forbid = forbid
        self._tuning = tuning
        self._progress = progress
        self._specs: dict[str, KernelSpec] = {}
        self._entries: dict[str, KernelEntry] = {}
        self._whole: dict[str, KernelResult] = {}
        self._failures: list[KernelFailure] = []
        self._notes: deque[str] = deque()
        self._cudnn = cudnn

    def build(self, jobs: list[_Job]) -> tuple[list[GraphResult], KernelTotals]:
        for done, job in enumerate(jobs, start=1):
            if job.provider == "cudnn":
                self._ask_backend(job)
            else:
                self._plan(job)
            self._progress(Event(Stage.PLAN, done, len(jobs), job.label))
        self._compile(jobs)
        return [self._result(job, source) for job in jobs for source in job.sources], self._totals(
            jobs
        )

    def _plan(self, job: _Job) -> None:
        """Find the stored plan, or plan and note which kernels are needed."""
        started = time.perf_counter()
        try:
            job.plan_key = plan_key(job.source.graph, job.target, tuning=self._tuning)
            job.stored = stored_plan(
                self._writer.reader,
                job.target.name,
                job.source.key,
                job.plan_key,
                known=self._whole,
                all_configs=self._all_configs,
            )
            if job.stored is not None:
                job.status = Status.CACHED if job.stored.record else Status.DECLINED
                job.reasons = job.stored.reasons
                if job.stored.record:
                    add_to_class(self._writer, job.target.name, job.source.graph)
                self._name(job)
                return
            job.planned, *others = _planned(job, self._tuning, self._all_configs)
            job.others = tuple(others)
            for spec in job.specs:
                self._specs.setdefault(spec.key, spec)
                job.waiting_for.add(spec.key)
        except cudnnGraphNotSupportedError as declined:
            job.status = Status.DECLINED
            job.reasons = tuple(getattr(declined, "reasons", None) or [str(declined)])
            if declined.is_lasting:
                self._publish(job, records.provider(job.plan_key, [], job.reasons))
        except Exception as error:
            job.fail(failure_line(error))
        finally:
            job.seconds = time.perf_counter() - started

    def _ask_backend(self, job: _Job) -> None:
        """cuDNN's plan, made at once."""
        from cudnn_aot.compiler.build.backend import build_backend

        assert self._cudnn is not None
        started = time.perf_counter()
        try:
            outcome = build_backend(self._writer, self._cudnn, job.source.graph, job.target)
            job.backend, job.reasons = outcome, outcome.reasons
            if outcome.provider is not None:
                self._publish(job, outcome.provider)
            elif outcome.is_stored:
                self._name(job)
            job.status = outcome.status
        except Exception as error:
            job.fail(failure_line(error))
        finally:
            job.seconds = time.perf_counter() - started

    def _compile(self, jobs: list[_Job]) -> None:
        """Compile what is absent; publish each graph as soon as its last kernel is there."""
        pending = [job for job in jobs if job.status is None]
        for job in pending:
            self._publish_if_complete(job)
        if not self._specs:
            return
        from cudnn_aot.cache.compile import compile_cached  # which most builds need not

        with contextlib.closing(self._choice.open(self._notes.append)) as executor:
            self.workers = executor.jobs
            threads = ThreadPoolExecutor(executor.jobs, thread_name_prefix="compile")
            try:
                futures: dict[Future[KernelEntry], KernelSpec] = {
                    threads.submit(
                        compile_cached,
                        spec,
                        self._writer,
                        executor,
                        forbid=self._forbid,
                        wait_notice=partial(self._waiting, spec),
                    ): spec
                    for spec in longest_first(list(self._specs.values()))
                }
                done, left = 0, set(futures)
                while left:
                    # Who waits for another builder is heard of while it waits.
                    ended, left = wait(left, _NOTES_EVERY_S, return_when=FIRST_COMPLETED)
                    while self._notes:
                        self._progress(Event(Stage.NOTE, done, len(futures), self._notes.popleft()))
                    for future in ended:
                        spec, done = futures[future], done + 1
                        detail = self._collect(spec, future, pending)
                        label = f"{spec.template} {spec.key[:12]}"
                        self._progress(Event(Stage.COMPILE, done, len(futures), label, detail))
            finally:
                # After an interruption nothing new may start; what runs ends with the executor.
                threads.shutdown(wait=False, cancel_futures=True)

    def _waiting(self, spec: KernelSpec, holder: str, seconds: float) -> None:
        """Called from a compile thread; the callback hears of it from the calling thread."""
        label = f"{spec.template} {spec.key[:12]}"
        self._notes.append(f"waiting for {label}, which {holder} compiles ({seconds:.0f} s)")

    def _collect(self, spec: KernelSpec, future: Future[KernelEntry], jobs: list[_Job]) -> str:
        waiting = [job for job in jobs if spec.key in job.waiting_for]
        try:
            entry = future.result()
        except Exception as error:
            reason = failure_line(error)
            made = error if isinstance(error, CompileError) else CompileError(reason)
            graphs = tuple((s.name, job.target.name) for job in waiting for s in job.sources)
            self._failures.append(
                KernelFailure(spec.key, spec.template, made.reason, made.log, graphs)
            )
            if spec.template not in reason:
                reason = f"kernel {spec.template} ({spec.key[:12]}): {reason}"
            for job in waiting:
                job.waiting_for.discard(spec.key)
                job.fail(reason)
            return "failed"
        self._entries[spec.key] = entry
        for job in waiting:
            job.waiting_for.discard(spec.key)
            job.seconds += entry.seconds if entry.compiled else 0.0
            self._publish_if_complete(job)
        return f"compiled in {entry.seconds:.1f} s" if entry.compiled else "in the store"

    def _publish_if_complete(self, job: _Job) -> None:
        if job.waiting_for or job.planned is None or job.status is not None:
            return
        try:
            blobs = [self._record(job, planned) for planned in (job.planned, *job.others)]
            made = records.provider(job.plan_key, blobs, job.reasons, all_configs=self._all_configs)
            self._publish(job, made)
            job.status = Status.BUILT
        except Exception as error:
            job.fail(failure_line(error))

    def _record(self, job: _Job, planned: Planned) -> str:
        entries = [self._entries[spec.key] for spec in planned.kernels]
        record = records.plan_record(job.source.key, job.target.name, planned, entries)
        return self._writer.put_blob(canonical_bytes(record))

    def _publish(self, job: _Job, made: Mapping[str, Any]) -> None:
        target, names = job.target, [source.name for source in job.sources]
        order = provider_order(job.source.graph, target, tuning=self._tuning)
        publish(self._writer, target.name, job.source.graph, names, job.provider, made, order=order)

    def _name(self, job: _Job) -> None:
        target, names = job.target.name, [source.name for source in job.sources]
        put_names(self._writer, target, job.source.graph, names)

    def _result(self, job: _Job, source: Source) -> GraphResult:
        engines: list[str] = []
        knobs: dict[str, int] = {}
        kernels: tuple[KernelResult, ...] = ()
        blobs: tuple[tuple[str, int], ...] = ()
        if job.backend is not None and job.backend.record is not None:
            record = job.backend.record
            engines, knobs = engines_of(record), dict(record["knobs"])
            blobs = tuple((blob["blob"], blob["bytes"]) for blob in record["blobs"])
        elif job.planned is not None:
            engines, knobs = list(job.planned.engine_names), dict(job.planned.knobs)
            entries = [self._entries.get(spec.key) for spec in job.planned.kernels]
            kernels = tuple(_kernel_result(entry) for entry in entries if entry is not None)
        elif job.stored is not None and job.stored.record:
            engines = engines_of(job.stored.record)
            knobs = dict(job.stored.record["knobs"])
            kernels = job.stored.kernels
        return GraphResult(
            name=source.name,
            graph_key=source.key,
            target=job.target.name,
            status=job.status or Status.FAILED,
            file=source.file,
            engines=tuple(engines),
            knobs=knobs,
            kernels=kernels,
            reasons=job.reasons,
            seconds=job.seconds,
            provider=job.provider,
            blobs=blobs,
        )

    def _totals(self, jobs: list[_Job]) -> KernelTotals:
        kernels = {entry.key: _kernel_result(entry) for entry in self._entries.values()}
        for job in jobs:
            if job.stored is not None:
                kernels.update((k.key, k) for k in job.stored.kernels if k.key not in kernels)
        return KernelTotals(
            compiled=sum(kernel.compiled for kernel in kernels.values()),
            hits=sum(not kernel.compiled for kernel in kernels.values()),
            bytes=sum(kernel.blob_bytes for kernel in kernels.values()),
            failures=tuple(sorted(self._failures, key=lambda failure: failure.key)),
        )


def _kernel_result(entry: KernelEntry) -> KernelResult:
    return KernelResult(
        key=entry.key,
        symbol=entry.symbol,
        object_digest=entry.object_digest,
        blob_digest=entry.blob_digest,
        blob_bytes=entry.blob_bytes,
        compiled=entry.compiled,
        seconds=entry.seconds,
    )
