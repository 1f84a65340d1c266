"""`-j auto`: processors and memory of the container, not of the machine."""

from pathlib import Path

import pytest

from cudnn_aot.cache import jobs


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty control group that the module takes for this process's own."""
    monkeypatch.setattr(jobs, "_cgroup_folders", lambda: [tmp_path])
    monkeypatch.setattr(jobs, "_machine_memory_bytes", lambda: 64 << 30)
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    return tmp_path


def test_without_limits_the_machine_counts(cgroup: Path) -> None:
    assert jobs.auto_jobs() == 16


def test_memory_of_version_2(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(f"{4 << 30}\n")
    (cgroup / "memory.current").write_text(f"{2 << 30}\n")
    assert jobs.auto_jobs() == 2
    # Page cache is given back before memory is refused, so it is no use of the limit.
    (cgroup / "memory.stat").write_text(f"anon 0\ninactive_file {1 << 30}\n")
    assert jobs.auto_jobs() == 3


def test_memory_of_version_1(cgroup: Path) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(f"{3 << 30}\n")
    (cgroup / "memory.usage_in_bytes").write_text("0\n")
    assert jobs.auto_jobs() == 3


def test_an_unlimited_group_does_not_limit(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert jobs.auto_jobs() == 16


@pytest.mark.parametrize(("quota", "want"), [("50000", 1), ("250000", 2), ("9900000", 16)])
def test_processor_quota(cgroup: Path, quota: str, want: int) -> None:
    (cgroup / "cpu.max").write_text(f"{quota} 100000\n")
    assert jobs.auto_jobs() == want


def test_processor_quota_of_version_1(cgroup: Path) -> None:
    (cgroup / "cpu.cfs_quota_us").write_text("300000\n")
    (cgroup / "cpu.cfs_period_us").write_text("100000\n")
    assert jobs.auto_jobs() == 3
    (cgroup / "cpu.cfs_quota_us").write_text("-1\n")
    assert jobs.auto_jobs() == 16


def test_there_is_always_one_job(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("1000\n")
    assert jobs.auto_jobs() == 1


def test_garbage_is_no_limit(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("?\n")
    (cgroup / "cpu.max").write_text("\n")
    assert jobs.auto_jobs() == 16


def test_this_machine_has_an_answer() -> None:
    assert 1 <= jobs.auto_jobs() <= jobs.available_cpus()
