"""Which sources a plan key covers: all that plan, and none that only explain or ask cuDNN."""

from __future__ import annotations

import json
import subprocess
import sys

from cudnn_aot.compiler.planning.plan import NO_PLANNERS, planner_sources

PLAN = """
import json, sys
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning.plan import plan_graph, plan_key
from cudnn_aot.compiler.target.target import load_target
graph = graph_json.loads(sys.stdin.read())
for target in map(load_target, ("h200", "cpu")):
    plan_key(graph, target)
    plan_graph(graph, target)
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print(json.dumps([file for file in files if file]))
"""


def loaded_to_plan(text: str) -> set[str]:
    """Files of all modules that a fresh interpreter has loaded once it has planned a graph."""
    done = subprocess.run(
        [sys.executable, "-c", PLAN], input=text, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_every_module_that_plans_is_covered_and_no_other_is_left_out():
    import gemm_graphs

    from cudnn_aot.compiler.formats import graph_json

    covered = dict(planner_sources(("gemm",)))
    folder = covered["compiler.planning/plan.py"].parents[2]
    left_out = {
        folder.joinpath(*name.partition("/")[0].split("."), name.partition("/")[2])
        for name in NO_PLANNERS
    }
    assert all(path.is_file() for path in left_out)
    assert not NO_PLANNERS & set(covered) and not left_out & set(covered.values())
    places = [folder / "compiler" / name for name in ("planning", "graph", "target")]
    places.append(folder / "recipes" / "gemm")
    shared = {str(file) for file in (folder / "recipes").glob("*.py")}
    symbols = {"M": {"min": 0, "max": 4096}}
    graph = gemm_graphs.chain("g", "M", 1000, 520, "gelu", symbols=symbols)
    loaded = loaded_to_plan(graph_json.dumps(graph))
    plans = {file for file in loaded if any(file.startswith(f"{place}/") for place in places)}
    assert f"{folder}/recipes/operand.py" in loaded & shared
    plans |= loaded & shared
    assert len(plans) > 20
    assert plans <= {str(path) for path in covered.values()}
    assert not plans & {str(path) for path in left_out}


def test_kernels_are_no_planners():
    names = [name for name, _ in planner_sources(("gemm",))]
    assert "recipes.gemm/heuristics.py" in names and "recipes.gemm/tma.py" in names
    assert not [name for name in names if "kernels" in name]
