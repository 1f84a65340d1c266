"""Settings of the environment that are on or off, and whether compiling is forbidden by one."""

from __future__ import annotations

import os

from cudnn_aot.errors import UsageError

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")
FORBID_VARIABLE = "CUDNN_AOT_FORBID_COMPILE"
DEBUG_VARIABLE = "CUDNN_AOT_DEBUG"


def is_on(variable: str) -> bool:
    """Whether a setting is on; one that is unset is off.

    Raises:
        UsageError: it says neither.
    """
    return parse_switch(variable, os.environ.get(variable, ""))


def parse_switch(what: str, text: str) -> bool:
    """Whether ``text`` says on; ``what`` names its source. Raises as `is_on`."""
    word = text.strip()
    if word.lower() in ON:
        return True
    if word.lower() in OFF:
        return False
    raise UsageError(
        f"{what}: got {word!r}, want {', '.join(ON)} or {', '.join(filter(None, OFF))}"
    )


def is_debugging() -> bool:
    """Whether an unexpected exception shows its traceback; raises as `is_on`."""
    return is_on(DEBUG_VARIABLE)


def is_compile_forbidden() -> bool:
    """Whether the environment forbids compiling; raises as `is_on`."""
    return is_on(FORBID_VARIABLE)
