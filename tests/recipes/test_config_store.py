"""The store of schedules that a GPU runs: each has a plan of its own, found by the plan's name."""

import json
from pathlib import Path

import config_store
import pytest

from cudnn_aot.cache.reader import StoreReader


def test_a_schedule_is_stored_under_its_plan_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them: compiling all takes minutes."""
    schedule = config_store.configs((2,))[0]
    one = [("chain", config_store.ENGINE, schedule)]
    monkeypatch.setattr(config_store, "every", lambda splits: one)
    store = tmp_path / "store"
    assert config_store.build(store, jobs=1, splits=(2,)) == 1
    reader = StoreReader(store)
    assert reader.verify() == []
    ((target, name),) = reader.names()
    pointer = reader.pointer(target, reader.name(target, name)["graph_key"])
    record = json.loads(reader.blob(pointer["records"][0]))
    assert pointer["status"] == "built" and target == config_store.TARGET
    knobs = {knob.name: value for knob, value in schedule.to_public().items()}
    assert name == config_store.name_of(*one[0])
    assert record["knobs"] == knobs and all(str(value) in name for value in knobs.values())
