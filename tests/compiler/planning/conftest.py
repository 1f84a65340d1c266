"""Stand-in engines in the manifest."""

import pytest
import standin as stand_ins


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch):
    """The stand-in family's module, in the manifest; its ``SCRIPT`` says what happens."""
    return stand_ins.installed(monkeypatch)
