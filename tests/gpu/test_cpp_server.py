"""The example server on the device: a process without Python, from several threads."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from cpp_server import build, check_outputs, serve

from cudnn_aot.runtime import cudart

PLAN = "bench_128x256x128_bias_aux"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cpp-server"))


@pytest.mark.parametrize("threads", [1, 4])
def test_answers_are_right(stored, server, tmp_path, threads):
    requests = f"{PLAN}\n" * 12
    options = ("--store", stored.path.resolve(), "--target", "h200", "--threads", threads)
    env = {cudart.VARIABLE: cudart.find()} | {
        name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"
    }
    done = serve(server, requests, *options, "--repeat", 50, "--out", tmp_path, PLAN, env=env)
    assert done.returncode == 0, done.stderr
    answers = re.findall(rf"^(\d+) {PLAN}((?: \d+:\S+)+)$", done.stdout, re.MULTILINE)
    assert len(answers) == 12
    for line, sums in answers:
        found = {int(uid): float(value) for uid, value in re.findall(r"(\d+):(\S+)", sums)}
        want = check_outputs(stored.graph(PLAN), {}, f"{tmp_path}/{line}")
        assert found == pytest.approx(want)


def test_another_target_is_refused(stored, server):
    options = ("--store", stored.path.resolve(), "--target", "b200", PLAN)
    done = serve(server, "", *options)
    assert done.returncode == 1 and done.stderr.startswith("error: NotInStoreError: ")
