"""``cudnn-aot doctor``: what this machine has, which store is in use, and what is missing for what.

Nothing is compiled and no CUDA context is made; a part that is absent is a line, not a failure.
"""

import contextlib
import ctypes
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import cudnn_aot
from cudnn_aot.cache.files import is_open_to_all
from cudnn_aot.cache.layers import open_store
from cudnn_aot.cache.place import Place
from cudnn_aot.cache.reader import Listing, StoreReader
from cudnn_aot.cache.transfer import redacted
from cudnn_aot.cli.options import choose_store, json_option, offline_choice, store_option
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.settings import SETTINGS, Choice, choose, find_config
from cudnn_aot.cli.table import format_bytes, format_table, plural
from cudnn_aot.errors import Error, StoreError, UsageError

_SERVING = ("apache-tvm-ffi",)
_BUILDING = ("nvidia-cutlass-dsl", "filelock", "numpy", "rich", "click")


@dataclass(frozen=True, slots=True)
class _Finding:
    """One line: what was looked at, what was found, and the remedy if it is not well."""

    topic: str
    found: str
    well: bool = True
    remedy: str = ""


@click.command()
@store_option
@json_option
def doctor(store: str | None, as_json: bool) -> int:
    """Report versions, the linker, CUDA, the host, the store in use, and every setting.

    A line that starts with ! says what is missing and what needs it. Of a setting it says what
    chose its value: a flag, a variable, the config file or the default. Exit code 1 if a part that
    serving needs is broken, or the store cannot be read.
    """
    choice = choose_store(store)
    settings = [
        offline_choice()
        if row.name == "offline"
        else choose(row.name, store if row.name == "store" else None)
        for row in SETTINGS
    ]
    config = find_config().path
    native = _native()
    findings = [*_python(), *native, *_distributions(), *_linker(), *_cuda()]
    if native[0].well:
        findings += _host()
    store_findings = [_Finding("store chosen by", choice.chosen_by)]
    for path in choice.layers:
        store_findings += _store(path, is_default=choice.chosen_by == "default")
    if as_json:
        print_json(
            {
                "store": str(choice),
                "store_chosen_by": choice.chosen_by,
                "config": None if config is None else str(config),
                "settings": [_setting_as_json(setting) for setting in settings],
                "findings": [_as_json(f) for f in [*findings, *store_findings]],
            }
        )
    else:
        for finding in [*findings, *store_findings]:
            remedy = f" ({finding.remedy})" if finding.remedy else ""
            mark = " " if finding.well else "!"
            say(f"{mark} {finding.topic:<20} {finding.found}{remedy}")
        say("", f"  {'config file':<20} {config or 'none'}", "")
        rows = [(c.setting.name, c.value or "-", c.chosen_by) for c in settings]
        say(*("  " + line for line in format_table(("setting", "value", "chosen by"), rows)))
    broken = [f for f in [*findings, *store_findings] if not f.well and f.topic in _ESSENTIAL]
    return 1 if broken else 0


_ESSENTIAL = ("native part", "apache-tvm-ffi", "store")


def _as_json(finding: _Finding) -> dict[str, Any]:
    return {
        "topic": finding.topic,
        "found": finding.found,
        "well": finding.well,
        "remedy": finding.remedy,
    }


def _setting_as_json(choice: Choice) -> dict[str, Any]:
    row = choice.setting
    return {
        "name": row.name,
        "value": choice.value,
        "chosen_by": choice.chosen_by,
        "flag": row.flag,
        "variable": row.variable,
        "key": row.key,
        "verbs": list(row.verbs),
    }


def _python() -> list[_Finding]:
    where = str(Path(cudnn_aot.__file__).parent)
    return [
        _Finding("cudnn-aot", f"{cudnn_aot.__version__} in {where}"),
        _Finding("python", f"{platform.python_version()} {sys.executable}"),
    ]


def _native() -> list[_Finding]:
    try:
        from cudnn_aot import _native
    except ImportError as error:
        return [_Finding("native part", str(error), False, "reinstall cudnn-aot")]
    return [_Finding("native part", str(_native.__file__))]


def _distributions() -> list[_Finding]:
    import importlib.metadata  # as long to load as all the rest

    findings = []
    for name in (*_SERVING, *_BUILDING):
        try:
            findings.append(_Finding(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            need = "serving" if name in _SERVING else "building"
            extra = "" if name in _SERVING else "[compile]"
            findings.append(
                _Finding(name, "missing", False, f"{need} needs it: pip install cudnn-aot{extra}")
            )
    return findings


def _linker() -> list[_Finding]:
    linker = os.environ.get("CC") or "cc"
    found = shutil.which(linker)
    if found is None:
        return [
            _Finding("linker", f"no {linker!r}", False, "building links kernels with cc or $CC")
        ]
    return [_Finding("linker", found)]


def _cuda() -> list[_Finding]:
    findings = []
    try:
        from cudnn_aot.runtime import cudart

        findings.append(_Finding("libcudart", cudart.find()))
    except ImportError:
        pass  # the native part is missing, which has its own line
    except Error as error:
        findings.append(_Finding("libcudart", "not found", False, str(error)))
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [*findings, _Finding("CUDA driver", "none; CPU plans and building need none")]
    version = ctypes.c_int()
    code = driver.cuDriverGetVersion(ctypes.byref(version))
    if code:
        return [*findings, _Finding("CUDA driver", f"cuDriverGetVersion gave {code}", False)]
    found = f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return [*findings, _Finding("CUDA driver", found)]


def _host() -> list[_Finding]:
    from cudnn_aot.runtime.requirements import this_host

    host = this_host()
    return [_Finding("host", f"{host.triple} {host.level}, glibc {host.glibc}")]


def _remote(url: str) -> _Finding:
    try:
        reader = open_store(url)
    except (StoreError, UsageError) as error:
        return _Finding("store", str(error), False)
    contents = f"{plural(len(reader.pointers()), 'plan')} for {', '.join(reader.targets())}"
    return _Finding("store", f"{redacted(url)}: {contents}, read by way of {reader.path}")


def _store(path: Place, is_default: bool) -> list[_Finding]:
    if not isinstance(path, Path):
        return [_remote(path)]
    if is_default and not os.path.exists(path):
        return [_Finding("store", f"{path}: not there yet; build makes it")]
    try:
        reader = StoreReader(path)
    except StoreError as error:
        return [_Finding("store", str(error), False)]
    listing = reader.listing()
    contents = f"{plural(len(listing.of('pointer')), 'plan')} for {', '.join(listing.targets)}"
    may_write = "writable" if os.access(path, os.W_OK) else "read-only"
    form = "a pack" if os.path.isfile(path) else may_write
    owner = path.stat().st_uid
    of_whom = "" if owner == os.geteuid() else f", of user {owner}"
    findings = [_Finding("store", f"{path}: {contents}, {form}{of_whom}")]
    if is_open_to_all(path):
        remedy = f"whose kernels do you run? chmod -R o-w {path}, or open it by its root digest"
        findings.append(_Finding("store writers", "any user may change it", False, remedy))
    for problem in listing.problems:
        findings.append(_Finding("store", problem.what, False, "`verify` lists what is unreadable"))
    findings += _life(reader, listing)
    foreign = listing.foreign
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        findings.append(
            _Finding("foreign files", f"{plural(len(foreign), 'file')}: {shown}", True, "ignored")
        )
    return findings


def _life(reader: StoreReader, listing: Listing) -> list[_Finding]:
    """What a store takes, who uses it, and what a killed build left beside it."""
    from cudnn_aot.cache import held, session
    from cudnn_aot.cache.inventory import sizes_of, total

    try:
        size = total(sizes_of(reader).values())
        sizes = f"{format_bytes(size.bytes)}, {format_bytes(size.disk_bytes)} on the disk"
        findings = [_Finding("store size", sizes)]
    except StoreError as error:
        findings = [_Finding("store size", str(error), False)]
    if os.path.isfile(reader.path):  # a pack: nobody builds into it or takes from it
        return findings
    marks = held.Marks(reader.path)
    try:
        if not marks.works:
            remedy = "`prune` cannot tell who uses it, nor builds of each other"
            return [*findings, _Finding("store locks", "none on its file system", False, remedy)]
        bytes_ = (held.GRAPH + held.graph_byte(*ids) for ids in listing.of("pointer"))
        count = sum(map(marks.others, bytes_))
        found = [f"{plural(count, 'graph')} held by living processes"]
        is_built = marks.others(held.BUILDING)
        found += ["somebody builds"] * is_built + ["somebody prunes"] * marks.others(held.PRUNING)
        findings.append(_Finding("store in use", ", ".join(found)))
    finally:
        marks.close()
    left = [place for place in session.places(reader.path) if os.path.lexists(place)]
    for place in left:
        with contextlib.suppress(OSError):  # another user's
            fault = session.fault_of(place, reader.path)
            if fault:
                return [*findings, _Finding("unfinished build", fault, False)]
    if left and not is_built:
        remedy = "the next build removes what a killed one left"
        findings.append(_Finding("unfinished build", str(left[0]), False, remedy))
    return findings
