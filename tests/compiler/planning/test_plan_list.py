"""The plan list with engines that do as they are told: walks, pins, declines and exclusions."""

from __future__ import annotations

import pytest
import standin as stand_ins
from standin import (
    ABSENT,
    BASE,
    ONE,
    TUNED,
    TWO,
    YOUNG,
    StandInBackend,
    Unmakeable,
    backend_plan,
    every_decline,
    relu_graph,
)

import cudnn_aot as cudnn
from cudnn_aot.cache import toolchain
from cudnn_aot.compiler.graph.enums import behavior_note, heur_mode, numerical_note
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import PlanConfig, Refusal
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.planning.manifest import EngineSlot
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.rank import BACKEND
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError

A, B, FALLBACK, OPENSOURCE = heur_mode.A, heur_mode.B, heur_mode.FALLBACK, heur_mode.OPENSOURCE
CPU = load_target("cpu")
DECLINES = list(every_decline())
TYPES = ["not-implemented", "not-supported", "import", "refusal"]
FAULTS = [RuntimeError("broken"), ValueError("broken"), KeyError("broken"), OSError("broken")]


def plan_list(graph: Graph | None = None, **options) -> PlanList:
    return PlanList(graph or relu_graph(), CPU, **options)


def ids(plans: PlanList) -> list[int]:
    return [entry.engine_id for entry in plans.entries]


def served(plans: PlanList) -> str:
    """The engine of the plan that the walk builds."""
    return plans.walk(lambda planned: planned.engine_name)[1]


# --- the list ------------------------------------------------------------------------------------


def test_the_heuristics_and_the_list_agree_position_for_position(standin):
    standin.SCRIPT.proposals = {
        "A": [PlanConfig(TWO), PlanConfig(TUNED, standin.Knobs(128, 1)), PlanConfig(ONE)],
        "FALLBACK": [PlanConfig(TUNED, standin.TUNED), PlanConfig(TWO)],
    }
    plans = plan_list()
    assert plans.entries == [*standin.SCRIPT.proposals["A"], PlanConfig(TUNED, standin.TUNED)]
    assert [plans.name(index) for index in range(len(plans))] == [
        "standin.two",
        "standin.tuned[STAGES=1, TILE_M=128]",
        "standin.one",
        "standin.tuned[STAGES=2, TILE_M=64]",
    ]


def test_a_mixed_list_serves_ours_and_the_backends_plans(standin):
    """Entries of the backend carry the mode that found them; each stands at its mode's marker."""
    backend = StandInBackend({A: [backend_plan(7, STAGES=3)], FALLBACK: [backend_plan(8)]})
    standin.SCRIPT.proposals = {
        "A": [PlanConfig(ONE), BACKEND, PlanConfig(TWO)],
        "FALLBACK": [BACKEND, PlanConfig(TUNED, standin.TUNED)],
    }
    plans = plan_list(backend=backend)
    assert ids(plans) == [ONE, 7, TWO, 8, TUNED]
    assert backend.asked == [(A, FALLBACK)]
    built = [plans.build_at(index, lambda planned: planned) for index in range(len(plans))]
    assert [planned.engine_id for planned in built] == ids(plans)
    assert plans.name(1) == "cudnn.7[STAGES=3]"
    assert built[1].table == {"backend": "cudnn.7", "knobs": {"STAGES": 3}}
    plans.deselect_engines(["standin.one"])
    assert plans.walk(lambda planned: planned.engine_id) == (1, 7)


def test_opensource_lists_ours_then_what_the_backend_picks_itself(standin):
    backend = StandInBackend({A: [backend_plan(7)], OPENSOURCE: [backend_plan(9)]})
    standin.SCRIPT.proposals = {"A": [BACKEND, PlanConfig(ONE)]}
    assert ids(plan_list(modes=[OPENSOURCE], backend=backend)) == [ONE, 9]
    assert ids(plan_list(modes=[OPENSOURCE])) == [ONE]


def test_a_graph_of_no_family_of_ours_has_the_backends_plans(standin):
    graph = Graph("g", io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
    graph.tanh(graph.tensor([1, 8, 4], uid=1)).set_uid(2).set_output(True)
    plans = plan_list(graph, backend=StandInBackend({A: [backend_plan(7)]}))
    assert ids(plans) == [7]
    assert plans.family is None
    assert plans.reasons == ["no engine family serves this combination of ops"]


def test_planning_takes_heuristic_modes_only(standin):
    with pytest.raises(UsageError, match="mode: got 'A', want a heur_mode"):
        plan_list(modes=["A"])


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (PlanConfig(BASE + 50), "engine 20950, not offered"),
        (PlanConfig(7), "engine 7, not offered"),
        ("standin.one", "propose 'standin.one', want plans"),
    ],
    ids=["unknown", "backend", "no-plan"],
)
def test_what_the_heuristics_may_not_propose_is_a_fault(standin, proposal, message):
    standin.SCRIPT.proposals = {"A": [PlanConfig(ONE), proposal]}
    with pytest.raises(ValueError, match=message):
        plan_list()


def test_a_backend_proposes_engines_of_its_own_ids_only(standin):
    with pytest.raises(ValueError, match=f"the backend proposes engine {ONE}, not its own"):
        plan_list(backend=StandInBackend({A: [PlanConfig(ONE)]}))


# --- walking and pinning -------------------------------------------------------------------------


@pytest.mark.parametrize("decline", DECLINES, ids=TYPES)
def test_an_unpinned_plan_that_declines_hands_on_to_the_next(standin, decline):
    standin.SCRIPT.acts["standin.one", "lower"] = decline
    plans = plan_list()
    assert plans.walk(lambda planned: planned.engine_name) == (1, "standin.two")


@pytest.mark.parametrize("decline", DECLINES, ids=TYPES)
def test_a_pinned_plan_that_declines_raises(standin, decline):
    standin.SCRIPT.acts["standin.one", "lower"] = decline
    plans = plan_list()
    plans.select(0)
    with pytest.raises(cudnnGraphNotSupportedError, match=r"^plan standin.one: ") as raised:
        served(plans)
    assert len(raised.value.reasons) == 1
    assert ("standin.two", "lower") not in standin.SCRIPT.calls


@pytest.mark.parametrize("decline", DECLINES, ids=TYPES)
def test_every_way_to_one_plan_gives_its_decline_as_one_type(standin, decline):
    standin.SCRIPT.acts["standin.one", "lower"] = decline
    plans = plan_list()
    for act in (plans.lower, plans.workspace_bytes, lambda i: plans.build_at(i, served)):
        with pytest.raises(cudnnGraphNotSupportedError):
            act(0)


def test_a_decline_of_what_builds_a_plan_hands_on_too(standin):
    def build(planned):
        if planned.engine_name != "standin.tuned":
            raise NotImplementedError("cannot be compiled here")
        return planned.engine_name

    plans = plan_list()
    assert plans.walk(build) == (2, "standin.tuned")
    plans.select(1)
    with pytest.raises(cudnnGraphNotSupportedError, match="plan standin.two: cannot be compiled"):
        plans.walk(build)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize(
    "place",
    [
        ("family", "validate"),
        ("family", "analyze"),
        ("family", "rank"),
        ("standin.one", "support"),
        ("standin.one", "lower"),
    ],
    ids="-".join,
)
def test_any_other_exception_propagates(standin, place, fault):
    standin.SCRIPT.acts[place] = fault
    with pytest.raises(type(fault), match="broken"):
        served(plan_list())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_fault_of_the_backend_is_no_decline(standin, fault):
    with pytest.raises(type(fault), match="broken"):
        plan_list(backend=StandInBackend(fault))
    found = {A: [backend_plan(7)]}
    standin.SCRIPT.proposals = {"A": [BACKEND]}
    for engine in (fault, Unmakeable(fault)):
        plans = plan_list(backend=StandInBackend(found, {7: engine}))
        with pytest.raises(type(fault), match="broken"):
            served(plans)


@pytest.mark.parametrize("decline", DECLINES, ids=TYPES)
def test_a_backend_that_declines_leaves_our_plans(standin, decline):
    plans = plan_list(backend=StandInBackend(decline))
    assert served(plans) == "standin.one"
    assert plans.reasons[0].startswith("standin.young: not enabled")
    assert plans.reasons[1].startswith("cudnn: ")


@pytest.mark.parametrize("decline", DECLINES[:3], ids=TYPES[:3])
def test_a_backends_plan_that_nothing_lowers_hands_on(standin, decline):
    """Not even its name can be asked for: the reasons say the engine's number."""
    standin.SCRIPT.proposals = {"A": [BACKEND]}
    backend = StandInBackend(
        {A: [backend_plan(7), backend_plan(8), backend_plan(9)]},
        {7: Unmakeable(decline), 8: Refusal("no")},
    )
    plans = plan_list(modes=[A], backend=backend)
    assert served(plans) == "cudnn.9"
    plans.deselect_engines(["cudnn.9"])
    with pytest.raises(cudnnGraphNotSupportedError) as raised:
        served(plans)
    assert [reason.partition(":")[0] for reason in raised.value.reasons[-3:]] == [
        "engine 7",
        "cudnn.8",
        "cudnn.9",
    ]


def test_plans_are_lowered_once(standin):
    plans = plan_list()
    first = plans.lower(0)
    plans.workspace_bytes(0)
    assert plans.build_at(0, lambda planned: planned) is first
    assert standin.SCRIPT.calls.count(("standin.one", "lower")) == 1


# --- an empty list -------------------------------------------------------------------------------


def test_an_empty_list_names_every_side(standin):
    standin.SCRIPT.acts = {
        ("standin.one", "support"): Refusal("too small"),
        ("standin.two", "support"): NotImplementedError("too\nlarge"),
        ("standin.tuned", "support"): ImportError("nothing", name="library"),
    }
    plans = plan_list(backend=StandInBackend(Refusal("it is not installed")))
    assert plans.entries == []
    with pytest.raises(cudnnGraphNotSupportedError, match="graph 'g' is declined for cpu") as error:
        served(plans)
    assert error.value.reasons == [
        "standin.one: too small",
        "standin.two: too large",
        "standin.tuned: module 'library' is not installed or does not import",
        "standin.young: not enabled: set CUDNN_AOT_OPT_IN_ENGINES=standin.young",
        "cudnn: it is not installed",
    ]
    assert all(reason in str(error.value) for reason in error.value.reasons)


@pytest.mark.parametrize("decline", DECLINES, ids=TYPES)
def test_an_analyzer_that_declines_is_the_familys_side(standin, decline):
    standin.SCRIPT.acts["family", "analyze"] = decline
    plans = plan_list(backend=StandInBackend({}))
    assert [reason.partition(":")[0] for reason in plans.reasons] == ["standin", "cudnn"]
    assert plans.facts is None and plans.entries == [] and plans.support == {}


@pytest.mark.parametrize("decline", DECLINES[:3], ids=TYPES[:3])
def test_heuristics_that_decline_are_the_familys_side(standin, decline):
    standin.SCRIPT.acts["family", "rank"] = decline
    plans = plan_list()
    assert plans.entries == []
    assert [reason.partition(":")[0] for reason in plans.reasons] == ["standin.young", "standin"]


def test_heuristics_that_propose_nothing_are_named(standin):
    standin.SCRIPT.proposals = {"A": [], "FALLBACK": [BACKEND]}
    with pytest.raises(cudnnGraphNotSupportedError, match="the heuristics propose no plan"):
        served(plan_list())
    with pytest.raises(cudnnGraphNotSupportedError, match="cudnn: it finds no plan"):
        served(plan_list(backend=StandInBackend({A: []})))


def test_a_graph_spanning_two_families_is_declined(standin):
    graph = Graph("g", io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
    product = graph.matmul(graph.tensor([1, 8, 4], uid=1), graph.tensor([1, 4, 8], uid=2))
    graph.relu(product).set_uid(3).set_output(True)
    plans = plan_list(graph)
    assert plans.family is None and plans.entries == []
    assert standin.SCRIPT.calls == []


# --- facts ---------------------------------------------------------------------------------------


def test_a_graph_is_analyzed_once_and_all_share_the_facts(standin):
    graph = relu_graph()
    plans = plan_list(graph)
    plans.walk(lambda planned: planned)
    again = plan_list(graph)
    again.lower(1)
    assert standin.SCRIPT.calls.count(("family", "analyze")) == 1
    assert len(standin.SCRIPT.facts) > 4
    assert all(facts is plans.facts for facts in standin.SCRIPT.facts)


def test_facts_of_a_graph_that_can_change_are_refused(standin):
    graph = relu_graph()
    with pytest.raises(RuntimeError, match="graph 'g' can still change: freeze it"):
        facts_for(graph, standin.analyze)
    assert standin.SCRIPT.calls == []
    facts = facts_for(graph.freeze(), standin.analyze)
    assert facts_for(graph, standin.analyze) is facts
    assert facts_for(graph, lambda graph: "another family's") == "another family's"


def test_facts_do_not_keep_their_graph(standin):
    import gc
    import weakref

    graph = relu_graph()
    alive = weakref.ref(graph)
    plan_list(graph)
    del graph
    gc.collect()
    assert alive() is None


# --- what is not there ---------------------------------------------------------------------------

SLOTS = (*stand_ins.FAMILY.engines, EngineSlot(4, "standin.absent", "standin.absent:Engine"))
MISSING = "module 'a_module_that_nobody_has' is not installed or does not import"


def test_an_engine_whose_dependency_is_missing_declines(monkeypatch):
    stand_ins.installed(monkeypatch, stand_ins.changed(engines=SLOTS))
    plans = plan_list()
    assert ABSENT not in ids(plans) and served(plans) == "standin.one"
    assert plans.support["standin.absent"] == MISSING
    with pytest.raises(cudnnGraphNotSupportedError, match=f"engine standin.absent: {MISSING}"):
        plans.append(ABSENT, {})


@pytest.mark.parametrize("hook", ["validator", "analyzer", "heuristics"])
def test_a_hook_whose_dependency_is_missing_declines(monkeypatch, hook):
    stand_ins.installed(monkeypatch, stand_ins.changed(**{hook: "standin.absent:hook"}))
    plans = plan_list(backend=StandInBackend({A: [backend_plan(7)]}))
    assert served(plans) == "cudnn.7"
    assert f"standin: {MISSING}" in plans.reasons


@pytest.fixture
def dsl_version(monkeypatch):
    """Sets the version that the DSL's metadata says; None for a DSL that is not installed."""

    def say(said):
        def version(name):
            assert name == "nvidia-cutlass-dsl"
            if said is None:
                raise toolchain.importlib.metadata.PackageNotFoundError(name)
            return said

        monkeypatch.setattr(toolchain.importlib.metadata, "version", version)
        toolchain.dsl_version.cache_clear()

    yield say
    toolchain.dsl_version.cache_clear()


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "nvidia-cutlass-dsl is not installed: pip install 'cudnn-aot[compile]'"),
        ("4.8.0", "nvidia-cutlass-dsl is 4.8.0, want 4.8.1 or newer"),
        ("4.8", "nvidia-cutlass-dsl is 4.8, want 4.8.1 or newer"),
        ("4.8.1", None),
        ("4.10.0.post1", None),
        ("5.0.0rc1", None),
    ],
)
def test_a_missing_or_old_dsl_is_a_decline(standin, dsl_version, version, reason):
    dsl_version(version)
    plans = plan_list()
    assert plans.support["standin.one"] == reason
    assert bool(plans.entries) is (reason is None)


def test_what_the_dsl_is_missing_for_is_asked_last(standin, dsl_version):
    """An engine that does not take the graph says so, whatever is installed."""
    dsl_version(None)
    standin.SCRIPT.acts["standin.one", "support"] = Refusal("too small")
    assert plan_list().support["standin.one"] == "too small"


# --- engines asked for ---------------------------------------------------------------------------


def test_only_the_engines_asked_for_serve(standin):
    plans = plan_list(engines=["standin.two"])
    assert ids(plans) == [TWO]
    assert "standin.one: not among the engines asked for" in plans.reasons
    with pytest.raises(cudnnGraphNotSupportedError, match="not among the engines asked for"):
        plans.append(ONE, {})


@pytest.mark.parametrize("text", ["1", "true", "YES", " on ", "standin.young", "standin.young, "])
def test_opt_in_flag_spellings_that_turn_it_on(standin, monkeypatch, text):
    monkeypatch.setenv(manifest.OPT_IN_VARIABLE, text)
    assert YOUNG in ids(plan_list())


@pytest.mark.parametrize("text", ["", "0", "false", "No", " off"])
def test_opt_in_flag_spellings_that_leave_it_off(standin, monkeypatch, text):
    monkeypatch.setenv(manifest.OPT_IN_VARIABLE, text)
    plans = plan_list()
    assert YOUNG not in ids(plans)
    with pytest.raises(cudnnGraphNotSupportedError, match="not enabled: set CUDNN_AOT_OPT_IN"):
        plans.append(YOUNG, {})


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (Refusal("too young"), "too young"),
        (RuntimeError("a fault of its own"), "not enabled: set CUDNN_AOT_OPT_IN_ENGINES"),
    ],
    ids=["refuses", "fails"],
)
def test_an_engine_that_is_not_enabled_breaks_no_plan(standin, monkeypatch, says, reason):
    """And is named as one to enable only where it would serve."""
    monkeypatch.delenv(manifest.OPT_IN_VARIABLE, raising=False)
    standin.SCRIPT.acts["standin.young", "support"] = says
    plans = plan_list()
    assert ids(plans) and YOUNG not in ids(plans)
    assert plans.support["standin.young"].startswith(reason)


@pytest.mark.parametrize("text", ["standin.one", "2", "all", "standin.young,gemm"])
def test_an_opt_in_flag_that_names_no_such_engine_is_refused(standin, monkeypatch, text):
    monkeypatch.setenv(manifest.OPT_IN_VARIABLE, text)
    with pytest.raises(UsageError, match=r"want 1, 0 or opt-in engines: .*standin\.young"):
        plan_list()


# --- exclusions ----------------------------------------------------------------------------------


def deselect_engine(plans):
    plans.deselect_engines(["standin.two"])


def deselect_behavior(plans):
    plans.deselect_notes([behavior_note.CUBLASLT_DEPENDENCY])


def deselect_numerics(plans):
    plans.deselect_notes([numerical_note.NONDETERMINISTIC])


def select_behavior(plans):
    plans.select_notes([behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API])


def limit_workspace(plans):
    plans.deselect_workspace_greater_than(1023)


EXCLUSIONS = [
    (deselect_engine, "engine standin.two is deselected"),
    (deselect_behavior, "behavior note CUBLASLT_DEPENDENCY is deselected"),
    (deselect_numerics, "numerical note NONDETERMINISTIC is deselected"),
    (select_behavior, "behavior note SUPPORTS_CUDA_GRAPH_NATIVE_API is selected and it lacks that"),
    (limit_workspace, "it may need 1024 bytes of workspace, more than 1023"),
]


@pytest.fixture
def of_two(standin):
    """A list whose first plan is of engine two, which needs workspace; then engine one's."""
    standin.SCRIPT.proposals = {"A": [PlanConfig(TWO), PlanConfig(ONE)], "FALLBACK": []}
    standin.SCRIPT.workspace_bytes["standin.two"] = 1024
    return plan_list()


@pytest.mark.parametrize(
    ("exclude", "reason"), EXCLUSIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_path_applies_the_exclusions(of_two, exclude, reason):
    exclude(of_two)
    assert of_two.why_excluded(0) == reason
    assert of_two.why_excluded(1) is None
    assert of_two.walk(lambda planned: planned.engine_name) == (1, "standin.one")
    refused = pytest.raises(cudnnGraphNotSupportedError, match=f"^plan standin.two: {reason}$")
    with refused as raised:
        of_two.build_at(0, lambda planned: planned)
    assert raised.value.reasons == [reason]
    index = of_two.append(TWO, {})
    assert index == 0
    with refused:
        of_two.build_at(index, lambda planned: planned)
    of_two.select(0)
    with refused:
        of_two.walk(lambda planned: planned)


@pytest.mark.parametrize(
    ("exclude", "reason"), EXCLUSIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_an_appended_plan_is_excluded_like_a_listed_one(standin, exclude, reason):
    standin.SCRIPT.proposals = {"A": [PlanConfig(ONE)], "FALLBACK": []}
    standin.SCRIPT.workspace_bytes["standin.two"] = 1024
    plans = plan_list()
    exclude(plans)
    index = plans.append(TWO, {})
    assert index == 1 and plans.why_excluded(index) == reason
    with pytest.raises(cudnnGraphNotSupportedError, match=reason):
        plans.build_at(index, lambda planned: planned)


def test_a_walk_that_excludes_every_plan_says_so(of_two):
    of_two.deselect_engines(["standin.one", "standin.two"])
    with pytest.raises(cudnnGraphNotSupportedError) as raised:
        served(of_two)
    assert raised.value.reasons[-2:] == [
        "standin.two: engine standin.two is deselected",
        "standin.one: engine standin.one is deselected",
    ]


def test_workspace_is_bounded_over_the_whole_domain(standin):
    standin.SCRIPT.workspace_bytes["standin.one"] = ["mul", 4, "M"]
    plans = plan_list(relu_graph("M", symbols={"M": {"min": 1, "max": 1000}}))
    assert plans.workspace_bytes(0) == 4000
    plans.deselect_workspace_greater_than(4000)
    assert plans.why_excluded(0) is None
    plans.deselect_workspace_greater_than(3999)
    assert plans.why_excluded(0) == "it may need 4000 bytes of workspace, more than 3999"


@pytest.mark.parametrize("nbytes", [-1, 1.5, "1", None, True])
def test_a_workspace_limit_is_a_number_of_bytes(of_two, nbytes):
    with pytest.raises(UsageError, match="want bytes, 0 or more"):
        of_two.deselect_workspace_greater_than(nbytes)


def test_what_is_excluded_is_named_by_its_kind(of_two):
    with pytest.raises(UsageError, match="want a list of names"):
        of_two.deselect_engines("standin.one")
    for act in (of_two.select_notes, of_two.deselect_notes):
        with pytest.raises(UsageError, match="want a behavior_note or a numerical_note"):
            act(["TENSOR_CORE"])


def test_notes_are_in_the_order_of_their_numbers(of_two):
    assert of_two.behavior_notes(0) == [
        behavior_note.RUNTIME_COMPILATION,
        behavior_note.CUBLASLT_DEPENDENCY,
    ]
    assert of_two.numerical_notes(0) == [
        numerical_note.TENSOR_CORE,
        numerical_note.NONDETERMINISTIC,
    ]
    assert of_two.numerical_notes(1) == []


@pytest.mark.parametrize("index", [-1, 2, "0", 0.0, None, True])
def test_a_place_that_the_list_does_not_have_is_refused(of_two, index):
    acts = (
        of_two.entry,
        of_two.name,
        of_two.engine_and_knobs,
        of_two.behavior_notes,
        of_two.numerical_notes,
        of_two.workspace_bytes,
        of_two.why_excluded,
        of_two.select,
        of_two.lower,
        lambda i: of_two.build_at(i, served),
    )
    for act in acts:
        with pytest.raises(UsageError, match=r"plan index: got .*, want 0\.\.1"):
            act(index)


def test_an_empty_list_has_no_place(standin):
    standin.SCRIPT.proposals = {"A": [], "FALLBACK": []}
    with pytest.raises(UsageError, match="plan index: got 0, but there is no plan"):
        plan_list().entry(0)
