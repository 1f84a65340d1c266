"""What a store already holds for a graph, when it can be used as it is.

Anything absent, damaged or of another plan key is a miss: the build then makes it again.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.plan_record import FORMAT
from cudnn_aot.cache.spec import is_current
from cudnn_aot.compiler.build.summary import KernelResult
from cudnn_aot.compiler.planning.plan import TABLE_VERSION
from cudnn_aot.errors import StoreError


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan found unchanged, or a decline found unchanged (``record`` is then None).

    ``record`` is the plan record without its table, which a build that finds it has no use for.
    """

    record: dict[str, Any] | None
    kernels: tuple[KernelResult, ...] = ()
    reasons: tuple[str, ...] = ()


class _Table(msgspec.Struct):
    version: int


class _Record(msgspec.Struct):
    """What is read of a plan record; most of it, the table, is skipped, which is a lot faster."""

    format: int
    graph_key: str
    target: str
    table: _Table
    engine: dict[str, Any]
    knobs: dict[str, int]
    requirements: dict[str, Any]
    kernels: list[dict[str, Any]]
    blobs: list[dict[str, Any]] = []
    ranges: list[dict[str, Any]] = []


_decoder = msgspec.json.Decoder(_Record)


def stored_plan(
    reader: AnyReader,
    target: str,
    graph_key: str,
    plan_key: str,
    provider: str = "native",
    known: dict[str, KernelResult] | None = None,
    all_configs: bool = False,
) -> StoredPlan | None:
    """A provider's stored plan if its plan key is equal and every byte it needs is whole.

    ``known`` has the kernels that this build found whole and current already, by kernel key; plans
    share kernels, so each is read and hashed once per build. With ``all_configs`` the other plans
    that are worth measuring have to be there, too.
    """
    known = {} if known is None else known
    try:
        pointer = reader.pointer(target, graph_key)
        held = providers_of(pointer)[provider]
        if held["plan_key"] != plan_key:
            return None
        reader.blob(pointer["graph"])
        if all_configs and held["records"] and held.get("all_configs") is not True:
            return None
        if not held["records"]:
            return StoredPlan(None, reasons=tuple(held["reasons"]))
        found: list[tuple[dict[str, Any], tuple[KernelResult, ...]]] = []
        for digest in held["records"]:
            read = _decoder.decode(reader.blob(digest))
            if (read.format, read.table.version) != (FORMAT, TABLE_VERSION):
                return None  # of another release, which this one cannot serve
            if (read.graph_key, read.target) != (graph_key, target):
                return None
            record = msgspec.structs.asdict(read)
            for blob in record["blobs"]:
                reader.blob(blob["blob"])
            kernels = tuple(_kernel(reader, item, known) for item in record["kernels"])
            found.append((record, kernels))
        return StoredPlan(found[0][0], found[0][1])
    except (StoreError, msgspec.MsgspecError, LookupError, TypeError, ValueError):
        return None


def _kernel(
    reader: AnyReader, item: dict[str, Any], known: dict[str, KernelResult]
) -> KernelResult:
    """A kernel of a plan record, once the store's own record of it says the same."""
    whole = known.get(item["key"])
    if whole is not None and (whole.blob_digest, whole.symbol) == (item["blob"], item["symbol"]):
        return whole
    stored = reader.kernel(item["key"])
    if not is_current(stored["spec"]):
        raise ValueError("the kernel's sources or tools have changed since")
    # Not the blob: the plan may be of another machine, which linked the same object otherwise.
    if (stored["object"]["sha256"], stored["symbol"]) != (item["object"], item["symbol"]):
        raise ValueError("the plan record and the kernel record name different objects")
    reader.blob(item["blob"])
    whole = known[item["key"]] = KernelResult(
        key=item["key"],
        symbol=item["symbol"],
        object_digest=item["object"],
        blob_digest=item["blob"],
        blob_bytes=item["bytes"],
        compiled=False,
        seconds=0.0,
    )
    return whole
