"""What `doctor` says of a store's life: its size, who uses it, what a killed build left."""

from pathlib import Path

from cli_process import run_cli

from cudnn_aot import runtime
from cudnn_aot.cache.writer import StoreWriter


def findings(store: Path) -> dict[str, str]:
    done = run_cli("doctor", "--store", store)
    assert done.returncode == 0, done.stdout
    lines = (line for line in done.stdout.splitlines() if "store" in line or "build" in line[:20])
    return {line[2:22].strip(): line[0] + line[23:] for line in lines}


def test_size_users_and_leftovers_of_a_store(store_copy: Path) -> None:
    quiet = findings(store_copy)
    assert quiet["store size"].endswith(" KiB on the disk")
    assert quiet["store in use"] == " 0 graphs held by living processes"
    assert "unfinished build" not in quiet
    plan = runtime.open(store_copy).plan("up")
    with StoreWriter(store_copy) as writer, writer.scratch():
        used = findings(store_copy)
    assert used["store in use"] == " 1 graph held by living processes, somebody builds"
    assert "unfinished build" not in used and plan.name == "up"
    left = store_copy.parent / ".store.building"
    (left / "stage" / "dead").mkdir(parents=True)
    assert findings(store_copy)["unfinished build"].startswith(f"!{left} (the next build removes")
