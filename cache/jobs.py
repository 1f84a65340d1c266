"""How many kernels to compile at once: the processors and the memory this process may use.

A container's limits count, not the machine's: cgroup v2 and v1 are read where they exist.
"""

import os
from pathlib import Path

# One compile worker holds the DSL, its MLIR and one kernel: measured peak below 1 GiB.
WORKER_BUDGET_BYTES = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


def auto_jobs() -> int:
    """Workers that fit both the processors and the memory, at least one."""
    by_memory = available_memory_bytes() // WORKER_BUDGET_BYTES
    return max(1, min(available_cpus(), by_memory))


def available_cpus() -> int:
    """Processors this process may run on, cut down to the container's quota."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders():
        quota = _cpu_quota(folder)
        if quota is not None:
            cpus = min(cpus, max(1, int(quota)))
    return cpus


def available_memory_bytes() -> int:
    """Memory that can still be taken: the machine's, and the container's limit less its use."""
    available = _machine_memory_bytes()
    for folder in _cgroup_folders():
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _read_int(folder / limit_name)
            if limit is None:
                continue
            used = (_read_int(folder / usage_name) or 0) - _reclaimable_bytes(folder)
            available = min(available, max(0, limit - max(0, used)))
    return available


def _machine_memory_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_folders() -> list[Path]:
    """This process's control groups and their parents, since every level limits."""
    folders: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(",") if controllers else [""]:
            if controller not in ("", "cpu", "memory"):
                continue
            root = _CGROUP / controller if controller else _CGROUP
            folder = root / path.lstrip("/")
            folders += [p for p in (folder, *folder.parents) if p == root or root in p.parents]
    folders += [_CGROUP, _CGROUP / "cpu", _CGROUP / "memory"]
    return list(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


def _cpu_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    v1_quota, v1_period = (
        _read_int(folder / "cpu.cfs_quota_us"),
        _read_int(folder / "cpu.cfs_period_us"),
    )
    return v1_quota / v1_period if v1_quota and v1_period and v1_quota > 0 else None


def _reclaimable_bytes(folder: Path) -> int:
    """Page cache counted as use, which the kernel gives back before it refuses memory."""
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
