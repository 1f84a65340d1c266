"""What lies where builders of a store work, and was not made by them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_store
from served_store import small_store

from cudnn_aot.cache import layout, session
from cudnn_aot.cache.prune import Criteria, prune
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import StoreError


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("whole") / "store")


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole_store, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    (tmp_path / "precious" / "sub").mkdir(parents=True)
    (tmp_path / "precious" / "file").write_text("hi")
    (tmp_path / "precious" / "sub" / "file").write_text("ho")
    return tmp_path / "precious"


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def find_everything(store: Path) -> None:
    StoreWriter(store).close()


def put_something(store: Path) -> None:
    with StoreWriter(store) as writer:
        writer.put_blob(b"something new")


def prune_all(store: Path) -> None:
    prune(store, Criteria(unreferenced=True))


USES = {"cached build": find_everything, "build": put_something, "prune": prune_all}
PLACES = {
    "beside": lambda store: store.parent / f".{store.name}.building",
    "inside": lambda store: store / layout.STAGING,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_link_is_refused_and_not_followed(
    store: Path, precious: Path, place: Callable[[Path], Path], use: Callable[[Path], None]
) -> None:
    before = tree(precious)
    place(store).symlink_to(precious)
    with pytest.raises(StoreError, match="bad building folder .*: it is a link, want ") as refused:
        use(store)
    assert "\n" not in str(refused.value) and repr(str(place(store))) in str(refused.value)
    assert tree(precious) == before and place(store).is_symlink()


def test_a_new_store_beside_a_link(tmp_path: Path, precious: Path) -> None:
    before = tree(precious)
    (tmp_path / ".new.building").symlink_to(precious)
    with pytest.raises(StoreError, match="it is a link"):
        put_something(tmp_path / "new")
    assert tree(precious) == before


@pytest.mark.parametrize("name", ["alive", "locks", "stage"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_links_in_the_folder(
    store: Path, precious: Path, name: str, use: Callable[[Path], None]
) -> None:
    before = tree(precious)
    folder = PLACES["beside"](store)
    folder.mkdir()
    (folder / name).symlink_to(precious / "made" if name == "alive" else precious)
    with pytest.raises(StoreError, match=f"'{name}' in it is a link, or not what a build makes"):
        use(store)
    assert tree(precious) == before and tree(folder) == [name]


@pytest.mark.parametrize("use", [*USES.values(), None], ids=[*USES, "no store yet"])
def test_what_no_build_made_stays_and_is_named(
    store: Path, use: Callable[[Path], None] | None
) -> None:
    if use is None:
        shutil.rmtree(store)
        store.mkdir()
    folder = PLACES["inside"](store)
    (folder / "stage" / "old").mkdir(parents=True)
    (folder / "mine").mkdir()
    (folder / "mine" / "file").write_text("hi")
    before = tree(store)
    with pytest.raises(StoreError, match="it holds 'mine', which no build made"):
        (use or put_something)(store)
    assert tree(store) == before


def test_links_among_what_a_dead_builder_left(store: Path, precious: Path) -> None:
    before = tree(precious)
    folder = PLACES["beside"](store)
    (folder / "stage" / "dead").mkdir(parents=True)
    for name in ("file", "sub"):
        (folder / "stage" / "dead" / name).symlink_to(precious / name)
    (folder / f"{layout.STAGING}-{'0' * 16}").mkdir()
    (folder / ".nfs0123").write_text("")
    find_everything(store)
    assert tree(folder) == [".nfs0123"]
    (folder / ".nfs0123").unlink()
    put_something(store)
    assert not folder.exists() and tree(precious) == before


def test_what_comes_while_a_builder_works_stays(store: Path) -> None:
    with StoreWriter(store) as writer, writer.scratch():
        folder = PLACES["beside"](store)
        assert folder.is_dir()
        (folder / "mine").write_text("hi")
    assert tree(folder) == ["mine"]


def test_no_umask_opens_the_folder(store: Path) -> None:
    old = os.umask(0)
    try:
        with StoreWriter(store) as writer, writer.scratch() as scratch, writer.lock("one"):
            made = [PLACES["beside"](store), scratch, *scratch.parents[:2]]
            made.append(made[0] / "locks")
            assert [path.stat().st_mode & 0o777 for path in made] == [0o755] * 5
    finally:
        os.umask(old)


STRANGER, OWNER = 65533, 65534
CASES = {  # modes of the folder around it, the store and the building folder; who owns the last
    "a stranger's in a folder of all": (0o1777, 0o755, 0o755, STRANGER, False),
    "the same, not sticky": (0o777, 0o755, 0o755, STRANGER, True),
    "the store's owner's": (0o1777, 0o755, 0o755, OWNER, True),
    "ours": (0o1777, 0o755, 0o755, 0, True),
    "a store of all": (0o1777, 0o777, 0o777, STRANGER, True),
    "a folder of a group": (0o775, 0o755, 0o755, STRANGER, True),
    "the same, sticky": (0o1775, 0o755, 0o755, STRANGER, False),
    "the same, and the store is the group's": (0o1775, 0o775, 0o775, STRANGER, True),
    "others may write it": (0o755, 0o755, 0o757, OWNER, False),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of several users")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_may_write_decides(store: Path, case: tuple[int, int, int, int, bool]) -> None:
    around, mode, folder_mode, owner, is_taken = case
    folder = PLACES["beside"](store)
    (folder / "stage" / "dead").mkdir(parents=True)
    os.chown(folder, owner, owner)
    folder.chmod(folder_mode)
    os.chown(store, OWNER, OWNER)
    store.chmod(mode)
    store.parent.chmod(around)
    if is_taken:
        put_something(store)
        assert not folder.exists()
    else:
        with pytest.raises(StoreError, match="who may not change the store, want "):
            put_something(store)
        assert tree(folder) == ["stage", "stage/dead"]


def test_what_is_said_of_a_folder(store: Path, precious: Path) -> None:
    folder = PLACES["beside"](store)
    assert session.fault_of(folder, store) is None
    folder.mkdir()
    assert session.fault_of(folder, store) is None
    folder.rmdir()
    folder.write_text("a file")
    assert "it is no folder" in (session.fault_of(folder, store) or "")
    whole = toy_store.snapshot(store)
    with pytest.raises(StoreError, match="it is no folder"):
        find_everything(store)
    assert toy_store.snapshot(store) == whole


@pytest.mark.parametrize("step", ["_can_rename", "_try_exclusive", "_remove_leftovers", "_make"])
def test_an_interrupt_leaves_no_building_folder(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes while the folder is made or removed, and at every time that it does."""
    did, steps = getattr(session, step), []

    def interrupted(*args: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        done = did(*args)
        steps.append(step)
        return done

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(session, step, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "new") as writer:
            writer.put_blob(b"some bytes")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
