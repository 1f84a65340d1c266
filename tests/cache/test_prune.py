"""What goes from a store and what stays: chosen as values, removed in order, beside the living."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import store_stress
import toy_store

from cudnn_aot import runtime
from cudnn_aot.cache import held, layout, prune
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.inventory import (
    Inventory,
    Size,
    StoredGraph,
    StoredKernel,
    measure,
    take_inventory,
    total,
)
from cudnn_aot.cache.prune import Criteria, choose
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import DamagedError, NotInStoreError, StoreError, UsageError

BLOCK = 4096
ALL = Criteria(older_than_s=-1.0)  # everything was published before now


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with StoreWriter(tmp_path / "store") as writer:
        toy_store.fill(writer, 4)
    return tmp_path / "store"


# What is chosen


def digest(text: str) -> str:
    return sha256_hex(text.encode())


def made_store(*graphs: StoredGraph, tools: dict[str, str] | None = None) -> Inventory:
    """A store with these graphs, whose kernels are named by letters, each a file of one block."""
    kernels = {
        key: StoredKernel(key, digest(f"blob {key}"), (("nvidia-cutlass-dsl", version),))
        for key, version in (tools or {}).items()
    }
    files = {layout.STORE_FILE}
    files |= {layout.kernel_path(key) for key in kernels}
    files |= {layout.blob_path(kernel.blob) for kernel in kernels.values()}
    classes: dict[tuple[str, str], tuple[str, ...]] = {}
    for graph in graphs:
        files |= {layout.blob_path(blob) for blob in graph.blobs} | {graph.pointer}
        files |= {layout.name_path(graph.target, name) for name in graph.names}
        for bucket in graph.buckets:
            files.add(layout.class_path(graph.target, bucket))
            classes[graph.target, bucket] = (
                *classes.get((graph.target, bucket), ()),
                graph.graph_key,
            )
    return Inventory(graphs, kernels, classes, frozenset(), dict.fromkeys(files, Size(100, BLOCK)))


A, B, C, SPARE = map(digest, ("A", "B", "C", "spare"))
TOOLS = {A: "4.8.1", B: "4.8.1", C: "4.9.0", SPARE: "4.8.1"}


def graph(name: str, changed_s: float, *kernels: str, target: str = "h200") -> StoredGraph:
    versions = sorted({f"nvidia-cutlass-dsl {TOOLS[key]}" for key in kernels})
    blobs = [digest(f"record {name}"), *(digest(f"blob {key}") for key in kernels)]
    return StoredGraph(
        target,
        digest(name),
        (name,),
        plans=1,
        kernels=tuple(sorted(kernels)),
        blobs=tuple(sorted(blobs)),
        generation="; ".join(versions),
        changed_s=changed_s,
    )


# Two plans of an older toolchain, one of which was made last, and two of a newer.
STORE = made_store(
    graph("one", 10, A),
    graph("two", 20, A, B),
    graph("three", 15, C, target="cpu"),
    graph("four", 30, C),
    tools=TOOLS,
)


def names(graphs: tuple[StoredGraph, ...]) -> list[str]:
    return [graph.names[0] for graph in graphs]


@pytest.mark.parametrize(
    ("criteria", "went", "kernels"),
    [
        (Criteria(targets=("cpu",)), ["three"], []),  # C is also another target's
        (Criteria(older_than_s=84), ["one", "three"], []),
        (Criteria(older_than_s=84, targets=("h200",)), ["one"], []),
        (Criteria(kernels=lambda k: k.dsl == "4.8.1"), ["one", "two"], [A, B, SPARE]),
        (Criteria(kernels=lambda k: k.dsl != "4.8.1"), ["three", "four"], [C]),
        (Criteria(unreferenced=True), [], [SPARE]),
        (Criteria(targets=("h100",)), [], []),
        (Criteria(older_than_s=0), ["one", "two", "three", "four"], [A, B, C]),
    ],
    ids=["target", "age", "both", "toolchain", "other", "unreferenced", "nothing", "all"],
)
def test_what_each_filter_selects(criteria: Criteria, went: list[str], kernels: list[str]) -> None:
    chosen = choose(STORE, criteria, now_s=100)
    assert sorted(names(chosen.graphs)) == sorted(went)
    assert list(chosen.kernels) == sorted(kernels)


@pytest.mark.parametrize(
    ("blocks", "went", "kernels"),
    [
        (100, [], [SPARE]),  # it fits: what nothing names goes all the same
        (len(STORE.sizes) - 3, ["one", "two"], [SPARE, A, B]),  # a generation goes as a whole
        (11, ["one", "two"], [SPARE, A, B]),
        (8, ["one", "two", "three"], [SPARE, A, B]),  # then one by one, the oldest first
        (1, ["one", "two", "three", "four"], [SPARE, A, B, C]),
    ],
)
def test_whole_generations_go_first(blocks: int, went: list[str], kernels: list[str]) -> None:
    chosen = choose(STORE, Criteria(max_disk_bytes=blocks * BLOCK), now_s=100)
    assert names(chosen.graphs) == went
    assert list(chosen.kernels) == sorted(kernels)
    assert chosen.left.disk_bytes <= blocks * BLOCK


def test_a_decline_is_no_generation_of_its_own() -> None:
    declined = StoredGraph("h200", digest("declined"), ("declined",), changed_s=1)
    store = made_store(declined, *STORE.graphs, tools=TOOLS)
    chosen = choose(store, Criteria(max_disk_bytes=12 * BLOCK), now_s=100)
    assert names(chosen.graphs) == ["one", "two"]


def test_what_is_held_stays_and_is_said() -> None:
    two = ("h200", digest("two"))
    chosen = choose(STORE, Criteria(kernels=lambda k: k.dsl == "4.8.1"), 100, {two})
    assert (names(chosen.graphs), names(chosen.held)) == (["one"], ["two"])
    assert list(chosen.kernels) == [SPARE]  # the plan of `two` names A and B
    roomy = choose(STORE, Criteria(max_disk_bytes=100 * BLOCK), 100, {two})
    assert roomy.held == ()  # what need not go is nobody's concern
    tight = choose(STORE, Criteria(max_disk_bytes=1), 100, {two})
    assert names(tight.held) == ["two"] and tight.left.disk_bytes == 8 * BLOCK


# What is removed


def test_everything_goes_but_the_store(store: Path) -> None:
    inventory = take_inventory(StoreReader(store))
    went = prune.prune(store, ALL)
    assert sorted(map(str, store.iterdir())) == [str(store / layout.STORE_FILE)]
    assert (len(went.graphs), len(went.kernels), went.failures) == (4, 4, ())
    assert set(went.blobs) == inventory.blobs
    assert StoreReader(store).verify() == []
    assert [path.name for path in store.parent.iterdir()] == ["store"]


def test_what_is_left_is_what_a_build_of_it_would_be(store: Path, tmp_path: Path) -> None:
    """Same bytes, modes and times, empty folders gone, classes without what went."""
    keys = {key for _, key in StoreReader(store).pointers()}
    with StoreWriter(tmp_path / "less") as writer:
        toy_store.fill(writer, 3, asked=4)
    (gone,) = keys - {key for _, key in StoreReader(tmp_path / "less").pointers()}
    everything = choose(take_inventory(StoreReader(store)), ALL, 1e10)
    others = {(graph.target, graph.graph_key) for graph in everything.graphs} - {("h200", gone)}
    marks = held.Marks(store)
    for place in others:
        marks.announce(held.GRAPH + held.graph_byte(*place))
    went = prune.prune(store, ALL)
    marks.close()
    assert names(went.graphs) == ["layer/3"] and len(went.held) == 3
    assert toy_store.snapshot(store) == toy_store.snapshot(tmp_path / "less")
    assert StoreReader(store).verify() == []


def test_sizes_equal_du(store: Path) -> None:
    (store / "notes.txt").write_text("not of the store, and on the disk")
    os.link(store / "notes.txt", store / "again.txt")  # counted once

    def du(*options: str) -> int:
        done = subprocess.run(["du", "-s", *options, store], capture_output=True, check=True)
        return int(done.stdout.split()[0])

    for _ in range(2):
        size = total(measure(store).values())
        assert (size.bytes, size.disk_bytes) == (du("-b"), du("-B1"))
        went = prune.prune(store, Criteria(targets=("h200",)))
    assert went.left.disk_bytes == du("-B1") and (store / "notes.txt").exists()


def test_a_dry_run_says_what_would_go_and_writes_nothing(store: Path) -> None:
    before = toy_store.snapshot(store)
    said = prune.prune(store, ALL, dry_run=True)
    assert toy_store.snapshot(store) == before
    went = prune.prune(store, ALL)
    assert (said.graphs, said.kernels, said.blobs) == (went.graphs, went.kernels, went.blobs)
    assert (said.before, said.left) == (went.before, went.left)


def test_a_size_is_reached_and_not_passed_by_much(store: Path) -> None:
    before = total(measure(store).values()).disk_bytes
    went = prune.prune(store, Criteria(max_disk_bytes=before - 1))
    assert len(went.graphs) == 1 and went.left.disk_bytes < before
    assert StoreReader(store).verify() == []


def test_nothing_to_prune_by_is_a_wrong_command(store: Path) -> None:
    with pytest.raises(UsageError, match="nothing to prune by: give --max-size"):
        prune.prune(store, Criteria())


def test_builders_are_waited_for_and_named(store: Path) -> None:
    with StoreWriter(store) as writer, writer.lock("kernel-x"):
        with pytest.raises(
            StoreError, match=rf"cannot prune .* yet: pid {os.getpid()} on .* builds"
        ):
            prune.prune(store, ALL, wait_s=0)
        assert len(prune.prune(store, ALL, dry_run=True).graphs) == 4
    assert len(StoreReader(store).pointers()) == 4


def test_a_file_system_without_locks_is_left_alone(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held.Marks, "announce", lambda self, byte: setattr(self, "works", False))
    with pytest.raises(StoreError, match="its file system has no locks"):
        prune.prune(store, ALL)
    assert len(StoreReader(store).pointers()) == 4


def test_links_out_of_the_store_are_not_followed(store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(store, outside)
    blob = next(path for path in (store / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    blob.symlink_to(outside / blob.relative_to(store))
    keep = toy_store.snapshot(outside)
    prune.prune(store, Criteria(older_than_s=-1.0, unreferenced=True))
    assert toy_store.snapshot(outside) == keep
    assert not (store / "names").exists()


@pytest.mark.parametrize("place", ["plans", "plans/h200", "kernels", "kernels/*", "blobs"])
def test_a_store_with_a_link_for_a_folder_is_left_alone(
    store: Path, tmp_path: Path, place: str
) -> None:
    """Nobody knows what is behind the link: what that names would look as if nothing named it."""
    folder = next(store.glob(place))
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = toy_store.snapshot(store), toy_store.snapshot(tmp_path / "outside")
    with pytest.raises(DamagedError, match=f"{folder} is damaged: it is a symbolic link"):
        prune.prune(store, Criteria(unreferenced=True))
    assert (toy_store.snapshot(store), toy_store.snapshot(tmp_path / "outside")) == before


def test_a_folder_that_becomes_a_link_is_not_followed(store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    with StoreWriter(store) as writer:
        (store / "plans" / "h200").rename(outside)
        (store / "plans" / "h200").symlink_to(outside)
        with pytest.raises(StoreError, match="cannot remove"):
            writer.remove(f"plans/h200/{next(outside.iterdir()).name}")
        with pytest.raises(DamagedError, match="plans/h200 is damaged: it is a symbolic link"):
            writer.put_pointer("h200", "1" * 64, {"records": [], "reasons": ["other"]})
    assert len(list(outside.iterdir())) == 4


def test_what_cannot_be_removed_keeps_what_it_needs(store: Path) -> None:
    """One target's pointers lie in a folder that we may not change: all it needs stays."""
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    with StoreWriter(store) as writer:
        pointer = writer.reader.pointer(*writer.reader.pointers()[0])
        record = json.loads(writer.reader.blob(pointer["records"][0]))
        record |= {"target": "cpu", "graph_key": "1" * 64}
        other = {"records": [writer.put_blob(json.dumps(record).encode())], "reasons": ["other"]}
        writer.put_pointer("cpu", "1" * 64, pointer | other)
    for path in [store, store.parent, *store.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.chown(store / "plans" / "cpu", 0, 0)
    for folder in store.parents:
        if folder.stat().st_mode & 0o055 != 0o055 and folder.name:
            folder.chmod(folder.stat().st_mode | 0o055)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            went = prune.prune(store, ALL)
            assert len(went.graphs) == 4 and len(went.failures) == 1
            assert "plans/cpu" in went.failures[0] and "permission denied" in went.failures[0]
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    reader = StoreReader(store)
    assert reader.pointers() == [("cpu", "1" * 64)] and len(reader.kernels()) == 1
    assert reader.verify() == []


def test_damage_names_nothing(store: Path) -> None:
    reader = StoreReader(store)
    path = store / layout.pointer_path(*reader.pointers()[0])
    path.chmod(0o644)
    path.write_text("junk")
    went = prune.prune(store, Criteria(unreferenced=True))
    assert len(went.kernels) == 1 and len(reader.kernels()) == 3
    assert {problem.path for problem in reader.verify()} == {str(path.relative_to(store))}


# Beside the living, and after a crash


def test_a_process_that_has_a_plan_keeps_its_files(store_copy: Path) -> None:
    program = (
        "import sys; from cudnn_aot import runtime; plan = runtime.open(sys.argv[1]).plan('up'); "
        "print('held', flush=True); sys.stdin.readline(); "
        "assert runtime.open(sys.argv[1]).plan('up').graph_key == plan.graph_key"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(store_copy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    went = prune.prune(store_copy, ALL)
    assert (names(went.graphs), names(went.held)) == (["down"], ["up"])
    assert StoreReader(store_copy).names() == [("cpu", "up")]
    assert StoreReader(store_copy).verify() == []
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert names(prune.prune(store_copy, ALL).graphs) == ["up"]
    with pytest.raises(NotInStoreError):
        runtime.open(store_copy).plan("up")


def test_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL at removal or sync number n, for every n: never a dangling reference."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # counted, but no disk is waited for
    store = tmp_path / "store"
    with StoreWriter(store) as writer:
        toy_store.fill(writer, 2)
    step, killed = 0, True
    while killed:
        step += 1
        victim = tmp_path / "victim"
        shutil.copytree(store, victim, copy_function=shutil.copy2)
        child = os.fork()
        if child == 0:
            toy_store.die_at(step)
            prune.prune(victim, Criteria(max_disk_bytes=0))
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert StoreReader(victim).verify() == [], step
        prune.prune(victim, Criteria(older_than_s=-1.0, unreferenced=True))
        assert [path.name for path in victim.iterdir()] == [layout.STORE_FILE]
        shutil.rmtree(victim)
    assert step > 20


def test_a_full_file_system(tmp_path: Path) -> None:
    """No block is free, and the class of what goes has a member that stays."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        with StoreWriter(mounted / "store") as writer:
            toy_store.fill(writer, 4)
        fill = mounted / "fill"
        with fill.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"x" * 4096)
        store = mounted / "store"
        target, key = StoreReader(store).pointers()[0]
        marks = held.Marks(store)
        marks.announce(held.GRAPH + held.graph_byte(target, key))
        went = prune.prune(store, ALL)
        marks.close()
        assert (len(went.graphs), len(went.held), went.failures) == (3, 1, ())
        assert StoreReader(store).pointers() == [(target, key)]
        assert StoreReader(store).verify() == []
        assert sorted(path.name for path in mounted.iterdir()) == ["fill", "store"]
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_ten_thousand_operations_at_once(built_store: Path, tmp_path: Path) -> None:
    """Four processes build, read and prune one store: no error, nothing dangling, nothing over."""
    did = store_stress.run(tmp_path / "store", built_store, seed=1, processes=4, operations=10_000)
    done = sum(count for what, count in did.items() if not what.startswith("graphs"))
    assert done >= 10_000
    for what in ("puts", "loads", "misses", "prunes", "graphs pruned", "graphs held"):
        assert did[what] > 20, did
    prune.prune(tmp_path / "store", Criteria(older_than_s=-1.0, unreferenced=True))
    assert [path.name for path in (tmp_path / "store").iterdir()] == [layout.STORE_FILE]
