import itertools
import subprocess
import sys
from dataclasses import replace

import op_graphs
import pytest
import standin as stand_ins

from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.knobs import is_frontend_knob_type, knob_type, plan_name


def test_blocks_of_ids_are_disjoint_and_every_id_decodes():
    bases = sorted(family.base_id for family in manifest.FAMILIES)
    assert bases[0] >= manifest.FIRST_ENGINE_ID
    assert all(b - a >= manifest.FAMILY_BLOCK for a, b in itertools.pairwise(bases))
    for family in manifest.FAMILIES:
        offsets = [slot.offset for slot in family.engines]
        assert len(set(offsets)) == len(offsets)
        assert all(0 <= offset < manifest.FAMILY_BLOCK for offset in offsets)
        for slot in family.engines:
            assert manifest.engine_for_id(family.engine_id(slot)) == (family, slot)
    with pytest.raises(KeyError):
        manifest.engine_for_id(19_999)


def test_recorded_ids_do_not_move():
    ids = {s.name: f.engine_id(s) for f in manifest.FAMILIES for s in f.engines}
    assert ids["gemm.sm90.persistent"] == 20_000
    assert ids["gemm.host.blocked"] == 20_001
    assert ids["moe.sm90.any_stride"] == 20_100
    assert ids["moe.host.blocked"] == 20_101


def test_every_named_hook_resolves_and_engines_carry_their_slots_name():
    for family in manifest.FAMILIES:
        assert callable(manifest.resolve(family.analyzer))
        assert callable(manifest.resolve(family.heuristics))
        for slot in family.engines:
            assert manifest.resolve(slot.factory)().name == slot.name


def test_a_family_is_named_by_its_anchor_alone():
    assert manifest.family_for(["matmul", "relu", "add"]).name == "gemm"
    assert manifest.family_for(["relu"]) is None
    assert manifest.family_for([]) is None


def test_a_graph_that_names_two_families_belongs_to_none(monkeypatch):
    other = manifest.Family("conv", 20_100, ("conv_fprop",), "", "", ())
    monkeypatch.setattr(manifest, "FAMILIES", (*manifest.FAMILIES, other))
    assert manifest.family_for(["conv_fprop", "relu"]) is other
    assert manifest.family_for(["conv_fprop", "matmul"]) is None


def test_classification_is_a_partition_over_the_op_table():
    """Every op anchors one family or none, and every anchor is an op."""
    anchors = [op for family in manifest.FAMILIES for op in family.anchors]
    assert len(set(anchors)) == len(anchors)
    assert set(anchors) <= set(OPS)
    for op in OPS:
        family = manifest.family_for([op])
        assert (family is not None) is (op in anchors)
        assert family is None or op in family.anchors
        graph = op_graphs.example(op_graphs.bare(op))
        assert manifest.family_for(node.op for node in graph.nodes) == family


def test_every_pair_of_ops_belongs_to_the_one_family_it_names(monkeypatch):
    families = (*manifest.FAMILIES, stand_ins.FAMILY)
    monkeypatch.setattr(manifest, "FAMILIES", families)
    owner = {op: family for family in families for op in family.anchors}
    for pair in itertools.combinations_with_replacement(OPS, 2):
        named = {owner[op].name for op in pair if op in owner}
        family = manifest.family_for(pair)
        assert (family.name if family else None) == (named.pop() if len(named) == 1 else None)


def test_classification_does_not_depend_on_machine_or_environment(monkeypatch):
    before = {op: manifest.family_for([op]) for op in OPS}
    monkeypatch.setenv(manifest.OPT_IN_VARIABLE, "no such engine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "platform", "elsewhere")
    assert {op: manifest.family_for([op]) for op in OPS} == before


def test_a_family_is_made_of_the_packages_that_its_hooks_are_in():
    assert stand_ins.FAMILY.packages == ("standin",)
    shared = replace(stand_ins.FAMILY, heuristics="gemm.heuristics:recommend", validator="")
    assert shared.packages == ("gemm", "standin")


def test_classifying_imports_no_recipe():
    code = (
        "import sys; from cudnn_aot.compiler.planning import manifest\n"
        "manifest.family_for(['matmul']); manifest.engine_for_id(20000)\n"
        "heavy = ('cudnn_aot.recipes', 'cutlass', 'numpy')\n"
        "bad = [m for m in sys.modules if m.startswith(heavy)]\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_knobs_keep_the_numbers_that_programs_recorded():
    numbers = {knob.name: knob.value for knob in knob_type}
    pinned = {
        "TILEK": 6,
        "SPLIT_K_SLC": 9,
        "TILE_CGA_M": 14,
        "TILE_CGA_N": 15,
        "TILE_M": 26,
        "TILE_N": 27,
        "TILE_CGA": 32,
        "SCHED_POLICY": 1000,
    }
    assert len(numbers) == 43 and numbers.items() >= pinned.items()
    assert {knob.name for knob in knob_type if is_frontend_knob_type(knob)} >= {"PACK_GQA"}
    assert not is_frontend_knob_type(knob_type.TILE_CGA)


def test_plan_names_are_stable():
    assert plan_name("gemm.sm90.persistent", (("TILE_N", 256), ("TILEK", 64))) == (
        "gemm.sm90.persistent[TILEK=64, TILE_N=256]"
    )
    assert plan_name("gemm.host.blocked", ()) == "gemm.host.blocked"
