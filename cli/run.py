"""``cudnn-aot run``: execute stored plans as serving does, and compare with the reference."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cli.completion import complete_plans
from cudnn_aot.cli.options import (
    StoreChoice,
    check_symbols,
    choose_keys,
    choose_store,
    json_option,
    store_option,
    target_option,
)
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.errors import (
    Error,
    NotInStoreError,
    RequirementError,
    StoreError,
    UsageError,
    did_you_mean,
)

if TYPE_CHECKING:
    from cudnn_aot.cli.operands import Operands
    from cudnn_aot.compiler.graph.graph import Graph

_BENCH_SECONDS = 1.0
_BENCH_CALLS = (5, 1000)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One executed plan."""

    name: str
    target: str
    engine: str = ""
    symbols: dict[str, int] = field(default_factory=dict)
    flops: float = 0.0
    worst_error: float = 0.0
    correct: bool = False
    fault: str = ""
    microseconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "target": self.target,
            "engine": self.engine,
            "symbols": self.symbols,
            "correct": self.correct,
            "worst_error": self.worst_error,
            "fault": self.fault,
        }
        if self.microseconds is not None:
            document["microseconds"] = round(self.microseconds, 3)
            document["tflops"] = round(self.tflops or 0.0, 4)
        return document

    @property
    def tflops(self) -> float | None:
        return self.flops / self.microseconds / 1e6 if self.microseconds else None


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_plans)
@click.option("--all", "everything", is_flag=True, help="Every plan of the store for the target.")
@store_option
@target_option("The target whose plans run; needed when the store holds several for a name.")
@click.option("--symbol", "symbols", multiple=True, metavar="M=17", help="The value of a symbol.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random operands.",
)
@click.option("--bench", is_flag=True, help="Also time the plan: the median of many calls.")
@click.option(
    "--device",
    type=click.IntRange(0, 1023),
    default=0,
    show_default=True,
    metavar="N",
    help="CUDA device.",
)
@json_option
def run(
    names: tuple[str, ...],
    everything: bool,
    store: str | None,
    target: str | None,
    symbols: tuple[str, ...],
    seed: int,
    bench: bool,
    device: int,
    as_json: bool,
) -> int:
    """Execute stored plans on random operands and check the results against the reference.

    Outputs are filled with NaN before the call. Nothing is compiled. Exit code 1 if a plan fails or
    gives a wrong result; the others still run. A symbol takes the value that planning ranked for
    unless --symbol gives one.

    \b
    cudnn-aot run ffn_up --target cpu --symbol M=17 --bench
    """
    if everything == bool(names):
        raise UsageError("name the plans to run, or pass --all")
    choice = choose_store(store)
    choice.check_writers()
    reader = choice.reader()
    given = _parse_symbols(symbols)
    if everything:
        chosen = all_names(reader, target)
        if given:
            check_symbols(given, _symbols_of(reader, chosen), of_all=True)
    else:
        chosen = [(name, target or only_target(reader, name)) for name in names]
    runner = _Runner(
        choice, reader, given, strict=not everything, seed=seed, bench=bench, device=device
    )
    outcomes = []
    for name, owner in chosen:
        outcome = runner.run(name, owner)
        outcomes.append(outcome)
        if outcome.fault:
            complain(f"error: {name}: {outcome.fault}")
    if as_json:
        print_json({"store": str(choice), "runs": [o.to_json() for o in outcomes]})
    elif any(outcome.engine for outcome in outcomes):
        say(*_report(outcomes, bench))
    if len(outcomes) == 1 and runner.last_error is not None:
        return runner.last_error.exit_code
    return 0 if all(outcome.correct for outcome in outcomes) else 1


class _Runner:
    """Opens the store once and runs plans from it one after another."""

    def __init__(
        self,
        choice: StoreChoice,
        reader: AnyReader,
        symbols: dict[str, int],
        *,
        strict: bool,
        seed: int,
        bench: bool,
        device: int,
    ) -> None:
        from cudnn_aot import runtime

        self._reader = reader
        keys = [str(key) for key in choose_keys()]
        self._store = runtime.open(choice.layers, trust=keys or None)
        self._symbols = symbols
        self._strict = strict
        self._seed = seed
        self._bench = bench
        self._device = device
        self.last_error: Error | None = None

    def run(self, name: str, target: str | None) -> _Outcome:
        try:
            return self._run(name, target)
        except MemoryError:
            self.last_error = RequirementError("this machine has not the memory that it needs")
            return _Outcome(name, target or "", fault=str(self.last_error))
        except Error as error:
            if self._strict and isinstance(error, UsageError):
                raise
            self.last_error = error
            return _Outcome(name, target or "", fault=" ".join(str(error).split()))

    def _run(self, name: str, target: str | None) -> _Outcome:
        from cudnn_aot.cli import operands as ops

        plan = self._store.plan(name, target)
        graph = _graph(self._reader, plan.target, plan.graph_key)
        given = self._symbols
        if not self._strict:  # with --all a symbol need not belong to every graph
            given = {symbol: v for symbol, v in given.items() if symbol in graph.symbols}
        symbols = ops.choose_symbols(graph, given)
        operands = ops.make_operands(graph, symbols, self._seed)
        execute = _on_cpu if plan.device == "cpu" else _on_device
        microseconds = execute(plan, operands, symbols, self._device, self._bench)
        worst, correct = ops.compare(graph, operands, symbols)
        return _Outcome(
            name=name,
            target=plan.target,
            engine=_engine_at(plan, symbols),
            symbols=symbols,
            flops=ops.matmul_flops(graph, symbols),
            worst_error=worst,
            correct=correct,
            fault="" if correct else f"wrong result: {worst:.3g} times the tolerance",
            microseconds=microseconds,
        )


def _graph(reader: AnyReader, target: str, graph_key: str) -> "Graph":
    from cudnn_aot.compiler.formats import graph_json

    pointer = reader.pointer(target, graph_key)
    return graph_json.loads(reader.blob(pointer["graph"]).decode())


def _symbols_of(reader: AnyReader, chosen: Iterable[tuple[str, str | None]]) -> list[str]:
    """Those of all graphs; a damaged one is left to whoever runs it to report."""
    symbols: dict[str, None] = {}
    for name, target in chosen:
        with contextlib.suppress(Error):
            key = reader.name(target or "", name)["graph_key"]
            symbols |= dict.fromkeys(_graph(reader, target or "", key).symbols)
    return list(symbols)


def _engine_at(plan: Any, symbols: Mapping[str, int]) -> str:
    """What serves a plan at these values."""
    for part in plan.ranges:
        if all(low <= symbols[name] <= high for name, (low, high) in part["bounds"].items()):
            return str(part["engine"]["name"])
    return str(plan.engine)


def _on_cpu(
    plan: Any, operands: "Operands", symbols: dict[str, int], device: int, bench: bool
) -> float | None:
    import numpy as np

    plan.prepare()
    buffers: dict[int, Any] = {b.uid: b.view for b in (*operands.inputs, *operands.outputs)}
    buffers |= operands.scalars
    workspace = np.empty(plan.workspace_bytes(symbols), np.uint8)

    def call() -> None:
        plan.execute(buffers, workspace, symbols=symbols)

    call()
    return _median_us(call, _wall_clock) if bench else None


def _on_device(
    plan: Any, operands: "Operands", symbols: dict[str, int], device: int, bench: bool
) -> float | None:
    from cudnn_aot.cli.device import Device
    from cudnn_aot.runtime import cudart

    plan.prepare(device)
    gpu = Device(cudart.find(), device)
    buffers: dict[int, Any] = dict(operands.scalars)
    workspace = gpu.allocate(plan.workspace_bytes(symbols))
    taken = [workspace]
    try:
        for buffer in (*operands.inputs, *operands.outputs):
            buffers[buffer.uid] = gpu.allocate(buffer.flat.nbytes)
            taken.append(buffers[buffer.uid])
            gpu.upload(buffers[buffer.uid], buffer.flat)

        def call() -> None:
            plan.execute(buffers, workspace, stream=gpu.stream, symbols=symbols)

        call()
        gpu.synchronize()
        for buffer in operands.outputs:
            gpu.download(buffer.flat, buffers[buffer.uid])

        def timed(calls: int) -> float:
            milliseconds: list[float] = []
            with gpu.timed(milliseconds):
                for _ in range(calls):
                    call()
            return milliseconds[0] * 1e3 / calls

        return _median_us(call, lambda _: timed(10)) if bench else None
    finally:
        for address in taken:
            gpu.free(address)


def _wall_clock(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e6


def _median_us(call: Callable[[], None], measure: Callable[[Callable[[], None]], float]) -> float:
    """Median of repeated measurements: about a second's worth, within bounds."""
    fewest, most = _BENCH_CALLS
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < fewest or (
        len(times) < most and time.perf_counter() - started < _BENCH_SECONDS
    ):
        times.append(measure(call))
    return statistics.median(times)


def _parse_symbols(texts: tuple[str, ...]) -> dict[str, int]:
    symbols = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value.isdecimal() and len(value) < 20):
            raise UsageError(f"--symbol: got {text[:80]!r}, want NAME=NUMBER, for example M=17")
        if name in symbols:
            raise UsageError(f"--symbol: {name!r} is given twice, want one number")
        symbols[name] = int(value)
    return symbols


def only_target(reader: AnyReader, name: str) -> str | None:
    """The one target that holds a name, None where none does; several are refused."""
    owners = [owner for owner, known in reader.names() if known == name]
    if len(owners) > 1:
        raise UsageError(f"{name!r} is stored for {', '.join(owners)}: pass --target")
    return owners[0] if owners else None


def all_names(reader: AnyReader, target: str | None) -> list[tuple[str, str | None]]:
    """Every name of a target that has a plan, with that target."""
    owners = sorted({owner for owner, _ in reader.names()})
    if target is None and len(owners) > 1:
        raise UsageError(f"pass --target: the store holds plans for {', '.join(owners)}")
    if not owners:
        raise NotInStoreError("the store holds no plan: build or pull into it first")
    chosen = target or owners[0]
    if chosen not in owners:
        held, near = ", ".join(owners), did_you_mean(chosen, owners)
        raise NotInStoreError(
            f"no plan for target {chosen!r}{near}: the store holds plans for {held}"
        )
    names = [name for owner, name in reader.names() if owner == chosen]
    return [(name, chosen) for name in names if not _is_declined(reader, chosen, name)]


def _is_declined(reader: AnyReader, target: str, name: str) -> bool:
    """Whether there is nothing to run; a damaged entry is left to whoever runs it to report."""
    try:
        pointer = reader.pointer(target, reader.name(target, name)["graph_key"])
    except StoreError:
        return False
    return pointer.get("status") == "declined"


def _report(outcomes: list[_Outcome], bench: bool) -> list[str]:
    header = ["plan", "target", "engine", "symbols", "result", "error"]
    if bench:
        header += ["us", "TFLOP/s"]
    rows = []
    for o in outcomes:
        symbols = " ".join(f"{name}={value}" for name, value in o.symbols.items())
        result = "ok" if o.correct else "WRONG" if o.engine else "failed"
        error = f"{o.worst_error:.3f}" if o.engine else "-"
        row = [o.name, o.target or "-", o.engine or "-", symbols or "-", result, error]
        if bench:
            row += [
                f"{o.microseconds:.1f}" if o.microseconds else "-",
                f"{o.tflops:.3f}" if o.tflops else "-",
            ]
        rows.append(tuple(row))
    good = sum(o.correct for o in outcomes)
    summary = f"{good} of {plural(len(outcomes), 'plan')} correct (error in units of the tolerance)"
    return [*format_table(header, rows, right="error us TFLOP/s"), "", summary]
