"""The runner finds every test: it leaves out folders of some names, which it does not tell."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {
        part
        for file in TESTS.rglob("test_*.py")
        for part in file.relative_to(TESTS).parent.parts
        if "data" not in file.parts
    }
    assert {"build", "cli"} <= folders
    assert [f for f in sorted(folders) if any(fnmatch(f, name) for name in left_out)] == []
