"""Where a build compiles, by name; what an executor needs is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cudnn_aot.cache.executor import Executor, Notice
from cudnn_aot.cache.jobs import auto_jobs
from cudnn_aot.cache.transfer import OFFLINE_VARIABLE, is_offline
from cudnn_aot.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """An executor to be made when there is something to compile.

    Attributes:
        name: of `EXECUTORS`.
        jobs: kernels compiled at once; None for what the machine or the cluster allows.
        ray_address: the cluster, for ``"ray"`` alone; None for the one that is running.

    Raises:
        UsageError: an unknown name, fewer than one job, an address of a cluster for another
            executor, a cluster and no network (``CUDNN_AOT_OFFLINE``).
    """

    name: str = "local"
    jobs: int | None = None
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in EXECUTORS:
            near = did_you_mean(self.name, EXECUTORS)
            raise UsageError(
                f"executor: got {self.name!r}{near}, want one of {', '.join(EXECUTORS)}"
            )
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs: got {self.jobs}, want 1 or more")
        if self.ray_address is not None and self.name != "ray":
            raise UsageError(f"--ray-address is of --executor ray: got --executor {self.name}")
        if self.name == "ray" and is_offline():
            raise UsageError(
                "--executor ray needs a network and this is offline: leave out --offline, unset "
                f"{OFFLINE_VARIABLE}, or use --executor local"
            )

    def open(self, notice: Notice) -> Executor:
        """The executor; whoever opens it closes it."""
        return EXECUTORS[self.name](self, notice)


def _local(choice: ExecutorChoice, notice: Notice) -> Executor:
    from cudnn_aot.cache.pool import CompilerPool

    return CompilerPool(choice.jobs or auto_jobs(), notice)


def _ray(choice: ExecutorChoice, notice: Notice) -> Executor:
    from cudnn_aot.cache.ray_executor import RayExecutor

    return RayExecutor(choice.ray_address, choice.jobs, notice)


EXECUTORS: dict[str, Callable[[ExecutorChoice, Notice], Executor]] = {
    "local": _local,
    "ray": _ray,
}
