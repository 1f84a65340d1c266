"""What a build did, as a value: one row per graph and target, and the totals.

``BuildSummary.to_json`` is the document of ``cudnn-aot build --json``; see docs/json.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(str, Enum):
    """How a graph ended on a target."""

    BUILT = "built"
    CACHED = "cached"
    FAILED = "failed"
    DECLINED = "declined"


@dataclass(frozen=True, slots=True)
class KernelResult:
    """A kernel of a graph, as the store holds it."""

    key: str
    symbol: str
    object_digest: str
    blob_digest: str
    blob_bytes: int
    compiled: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphResult:
    """One graph on one target, of one provider.

    Attributes:
        name: the graph's name; the file's stem when the file could not be read as graphs.
        graph_key: empty when the file could not be read as graphs.
        target: empty when the file could not be read as graphs.
        provider: whose plan this is about, ``"native"`` or ``"cudnn"``.
        engines: that serve it; of a plan of ranges in their order. The knobs are the first one's.
        blobs: digest and size of what the plan is made of beside kernels.
        reasons: why it was declined, or the one line that says why it failed.
        seconds: planning, and the compile time of the kernels that this graph waited for.
    """

    name: str
    graph_key: str
    target: str
    status: Status
    file: str = ""
    engines: tuple[str, ...] = ()
    knobs: dict[str, int] = field(default_factory=dict)
    kernels: tuple[KernelResult, ...] = ()
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    provider: str = "native"
    blobs: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "graph_key": self.graph_key,
            "target": self.target,
            "provider": self.provider,
            "status": self.status.value,
            "file": self.file,
            "engine": self.engines[0] if self.engines else "",
            "engines": list(self.engines),
            "knobs": dict(self.knobs),
            "kernels": [
                {
                    "key": kernel.key,
                    "symbol": kernel.symbol,
                    "object": kernel.object_digest,
                    "blob": kernel.blob_digest,
                    "bytes": kernel.blob_bytes,
                    "compiled": kernel.compiled,
                    "seconds": round(kernel.seconds, 3),
                }
                for kernel in self.kernels
            ],
            "blobs": [{"blob": blob, "bytes": size} for blob, size in self.blobs],
            "reasons": list(self.reasons),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class KernelFailure:
    """A kernel that could not be had.

    Attributes:
        error: the first real error, one line, without naming the kernel.
        log: path of all that its compile printed; empty when that is nothing.
        graphs: name and target of each graph that fails with it.
    """

    key: str
    template: str
    error: str
    log: str
    graphs: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "template": self.template,
            "error": self.error,
            "log": self.log,
            "graphs": [{"name": name, "target": target} for name, target in self.graphs],
        }


@dataclass(frozen=True, slots=True)
class KernelTotals:
    """Distinct kernels of the build.

    Attributes:
        failures: kernels that could not be had.
        compiled: kernels compiled by this build.
        hits: kernels that the store already held.
        bytes: linked bytes of both together.
    """

    compiled: int = 0
    hits: int = 0
    bytes: int = 0
    failures: tuple[KernelFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """The outcome of a build.

    Attributes:
        jobs: kernels compiled at once; 0 when nothing had to be.
        shard: ``(i, N)`` when this is part i of N of a build.
    """

    store: str
    jobs: int
    graphs: tuple[GraphResult, ...]
    kernels: KernelTotals
    files_written: int
    seconds: float
    executor: str = "local"
    shard: tuple[int, int] | None = None

    def count(self, status: Status) -> int:
        return sum(result.status is status for result in self.graphs)

    def exit_code(self, allow_declined: Iterable[str] = ()) -> int:
        """0 done, 1 something failed, 3 nothing failed but a graph was declined.

        A graph is declined for a target when every provider that was asked declined it.
        A decline on a target in ``allow_declined`` does not count; ``"all"`` allows every one.
        """
        allowed = frozenset(allow_declined)
        if self.count(Status.FAILED):
            return 1
        served = {
            (r.name, r.graph_key, r.target) for r in self.graphs if r.status is not Status.DECLINED
        }
        declined = {r.target for r in self.graphs if (r.name, r.graph_key, r.target) not in served}
        return 3 if declined and "all" not in allowed and declined - allowed else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "executor": self.executor,
            "jobs": self.jobs,
            "shard": None if self.shard is None else list(self.shard),
            "graphs": [result.to_json() for result in self.graphs],
            "kernels": {
                "compiled": self.kernels.compiled,
                "hits": self.kernels.hits,
                "bytes": self.kernels.bytes,
                "failed": len(self.kernels.failures),
            },
            "failures": [failure.to_json() for failure in self.kernels.failures],
            "files_written": self.files_written,
            "seconds": round(self.seconds, 3),
        }
