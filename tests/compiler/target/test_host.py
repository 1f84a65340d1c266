"""Hosts that code is compiled for."""

import pytest

from cudnn_aot.cache.export import HOST_CODE
from cudnn_aot.cache.instructions import _GAS_LEVELS
from cudnn_aot.compiler.target.host import (
    DEFAULT_LEVELS,
    LEVELS,
    parse_host,
    this_triple,
    why_not_built_here,
)
from cudnn_aot.errors import UsageError
from cudnn_aot.runtime import requirements


def test_one_list_of_levels_everywhere():
    """Code generator, assembler check and runtime know the levels that targets may name."""
    x86 = LEVELS["x86_64-linux-gnu"]
    assert set(HOST_CODE) == {level for levels in LEVELS.values() for level in levels}
    assert tuple(_GAS_LEVELS) == x86
    order = [(have, want) for have in x86 for want in x86 if requirements.level_covers(have, want)]
    assert order == [(have, want) for i, have in enumerate(x86) for want in x86[: i + 1]]
    assert all(DEFAULT_LEVELS[triple] in levels for triple, levels in LEVELS.items())


def test_the_triple_is_the_one_that_the_runtime_compares():
    assert this_triple() == requirements.this_host().triple


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "host_triple is '', want one of x86_64-linux-gnu, aarch64-linux-gnu"),
        ("x86-64-v3", "host_triple is 'x86-64-v3', want one of"),
        ("x86_64-linux-gnu/", "host_level is '', want one of x86-64, x86-64-v2"),
        ("x86_64-linux-gnu/x86-64-v1", "host_level is 'x86-64-v1', want one of x86-64, "),
        ("aarch64-linux-gnu/", "leave out the '/'"),
        ("aarch64-linux-gnu/x86-64-v3", "host_level is 'x86-64-v3', want '', its one level"),
    ],
)
def test_bad_hosts(text, message):
    with pytest.raises(UsageError) as refused:
        parse_host(text)
    assert str(refused.value).startswith(f"bad host {text!r}: ") and message in str(refused.value)


def test_a_machine_builds_for_its_own_processor_alone():
    here = this_triple()
    for triple in LEVELS:
        fault = why_not_built_here(triple)
        assert (fault is None) == (triple == here)
        if fault is not None:  # what to install, and where
            machine = triple.partition("-")[0]
            assert f"{machine} machine" in fault and "cudnn-aot[compile]" in fault
            assert "apt-get install gcc binutils" in fault and "\n" not in fault
