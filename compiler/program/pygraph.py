"""``pygraph``: a graph that plans, builds and executes in this process.

The names, order of calls and forms of arguments are those of the cuDNN frontend. What is planned
here and by the build command is one and the same: one ranked list, one plan record, one executor.
Describing a graph loads nothing of that; the first call that needs a plan does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.enums import build_plan_policy, heur_mode
from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.program.bindings import bindings, symbols_of_call
from cudnn_aot.compiler.program.locks import ForkLock
from cudnn_aot.errors import DamagedError, SequenceError, UsageError
from cudnn_aot.handles import get_stream

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.enums import behavior_note, numerical_note
    from cudnn_aot.compiler.planning.engine import Engine
    from cudnn_aot.compiler.planning.plan_list import PlanList
    from cudnn_aot.compiler.planning.rank import Entry
    from cudnn_aot.compiler.program.built import BuiltPlan
    from cudnn_aot.compiler.program.container import Container
    from cudnn_aot.compiler.program.program import Program


class pygraph(Graph):  # noqa: N801  (the name that programs use)
    """A cuDNN-style operation graph and its plans.

    Args:
        handle: names the stream of calls that are given no handle.
        target: name of the target to plan for, or path of a descriptor. Without it
            ``CUDNN_AOT_TARGET`` says, else the current CUDA device.
        engines: whose plans are listed, ``"native"`` and ``"cudnn"``. Without it
            ``CUDNN_AOT_ENGINES`` says, else native ones alone: then the list does not depend on
            the machine.

    The other arguments are those of `Graph`.
    """

    def __init__(
        self,
        name: str = "",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Any = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: Any = None,
        device_property: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: Any = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
        symbols: Mapping[str, Symbol | Mapping[str, Any]] | None = None,
        target: str | None = None,
        engines: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            io_data_type,
            intermediate_data_type,
            compute_data_type,
            sm_count=sm_count,
            sm_version=sm_version,
            is_override_shape_enabled=is_override_shape_enabled,
            symbols=symbols,
        )
        self._handle = handle
        self._target = target
        self._providers = engines
        self._modes: Sequence[heur_mode] | None = None  # that a decorator asked for
        self._exclusions: list[tuple[str, Any]] = []
        self._program: Program | None = None
        self._planning = ForkLock()  # held while the program is tested and set

    # Planning.

    def build_operation_graph(self) -> None:
        """Validate the graph."""
        self.validate()

    def create_execution_plans(self, heuristics: Any = None) -> None:
        """Rank the plans of the graph, which is sealed; a second time is refused.

        Args:
            heuristics: modes, in the order in which their plans are listed; A, then FALLBACK,
                unless given.

        Raises:
            FrozenGraphError: the graph is planned already.
            UsageError: there is no target to plan for.
            cudnnGraphNotSupportedError: no side has a plan; ``reasons`` has one of each.
        """
        self._plan(_modes(self._modes if heuristics is None else heuristics))

    def create_execution_plan(self, engine_id: int, knobs: Any = None) -> pygraph:
        """Add the plan of a recorded ``(engine_id, knobs)`` to the list, planning nothing else.

        What is refused or declined is not added, and a graph without plans still has to be planned.

        Raises:
            UsageError: there is no such engine or knob.
            cudnnGraphNotSupportedError: the engine does not take the graph or the knobs.
        """
        recorded = engine_id, {} if knobs is None else knobs
        with self._planning:
            if self._program is None:
                self._plan((), recorded)
            else:
                self._program.plans.append(*recorded)
        return self

    def check_support(self) -> None:
        """A no-op on a planned graph: its list has plans that take it."""
        self._planned("check_support")

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Build the first plan of the list that can be built, or the one that is selected.

        Kernels come from the store layers; what no layer has is compiled. ``ALL`` builds every
        plan that can be, and uses the first of them or the selected one.

        Raises:
            UsageError: there is no such policy.
            cudnnGraphNotSupportedError: none can be built; ``reasons`` has one of each.
            CompileForbiddenError, CompileError: a kernel is missing, and cannot be compiled.
        """
        named = getattr(policy, "name", policy)  # of another library's enum, too
        if named not in build_plan_policy.__members__:
            known = ", ".join(build_plan_policy.__members__)
            raise UsageError(f"build plan policy: got {policy!r}, want one of {known}")
        program = self._ensure_planned()
        if named == "ALL":
            program.build_all()
        else:
            program.build()

    def build(self, heuristics: Any = None) -> None:
        """Validate, plan unless that is done, and build."""
        self._ensure_planned(heuristics)
        self.build_plans()

    # The list.

    @property
    def plans(self) -> list[Entry]:
        """The ranked plans; none before they are made."""
        return [] if self._program is None else list(self._program.plans.entries)

    def backend_plan_entries(self) -> list[Entry]:
        """The plans of cuDNN's own engines that are in the list; none unless it was asked."""
        from cudnn_aot.compiler.planning.engine import PlanConfig
        from cudnn_aot.compiler.planning.manifest import BACKEND_IDS

        return [
            entry
            for entry in self.plans
            if isinstance(entry, PlanConfig) and entry.engine_id in BACKEND_IDS
        ]

    def get_execution_plan_count(self) -> int:
        """How many plans the list has."""
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        """``engine[KNOB=value, ...]``, the same in every process and release."""
        return self._list("get_plan_name_at_index").name(index)

    def get_plan_name(self) -> str:
        """The name of the plan in use."""
        return self._list("get_plan_name").name(self._planned("get_plan_name").place)

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, Any]:
        """``(engine_id, {knob_type: int})``, from which `create_execution_plan` makes the plan."""
        return self._list("get_engine_and_knobs_at_index").engine_and_knobs(index)

    @property
    def selected_engine(self) -> Engine | None:
        """The engine of the plan in use, else of the one that would be tried first; None for one
        of cuDNN's own.
        """
        if not self.plans or self._program is None:
            return None
        from cudnn_aot.compiler.planning import manifest

        engine_id, _ = self._program.plans.engine_and_knobs(self._program.place)
        if engine_id < manifest.FIRST_ENGINE_ID:
            return None
        _, slot = manifest.engine_for_id(engine_id)
        engine: Engine = manifest.resolve(slot.factory)()
        return engine

    def select_plan(self, index: int) -> pygraph:
        """Pin a plan: it is built, or nothing is."""
        self._list("select_plan")
        self._planned("select_plan").select(index)
        return self

    def build_plan_at_index(self, index: int) -> pygraph:
        """Build a plan and use it from now on."""
        self._list("build_plan_at_index")
        self._planned("build_plan_at_index").build_at(index)
        return self

    def get_behavior_notes(self) -> list[behavior_note]:
        """The notes of the plan in use."""
        program = self._planned("get_behavior_notes")
        return program.plans.behavior_notes(program.place)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[behavior_note]:
        """The notes of a plan."""
        return self._list("get_behavior_notes_for_plan_at_index").behavior_notes(index)

    # Exclusions, before or after planning. They hold on every path that reaches a plan.

    def deselect_engines(self, engine_names: Sequence[str]) -> pygraph:
        """Build no plan of these engines."""
        return self._exclude("deselect_engines", engine_names)

    def deselect_workspace_greater_than(self, workspace_limit: int) -> pygraph:
        """Build no plan that may need more workspace than this, in bytes."""
        return self._exclude("deselect_workspace_greater_than", workspace_limit)

    def deselect_behavior_notes(self, notes: Sequence[behavior_note]) -> pygraph:
        """Build no plan that has one of these notes."""
        return self._exclude("deselect_notes", notes)

    def select_behavior_notes(self, notes: Sequence[behavior_note]) -> pygraph:
        """Build only plans that have all of these notes."""
        return self._exclude("select_notes", notes)

    def deselect_numeric_notes(self, notes: Sequence[numerical_note]) -> pygraph:
        """Build no plan that has one of these notes."""
        return self._exclude("deselect_notes", notes)

    def select_numeric_notes(self, notes: Sequence[numerical_note]) -> pygraph:
        """Build only plans that have all of these notes."""
        return self._exclude("select_notes", notes)

    # Running.

    def get_workspace_size(
        self,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
    ) -> int:
        """Bytes of workspace for the plan in use: for the overridden shapes, else for any call.

        Raises:
            SequenceError: no plan is built.
            RefusedError: the plan takes no such shapes.
        """
        built = None if self._program is None else self._program.current
        if built is None:
            raise SequenceError("get_workspace_size: no plan is built: call build() first")
        return self._workspace(built, override_uids, override_shapes)

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
    ) -> int:
        """The same for one plan of the list, which is built for it."""
        self._list("get_workspace_size_plan_at_index")
        built = self._planned("get_workspace_size_plan_at_index").built_at(index)
        return self._workspace(built, override_uids, override_shapes)

    def execute(
        self,
        tensor_dict: Any,
        workspace: Any = None,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
        tensor_uids: Any = None,
        *,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        """Launch the plan in use, which is built first if it is not yet.

        Args:
            tensor_dict: buffers by tensor, by a name that one tensor has, or by uid; or a list of
                buffers, with ``tensor_uids``. Operands that were bound while the graph was
                declared may be left out; what belongs to no operand is ignored.
            workspace: a dense buffer or an address; see `get_workspace_size`.
            handle: names the stream, before the graph's own; without either it is the default one.
            override_uids, override_shapes, override_strides: what tensors are in this call.
            symbols: values of the graph's symbols, where no buffer tells them.

        Raises:
            RefusedError: the call does not fit the plan; nothing was launched.
            RequirementError, LaunchError: the device cannot run it.
        """
        program = self._program
        built = (program and program.current) or self._auto_build()
        self._launch(
            built,
            tensor_dict,
            workspace,
            handle,
            override_uids,
            override_shapes,
            override_strides,
            tensor_uids,
            symbols,
        )

    def execute_plan_at_index(
        self,
        tensor_dict: Any,
        workspace: Any = None,
        index: int = 0,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
        *,
        tensor_uids: Any = None,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        """Launch one plan of the list, built if it is not yet; the plan in use stays."""
        self._list("execute_plan_at_index")
        self._launch(
            self._planned("execute_plan_at_index").built_at(index),
            tensor_dict,
            workspace,
            handle,
            override_uids,
            override_shapes,
            override_strides,
            tensor_uids,
            symbols,
        )

    # Plans as bytes.

    def serialize(self, *, as_bytes: bool = False, include_kernels: bool = True) -> Any:
        """The plan in use with its graph and kernels, as a list of byte values or as bytes.

        Args:
            include_kernels: else `deserialize` takes them from a store, or compiles them. A plan
                of cuDNN's is always included.

        Raises:
            SequenceError: no plan is built.
        """
        program = self._program
        if program is None or program.current is None:
            raise SequenceError("serialize: no plan is built: call build() first")
        from cudnn_aot.compiler.program.container import pack

        data = pack(self, program.target, program.current.stored, include_kernels)
        return data if as_bytes else list(data)

    def deserialize(self, *args: Any, **kwargs: Any) -> None:
        """Become the graph and plan that `serialize` gave: ``deserialize(data)`` or
        ``deserialize(handle, data, enforce_precompiled=False)``, on an empty graph.

        Text is taken for a graph file, and gives the graph alone. With ``enforce_precompiled`` a
        plan whose kernels were left out is not compiled. A plan is machine code: take it only from
        where you would take a library.

        Raises:
            SequenceError: the graph is not empty.
            UsageError: the bytes are no plan.
            DamagedError, InvalidGraphError: they were changed or cut.
            RequirementError: this host cannot run the plan; nothing of it was loaded.
        """
        handle, data, enforce_precompiled = _deserialize_arguments(args, kwargs)
        if self._nodes or self._tensors or self._program is not None:
            raise SequenceError("deserialize: the graph is not empty: make a new one")
        if isinstance(data, str):
            self._read_text(data)
            return
        from cudnn_aot.compiler.program.container import unpack

        held = unpack(_as_bytes(data))
        self._read_text(held.graph)
        try:
            if held.bound is None and self.key() != held.record["graph_key"]:
                raise DamagedError("serialized plan: its record is of another graph")
            self._restore(held, enforce_precompiled)
        except BaseException:
            self._become_empty()
            raise
        if handle is not None:
            self._handle = handle

    # What follows is not part of the interface.

    def build_if_possible(self, modes: Sequence[heur_mode] | None) -> None:
        """Seal the graph, and build it if there is a target to build for; else that is done when a
        plan is first needed.
        """
        from cudnn_aot.compiler.program.targets import is_target_known

        self.freeze()
        if self._program is None:
            self._modes = _modes(modes)
            if is_target_known(self._target):
                self.build()

    def _plan(self, modes: Sequence[heur_mode], recorded: tuple[int, Any] | None = None) -> Program:
        """Plan, once; a decline leaves the graph unplanned."""
        from cudnn_aot.compiler.program.program import Program
        from cudnn_aot.compiler.program.providers import choose_providers
        from cudnn_aot.compiler.program.targets import choose_target

        with self._planning:
            if self._program is not None:
                self.begin_planning()  # says what is wrong
            choice = choose_target(self._target)
            self.freeze()
            program = Program(
                self,
                choice.target,
                modes,
                self._exclusions,
                providers=choose_providers(self._providers),
                device=choice.device,
            )
            if recorded is not None:
                program.plans.append(*recorded)
            self.begin_planning()
            self._program = program
            return program

    def _ensure_planned(self, heuristics: Any = None) -> Program:
        """The program, made by whichever thread comes first."""
        with self._planning:
            if self._program is not None:
                return self._program
            return self._plan(_modes(self._modes if heuristics is None else heuristics))

    def _restore(self, held: Container, enforce_precompiled: bool) -> None:
        from cudnn_aot.compiler.program.built import StoredPlan
        from cudnn_aot.compiler.program.layers import layers
        from cudnn_aot.compiler.program.program import Program

        self.begin_planning()
        if held.has_kernels or held.bound is not None:
            # A graph can be compiled for, but not made into the symbolic one that it is a case of.
            read_blob = held.blob if held.has_kernels else layers().blob
            stored = StoredPlan(held.record, held.planned, read_blob, held.bound)
            self._program = Program(self, held.target, (), self._exclusions, stored)
            self._program.build()
            return
        self._program = Program(self, held.target, (), self._exclusions)
        place = self._program.plans.append_planned(held.planned)
        self._program.restore(place, enforce_precompiled)

    def _read_text(self, text: str) -> None:
        from cudnn_aot.compiler.formats import graph_json

        try:
            graph_json.loads(text, self._name, into=self)
        except BaseException:
            self._become_empty()
            raise

    def _become_empty(self) -> None:
        Graph.__init__(self, self._name)
        self._program = None

    def _auto_build(self) -> BuiltPlan:
        return self._ensure_planned().build()

    def _planned(self, what: str) -> Program:
        if self._program is None:
            raise SequenceError(
                f"{what}: the graph is not planned: call create_execution_plans() first"
            )
        return self._program

    def _list(self, what: str) -> PlanList:
        return self._planned(what).plans

    def _exclude(self, method: str, argument: Any) -> pygraph:
        from cudnn_aot.compiler.planning.exclusions import Exclusions

        if isinstance(argument, Iterable) and not isinstance(argument, str):
            argument = tuple(argument)  # it is read again
        getattr(Exclusions(), method)(argument)  # a wrong one is refused here, not when planning
        exclusion = (method, argument)
        with self._planning:
            if self._program is not None:
                self._program.exclude(exclusion)
            else:
                self._exclusions.append(exclusion)
        return self

    def _workspace(self, built: BuiltPlan, uids: Any, shapes: Any) -> int:
        symbols = symbols_of_call(self, built.plan.table["symbols"], uids, shapes)
        return int(built.plan.workspace_bytes(symbols))

    def _launch(
        self,
        built: BuiltPlan,
        tensor_dict: Any,
        workspace: Any,
        handle: Any,
        override_uids: Any,
        override_shapes: Any,
        override_strides: Any,
        tensor_uids: Any,
        symbols: Mapping[str, int] | None,
    ) -> None:
        supplied = self._handle if handle is None else handle
        built.plan.execute(
            bindings(self, tensor_dict, tensor_uids),
            workspace,
            None if supplied is None else get_stream(supplied),
            symbols,
            override_uids,
            override_shapes,
            override_strides,
        )


def _modes(given: Any) -> tuple[heur_mode, ...]:
    """Heuristic modes; those of another library are taken by their names."""
    from cudnn_aot.compiler.planning.rank import DEFAULT_MODES

    if given is None:
        return DEFAULT_MODES
    modes = []
    for mode in given if isinstance(given, list | tuple) else [given]:
        name = str(getattr(mode, "name", mode))
        if name not in heur_mode.__members__:
            known = ", ".join(heur_mode.__members__)
            raise UsageError(f"heuristic mode: got {mode!r}, want one of {known}")
        modes.append(heur_mode[name])
    return tuple(modes) or DEFAULT_MODES


def _deserialize_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, bool]:
    """Handle, data and ``enforce_precompiled``, in either form of the call."""
    names = ("handle_", "pyobj", "enforce_precompiled")
    if unknown := sorted(set(kwargs) - set(names)):
        raise TypeError(f"deserialize: got an argument {unknown[0]!r}, want {', '.join(names)}")
    rest = list(args)
    handle = kwargs.get("handle_")
    if handle is None and (len(rest) >= 2 or (rest and "pyobj" in kwargs)):
        handle = rest.pop(0)
    if "pyobj" not in kwargs and not rest:
        raise TypeError("deserialize: got no data, want what serialize gave")
    data = kwargs["pyobj"] if "pyobj" in kwargs else rest.pop(0)
    return handle, data, bool(kwargs.get("enforce_precompiled", rest[0] if rest else False))


def _as_bytes(data: Any) -> bytes:
    try:
        return data if isinstance(data, bytes) else bytes(memoryview(data))
    except TypeError:
        pass
    try:
        return bytes(data if isinstance(data, list | tuple) else ())
    except (TypeError, ValueError):
        raise UsageError("deserialize: got a list that is no list of byte values") from None
