"""The names nearest to one, as difflib finds them."""

from __future__ import annotations

import difflib
import random

from cudnn_aot import _native


def test_as_difflib():
    dice = random.Random(3)
    parts = ["llama8b", "qkv", "ffn", "_", "up", "down", "decode", "16", "é", "x" * 70, "ab"]

    def name() -> str:
        return "".join(dice.choices(parts, k=dice.randrange(1, 7)))

    found = 0
    for _ in range(400):
        asked, names = name(), sorted({name() for _ in range(12)} | {"", "xy" * 120})
        wanted = difflib.get_close_matches(asked, names, n=3, cutoff=0.4)
        assert _native.nearest(asked, names) == wanted
        found += len(wanted)
    assert found > 400
    assert _native.nearest("", ["a"]) == [] and _native.nearest("", [""]) == [""]
