"""What ``cudnn-aot record`` does: a program run, or records read, then graph files and a report."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.compiler.recorder.collection import (
    Recording,
    collect,
    prepare_folder,
    write_recording,
)
from cudnn_aot.compiler.recorder.frontend_log import read_log
from cudnn_aot.compiler.recorder.launch import run_recorded
from cudnn_aot.compiler.recorder.spool import Spool, read_spool
from cudnn_aot.errors import UsageError

_NOTHING_SEEN = (
    "no graph was recorded: either the program built none through `cudnn.pygraph`, or its Python "
    "ignores PYTHONPATH (python -I, -E, -S); for graphs built in C++ see --from-log"
)


def record_program(command: tuple[str, ...], target: Path, symbolize: bool, as_json: bool) -> int:
    """Run a program and write its graphs into a folder; returns the program's exit code."""
    prepare_folder(target)
    spool = Path(tempfile.mkdtemp(prefix="cudnn-aot-record-"))
    try:
        code = run_recorded(command, spool, stdout_to_stderr=as_json)
    except UsageError:
        shutil.rmtree(spool, ignore_errors=True)
        raise
    try:
        recording = collect(read_spool(spool), symbolize=symbolize)
        write_recording(recording, target)
    except Exception as error:
        complain(
            f"error: {' '.join(str(error).split())}; the records are kept: "
            f"cudnn-aot record -o {target} --from-spool {spool}"
        )
        return code or 1
    shutil.rmtree(spool, ignore_errors=True)
    _report(recording, target, as_json, to_stderr=True)
    return code


def record_files(
    logs: Iterable[str], spools: Iterable[str], target: Path, symbolize: bool, as_json: bool
) -> int:
    """Write the graphs of logs and of kept records into a folder."""
    prepare_folder(target)
    spool, notes = _read(logs, spools)
    recording = collect(spool, symbolize=symbolize)
    recording.notes += notes
    write_recording(recording, target)
    _report(recording, target, as_json, to_stderr=False)
    return 0


def _read(logs: Iterable[str], spools: Iterable[str]) -> tuple[Spool, list[str]]:
    """The records of logs and spool folders as one."""
    whole, notes = Spool(), []
    for path in map(Path, logs):
        log = read_log(path)
        whole.graphs += log.graphs
        whole.damaged += len(log.damaged)
        if log.without_json:
            notes.append(
                f"{path}: {plural(log.without_json, 'graph')} not printed: the library that wrote "
                "the log was compiled with CUDNN_FRONTEND_SKIP_JSON_LIB"
            )
        notes += [f"{path}: the graph at byte {offset} is damaged" for offset in log.damaged[:20]]
    for folder in map(Path, spools):
        if not os.path.isdir(folder):
            raise UsageError(f"{folder}: not a folder of records")
        spool = read_spool(folder)
        whole.graphs += spool.graphs
        whole.pids += spool.pids
        whole.modules |= spool.modules
        whole.failures += spool.failures
        whole.failed += spool.failed
        whole.dropped += spool.dropped
        whole.damaged += spool.damaged
    return whole, notes


def _report(recording: Recording, target: Path, as_json: bool, *, to_stderr: bool) -> None:
    if as_json:
        print_json({"folder": str(target), **recording.to_json()})
        return
    rows = [
        (
            graph.name,
            ", ".join(
                f"{name} {symbol.min}..{symbol.max}" for name, symbol in graph.graph.symbols.items()
            )
            or "-",
            str(len(graph.shapes)),
            str(graph.built),
            str(graph.executed),
        )
        for graph in recording.graphs
    ]
    table = format_table(
        ("graph", "symbols", "shapes", "built", "executed"), rows, right="shapes built executed"
    )
    lines = [*table, ""] if table else []
    lines += [f"not read: {item.file}: {item.reason}" for item in recording.unread]
    lines += [f"note: {note}" for note in recording.notes]
    lines += _complaints(recording.spool)
    if not rows and not recording.unread:
        lines.append(_NOTHING_SEEN if to_stderr else "no graph was found")
    else:
        count = plural(len(rows), "graph") + (
            f" and {plural(len(recording.unread), 'unread record')}" if recording.unread else ""
        )
        processes = len(recording.spool.pids)
        origin = f" from {processes} process{'' if processes == 1 else 'es'}" if to_stderr else ""
        lines.append(f"{count}{origin} written to {target}")
    if not to_stderr:
        say(*lines)
        return
    for line in lines:
        complain(line)


def _complaints(spool: Spool) -> list[str]:
    lines = [f"recorder: {text}" for text in spool.failures]
    if spool.failed:
        lines.append(f"recorder: failed {plural(spool.failed, 'time')}; the program did not notice")
    if spool.dropped:
        lines.append(f"recorder: {plural(spool.dropped, 'record')} did not fit and were dropped")
    if spool.damaged:
        lines.append(f"recorder: {plural(spool.damaged, 'record')} damaged")
    return lines
