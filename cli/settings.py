"""Settings: one row each, and the one place that says which of its sources wins.

A flag comes before the environment, the environment before the config file, that before the
default; an empty variable counts as unset. Every source gives text, so that a value is read in one
way wherever it came from.

The config file is the one that ``CUDNN_AOT_CONFIG`` names; else the nearest ``cudnn-aot.toml``, or
``pyproject.toml`` with a table ``[tool.cudnn-aot]``, of the working folder and those above it; else
``$XDG_CONFIG_HOME/cudnn-aot/config.toml``. One file is read, never two. Paths in it start at its
folder.
"""

import functools
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cudnn_aot.cache.place import is_url, split_places
from cudnn_aot.cache.switch import parse_switch
from cudnn_aot.errors import UsageError, did_you_mean

CONFIG_VARIABLE = "CUDNN_AOT_CONFIG"
CONFIG_FILE = "cudnn-aot.toml"
DEFAULT = "default"  # as a source


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; without a flag or a key it cannot be given there.

    Attributes:
        kind: how the config file spells it, a key of `_KINDS`.
        key: its key in the config file.
        default: the text that stands for it when nobody says anything, to be shown or read.
        verbs: the commands that read it; none for what the runtime or every command reads.
    """

    name: str
    kind: str
    meaning: str
    flag: str = ""
    variable: str = ""
    key: str = ""
    default: str = ""
    verbs: tuple[str, ...] = ()


SETTINGS = (
    Setting(
        "store", "store", "the store, or its layers with `:` between them: folders, packs, URLs",
        "--store", "CUDNN_AOT_STORE", "store", "cudnn_aot_store",
        (
            "build", "why", "ls", "show", "verify", "run", "tune", "report", "sign", "pack", "push",
            "prune", "doctor",
        ),
    ),
    Setting(
        "target", "targets", "what graphs are built for, and planned for in a program",
        "--target", "CUDNN_AOT_TARGET", "target", "",
        ("build", "why"),
    ),
    Setting(
        "host", "text", "the host that is built for, in place of the targets' own",
        "--host", "CUDNN_AOT_HOST", "host", "",
        ("build", "why"),
    ),
    Setting(
        "jobs", "count", "kernels compiled at once, or `auto`",
        "--jobs", "CUDNN_AOT_JOBS", "jobs", "auto",
        ("build",),
    ),
    Setting(
        "executor", "text", "where kernels are compiled: `local`, `ray`",
        "--executor", "CUDNN_AOT_EXECUTOR", "executor", "local",
        ("build",),
    ),
    Setting(
        "ray-address", "text", "the Ray cluster of the executor `ray`",
        "--ray-address", "RAY_ADDRESS", "ray-address", "the one that runs",
        ("build",),
    ),
    Setting(
        "engines", "names", "whose plans: `native`, `cudnn`",
        "--engines", "CUDNN_AOT_ENGINES", "engines", "native",
        ("build", "why"),
    ),
    Setting(
        "tuning", "path", "measured plans, taken before those that are ranked",
        "--tuning", "CUDNN_AOT_TUNING", "tuning", "",
        ("build", "why"),
    ),
    Setting(
        "allow-declined", "names", "targets on which declined graphs are no failure, or `all`",
        "--allow-declined", "CUDNN_AOT_ALLOW_DECLINED", "allow-declined", "",
        ("build", "verify"),
    ),
    Setting(
        "forbid-compile", "switch", "a build that needs a compile fails, naming the kernel",
        "", "CUDNN_AOT_FORBID_COMPILE", "forbid-compile", "0",
        ("build",),
    ),
    Setting(
        "opt-in-engines", "names", "engines that are not mature yet and are offered all the same",
        "", "CUDNN_AOT_OPT_IN_ENGINES", "", "",
        ("build", "why", "targets"),
    ),
    Setting(
        "offline", "switch", "of stores at URLs take what was fetched before, and open no socket",
        "--offline", "CUDNN_AOT_OFFLINE", "offline", "0",
        (
            "build", "why", "ls", "show", "verify", "run", "tune", "report", "diff", "merge",
            "prune", "sign", "pack", "push", "pull", "doctor",
        ),
    ),
    Setting(
        "trust", "keys", "public keys, `:` between them, of which one must have signed a store",
        "--trust", "CUDNN_AOT_TRUST", "trust", "",
        (
            "why", "ls", "show", "verify", "run", "tune", "report", "diff", "merge", "pack", "push",
            "pull",
        ),
    ),
    Setting(
        "pin", "text", "root digests, with `:` between them, that the layers of a store must have",
        "", "CUDNN_AOT_PIN", "", "",
        ("run", "tune"),
    ),
    Setting(
        "config", "path", "the config file",
        "", CONFIG_VARIABLE, "", "the nearest",
    ),
    Setting(
        "debug", "switch", "an unexpected exception shows its traceback",
        "", "CUDNN_AOT_DEBUG", "", "0",
    ),
    Setting(
        "source-date-epoch", "count", "the time that a store's files carry",
        "", "SOURCE_DATE_EPOCH", "", "0",
        ("build", "sign", "pack", "merge", "pull"),
    ),
    Setting(
        "cache", "path", "where a program keeps what it compiles, and what was read from URLs lies",
        "", "CUDNN_AOT_CACHE", "", "~/.cache/cudnn-aot/store",
    ),
    Setting(
        "miss-dir", "path", "where a program leaves the graphs that its store lacks",
        "", "CUDNN_AOT_MISS_DIR", "", "",
    ),
    Setting(
        "log", "text", "what a program says of loading: `off`, `error`, `warning`, `info`",
        "", "CUDNN_AOT_LOG", "", "off",
    ),
    Setting(
        "nvtx", "switch", "an NVTX range around every execute",
        "", "CUDNN_AOT_NVTX", "", "0",
    ),
    Setting(
        "cudart", "path", "the CUDA runtime library that kernels use",
        "", "CUDNN_AOT_CUDART", "", "searched for",
        ("run", "tune", "verify", "targets"),
    ),
    Setting(
        "tvm-ffi", "path", "the tvm-ffi library that kernels use",
        "", "CUDNN_AOT_TVM_FFI", "", "searched for",
        ("run", "tune"),
    ),
)  # fmt: skip
BY_NAME: Mapping[str, Setting] = MappingProxyType({row.name: row for row in SETTINGS})
_BY_KEY = {row.key: row for row in SETTINGS if row.key}


@dataclass(frozen=True, slots=True)
class Choice:
    """The value of a setting, as text, and what chose it: its flag, its variable, the path of the
    config file, or "default".
    """

    setting: Setting
    value: str
    chosen_by: str

    @property
    def is_on(self) -> bool:
        """Of a switch; raises UsageError, naming the source, for a value that is neither."""
        return parse_switch(self.chosen_by, self.value)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of public keys: ``:`` parts them."""
        return tuple(self.value.split(os.pathsep)) if self.value else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of a list: commas part names, each of which counts once."""
        return tuple(dict.fromkeys(filter(None, (part.strip() for part in self.value.split(",")))))


@dataclass(frozen=True, slots=True)
class Config:
    """The config file in use, None for none, and the text of what it sets, by key."""

    path: Path | None
    values: Mapping[str, str]


def choose(name: str, flag: str | None = None) -> Choice:
    """What holds for the setting ``name`` when its flag was given as ``flag``.

    Raises:
        UsageError: the flag is empty; the config file cannot be read, or says what it cannot mean.
    """
    setting = BY_NAME[name]
    config = find_config()
    if flag is not None:
        if not flag.strip():  # most likely a variable of the caller's shell that is not set
            raise UsageError(f"{setting.flag}: got an empty value, want {setting.meaning}")
        return Choice(setting, flag, setting.flag)
    if setting.variable and (text := os.environ.get(setting.variable)):
        return Choice(setting, text, setting.variable)
    if setting.key in config.values:
        return Choice(setting, config.values[setting.key], str(config.path))
    return Choice(setting, setting.default, DEFAULT)


def find_config() -> Config:
    """The config file in use; raises UsageError as `choose`."""
    if named := os.environ.get(CONFIG_VARIABLE):
        if named == os.devnull:
            return Config(None, {})
        return _read(Path(named))
    for path in _places():
        if os.path.isfile(path) and (path.name == CONFIG_FILE or _has_table(path)):
            if fault := _why_not_trusted(path):
                raise UsageError(
                    f"config file {str(path)!r} is not obeyed: {fault}; {CONFIG_VARIABLE} names "
                    f"the file to read all the same, or {os.devnull} for none"
                )
            return _read(path)
    path = _at_home(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "cudnn-aot/config.toml"
    return _read(path) if os.path.isfile(path) else Config(None, {})


def _why_not_trusted(path: Path) -> str | None:
    """Why somebody else may say what is in a file that nobody named; None if only this user or root
    may.

    A link counts as well as what it leads to: paths in the file start where the link is. In a
    sticky folder users move what is their own alone. Members of one group are not told from each
    other.
    """
    found = (("its folder", path.parent.stat()), ("it", path.lstat()), ("it", path.stat()))
    for what, status in found:
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_uid not in (os.geteuid(), 0):
            return f"{what} is user {status.st_uid}'s, and this is user {os.geteuid()}"
        is_link = stat.S_ISLNK(status.st_mode)  # its mode says nothing
        is_sticky = is_folder and status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and not is_link and not is_sticky:
            return f"any user may write {'into its folder' if is_folder else 'it'}"
    return None


def _at_home(text: str) -> Path:
    """A path whose ``~`` is the home folder, if there is one."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (the other raises where there is none)


def _places() -> Iterator[Path]:
    try:
        start = Path.cwd()
    except OSError:  # the working folder was removed
        return
    for folder in (start, *start.parents):
        yield folder / CONFIG_FILE
        yield folder / "pyproject.toml"


def _has_table(path: Path) -> bool:
    """Whether another tool's file speaks of us; what cannot be read there is not for us to say.

    Raises:
        UsageError: it is no TOML, and has the line that begins our table.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return False
    if b"cudnn-aot" not in text or b"tool" not in text:
        return False
    try:
        return _table(_parse(path, text)) is not None
    except UsageError:
        if _HEADER.search(text):
            raise
        return False  # its owner's tool says what is wrong with it


# Of the table, and of those in it.
_HEADER = re.compile(rb"""^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*["']?cudnn-aot\b""", re.MULTILINE)


def _table(document: dict[str, Any]) -> Any:
    tools = document.get("tool")
    return tools.get("cudnn-aot") if isinstance(tools, dict) else None


def _read(path: Path) -> Config:
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would be waited for without end
        raise UsageError(f"config file {str(path)!r} is not a regular file")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"config file {str(path)!r}: {(error.strerror or '').lower()}") from None
    document = _parse(path, text)
    if path.name == "pyproject.toml":
        document = _table(document) or {}
        if not isinstance(document, dict):
            raise UsageError(f"config file {str(path)!r}: tool.cudnn-aot is no table")
    values = {}
    for key, value in document.items():
        setting = _BY_KEY.get(key)
        if setting is None:
            raise UsageError(
                f"config file {str(path)!r}: unknown key {key!r}{did_you_mean(key, _BY_KEY)}; "
                f"known: {', '.join(_BY_KEY)}"
            )
        read, want = _KINDS[setting.kind]
        converted = read(path.absolute().parent, value)
        if converted is None:
            raise UsageError(f"config file {str(path)!r}: {key} is {value!r}, want {want}")
        values[key] = converted
    return Config(path, values)


@functools.cache
def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"config file {str(path)!r} is not TOML: {error}") from None


# How a value of the config file becomes text; None for what is of another type.


def _text(folder: Path, value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _path(folder: Path, value: Any) -> str | None:
    text = _text(folder, value)
    return None if text is None else str(folder / _at_home(text))


def _store(folder: Path, value: Any) -> str | None:
    """Layers; URLs stay what they are."""
    items = value if isinstance(value, list) else [value]
    texts = [_text(folder, item) for item in items]
    try:
        places = split_places(":".join(filter(None, texts)), "") if all(texts) else ()
    except UsageError:
        return None
    if not places:
        return None
    return ":".join(str(p) if is_url(p) else str(folder / _at_home(str(p))) for p in places)


def _keys(folder: Path, value: Any) -> str | None:
    """Paths of PEM files, and keys themselves: 32 bytes in base64."""
    items = value if isinstance(value, list) else [value]
    texts = [_text(folder, item) for item in items]
    if not texts or not all(texts):  # trust in no key is no trust at all
        return None
    parts = (part for text in texts if text for part in text.split(os.pathsep))
    return os.pathsep.join(
        part if _BASE64_KEY.fullmatch(part) else str(folder / _at_home(part)) for part in parts
    )


_BASE64_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")


def _count(folder: Path, value: Any) -> str | None:
    return str(value) if type(value) is int else _text(folder, value)


def _switch(folder: Path, value: Any) -> str | None:
    return None if type(value) is not bool else "1" if value else "0"


def _names(folder: Path, value: Any) -> str | None:
    items = value if isinstance(value, list) else [value]
    texts = [_text(folder, item) for item in items]
    return ",".join(filter(None, texts)) if all(texts) else None


def _targets(folder: Path, value: Any) -> str | None:
    """Names, and paths of descriptors."""
    text = _names(folder, value)
    if text is None:
        return None
    return ",".join(
        str(folder / item) if item.endswith(".json") or "/" in item else item
        for item in text.split(",")
    )


_KINDS: Mapping[str, tuple[Callable[[Path, Any], str | None], str]] = {
    "text": (_text, "a string"),
    "path": (_path, "a string, a path"),
    "store": (_store, "a string, paths or URLs with ':' between them, or a list of such"),
    "keys": (_keys, "a string, paths of PEM files or keys in base64, or a list of such"),
    "count": (_count, "a number, or a string"),
    "switch": (_switch, "true or false"),
    "names": (_names, "a string, or a list of strings"),
    "targets": (_targets, "a string, or a list of strings"),
}
