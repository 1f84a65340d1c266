"""One table of what engines take: the command, the document and the judgment read the same rows."""

import dataclasses
import json
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli

from cudnn_aot.compiler.build.engine_table import engine_rows, markdown
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm.sm90 import GemmSm90Persistent

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_is_made_from_the_rows() -> None:
    text = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
    assert text == markdown(), "python -m cudnn_aot.compiler.build.engine_table > docs/engines.md"


def test_every_row_of_every_engine_is_there() -> None:
    listed = [(row.engine_id, row.caps) for row in engine_rows()]
    engines = [
        (family.engine_id(slot), manifest.resolve(slot.factory))
        for family in manifest.FAMILIES
        for slot in family.engines
    ]
    assert listed == [(engine_id, caps) for engine_id, engine in engines for caps in engine.caps]


@pytest.mark.parametrize("target", ["h200", "h100", "cpu"])
def test_a_row_is_judged_as_planning_judges_it(target: str) -> None:
    judged = {row.name: row.why_not for row in engine_rows(load_target(target))}
    names = ("persistent", "gemv", "any_stride")
    serving = {f"gemm.sm90.{name}" for name in names}
    serving |= {"moe.sm90.any_stride", "moe.sm90.persistent"}
    if target == "cpu":
        serving = {"gemm.host.blocked", "moe.host.blocked"}
    assert {name for name, reason in judged.items() if reason is None} == serving


def test_an_engine_that_is_not_offered_or_does_not_import_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = (
        manifest.EngineSlot(0, "gemm.sm90.persistent", "gemm.sm90:GemmSm90Persistent", opt_in=True),
        manifest.EngineSlot(1, "gemm.sm90.absent", "gemm.nowhere:Engine"),
    )
    family = manifest.FAMILIES[0]
    monkeypatch.setattr(manifest, "FAMILIES", (dataclasses.replace(family, engines=slots),))
    first, absent = engine_rows()
    assert (first.is_opt_in, first.is_offered) == (True, False)
    assert first.caps == GemmSm90Persistent.caps[0]
    assert absent.caps is None and "nowhere" in (absent.why_not or "")
    json.dumps([first.to_json(), absent.to_json()])
    assert "(opt-in)" in markdown() and "gemm.sm90.absent" in markdown()


def test_the_command() -> None:
    plain = run_cli("targets", "--engines")
    assert plain.returncode == 0 and "on h200" not in plain.stdout
    judged = run_cli("targets", "--engines", "h200")
    assert "not gemm.host.blocked: target h200 is a cuda target, want cpu" in judged.stdout
    document = json.loads(run_cli("targets", "--engines", "h200", "--json").stdout)
    assert document["target"] == "h200"
    assert {row["name"]: row["serves"] for row in document["engines"]} == {
        "gemm.sm90.persistent": True,
        "gemm.host.blocked": False,
        "gemm.sm90.gemv": True,
        "gemm.sm90.any_stride": True,
        "moe.sm90.any_stride": True,
        "moe.host.blocked": False,
        "moe.sm90.persistent": True,
    }
    assert json.loads(run_cli("targets", "--engines", "--json").stdout)["target"] is None
    assert_one_line_error(run_cli("targets", "--engines", "h2000"), 2, "h2000", "h200")
