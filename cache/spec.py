"""``KernelSpec``: all that a compile reads, as one frozen value, and the key made of it.

A spec names requirements, not things: the arch that code is generated for, not a device; the
flavour and versions of the tools, not where they are installed. Nothing in it depends on time,
path, user, process or environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from cudnn_aot.cache.canonical import SCALARS, canonical_digest, field_names, plain
from cudnn_aot.cache.source import source_closure, split_template, steady_sources
from cudnn_aot.cache.toolchain import toolchain
from cudnn_aot.compiler.target.flavor import driver_min
from cudnn_aot.errors import CompileError, UsageError

VERSION = 1


class CompileTarget(Protocol):
    """What a spec takes from a target."""

    @property
    def gpu_arch(self) -> str: ...
    @property
    def dsl_flavor(self) -> str: ...
    @property
    def host_triple(self) -> str: ...
    @property
    def host_level(self) -> str: ...


class Frozen(Mapping[str, Any]):
    """A read-only mapping of plain values; lists in it are tuples. Pickles, compares and hashes.

    What is frozen already is shared, neither checked nor copied again: the kernels of a plan have
    much in common.

    Raises:
        TypeError: it holds anything but plain data.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any], where: str = "params") -> None:
        if type(items) is Frozen:
            self._items: dict[str, Any] = items._items
        else:
            self._items = {
                name: _freeze(items[name], f"{where}.{name}") for name in field_names(items, where)
            }

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        """By type, too: ``1``, ``1.0`` and ``True`` are equal in Python and three values here."""
        return _same(self, other) if isinstance(other, Frozen) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(canonical_digest(self._items))

    def __reduce__(self) -> tuple[type[Frozen], tuple[dict[str, Any]]]:
        return Frozen, (plain(self._items),)

    def __repr__(self) -> str:
        return f"Frozen({plain(self._items)!r})"


def _same(a: Any, b: Any) -> bool:
    """Whether two frozen values have one canonical form, without making it."""
    kind = type(a)
    if a is b or kind is not type(b):
        return a is b
    if kind is Frozen:
        mine, others = a._items, b._items
        return mine is others or (
            mine.keys() == others.keys() and all([_same(v, others[k]) for k, v in mine.items()])
        )
    if kind is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    return repr(a) == repr(b) if kind is float else bool(a == b)  # 0.0 and -0.0 are two


def _freeze(value: Any, where: str) -> Any:
    """What `plain` takes, in a form that cannot change."""
    kind = type(value)
    if kind in SCALARS or kind is Frozen:
        return value
    if kind is list or kind is tuple:
        return tuple(
            [
                item if type(item) in SCALARS else _freeze(item, f"{where}[{index}]")
                for index, item in enumerate(value)
            ]
        )
    return Frozen(value, where) if isinstance(value, Mapping) else plain(value, where)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel to compile. Two are equal when their keys are.

    Attributes:
        template: ``"gemm.kernels.sm90:matmul"``: a function of a module under ``recipes/``.
        source_digest: digest of the template's source closure.
        params: plain data that the template is called with.
        gpu_arch: ``"sm_90a"``, or ``""`` for a kernel of the host.
        host_triple, host_level: what the host code is made for.
        toolchain: versions of the tools, and ``dsl_flavor``.
        options: further options of the DSL's compiler.

    Raises:
        TypeError: a field holds anything but plain data.
    """

    template: str
    source_digest: str
    params: Mapping[str, Any]
    gpu_arch: str
    host_triple: str
    host_level: str
    toolchain: Mapping[str, str]
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("template", "source_digest", "gpu_arch", "host_triple", "host_level"):
            if type(getattr(self, name)) is not str:
                raise TypeError(f"{name} is a {type(getattr(self, name)).__name__}, want str")
        object.__setattr__(self, "params", Frozen(self.params))
        object.__setattr__(self, "toolchain", Frozen(self.toolchain, "toolchain"))
        object.__setattr__(self, "options", tuple(plain(list(self.options), "options")))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelSpec):
            return NotImplemented
        if self is other:
            return True
        # Planning compares every kernel of a plan with every other: most differ in these.
        if self.template != other.template or len(self.params) != len(other.params):
            return False
        return all(_same(getattr(self, name), getattr(other, name)) for name in self.__slots__)

    def canonical(self) -> dict[str, Any]:
        """The spec as plain data; the key is the digest of its canonical JSON."""
        return {
            "version": VERSION,
            "template": self.template,
            "source_digest": self.source_digest,
            "params": plain(self.params),
            "gpu_arch": self.gpu_arch,
            "host_triple": self.host_triple,
            "host_level": self.host_level,
            "toolchain": plain(self.toolchain),
            "options": list(self.options),
        }

    @property
    def key(self) -> str:
        """64 hex digits."""
        return canonical_digest(self.canonical())

    @property
    def dsl_flavor(self) -> str:
        return str(self.toolchain["dsl_flavor"])

    @property
    def driver_min(self) -> int:
        """The driver floor of the compiled kernel; 0 for a kernel of the host."""
        return driver_min(self.dsl_flavor) if self.gpu_arch else 0


def place_of(spec: KernelSpec, among: list[KernelSpec]) -> int:
    """Which of a plan's kernels it is; one that is none of them yet becomes the last."""
    for place, known in enumerate(among):  # once: to compare is most of planning's looking up
        if known == spec:
            return place
    among.append(spec)
    return len(among) - 1


def kernel_spec(
    template: str,
    params: Mapping[str, Any],
    target: CompileTarget,
    options: tuple[str, ...] = (),
) -> KernelSpec:
    """The spec of a template for a target, with today's sources and tools.

    Raises:
        CompileError: the template or one of its imports is missing or forbidden, or the DSL is.
        UsageError: the target's DSL flavour is unknown.
        TypeError: ``params`` holds anything but plain data.
    """
    split_template(template)
    return KernelSpec(
        template=template,
        source_digest=source_closure(template).digest,
        params=params,
        gpu_arch=target.gpu_arch,
        host_triple=target.host_triple,
        host_level=target.host_level,
        toolchain=toolchain(target.dsl_flavor),
        options=options,
    )


def is_current(spec: Mapping[str, Any]) -> bool:
    """Whether compiling a stored spec again, with today's sources and tools, gives its own key."""
    return not why_not_current(spec)


def why_not_current(spec: Mapping[str, Any]) -> list[str]:
    """What has changed since a stored spec was compiled, in sentences; empty when nothing has.

    ``spec`` is a stored spec's canonical form. A template that is gone or no longer allowed is not
    current.
    """
    template, tools = spec["template"], spec["toolchain"]
    changed = []
    if spec["version"] != VERSION or len(spec) != len(fields(KernelSpec)) + 1:
        changed.append("kernel keys are made of other fields now")
    try:
        if source_closure(template).digest != spec["source_digest"]:
            changed.append(f"the sources of kernel {template} have changed")
        today = toolchain(tools["dsl_flavor"])
    except (CompileError, UsageError) as error:
        return [*changed, str(error)]
    changed += [
        f"{tool} is {today.get(tool, 'not there')} now, kernel {template} was compiled with "
        f"{tools.get(tool, 'none')}"
        for tool in sorted({*today, *tools})
        if today.get(tool) != tools.get(tool)
    ]
    return changed


__all__ = [
    "CompileTarget",
    "Frozen",
    "KernelSpec",
    "is_current",
    "kernel_spec",
    "steady_sources",
    "why_not_current",
]
