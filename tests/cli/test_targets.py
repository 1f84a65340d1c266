"""Targets, hosts and descriptors on the command line."""

import json
import subprocess
import sys
import time
from pathlib import Path

import cuda_stand_in
import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.target.host import this_triple
from cudnn_aot.compiler.target.target import known_targets, load_target
from cudnn_aot.errors import UsageError

OTHER_TRIPLE = next(
    triple for triple in ("aarch64-linux-gnu", "x86_64-linux-gnu") if triple != this_triple()
)


def probe(*args: object, **settings: int):
    """`targets probe` in a process whose CUDA devices are stand-ins with these attributes."""
    return run_cli("targets", "probe", *args, env=cuda_stand_in.environment(**settings))


def test_the_list_has_every_target() -> None:
    listed = json.loads(run_cli("targets", "--json").stdout)["targets"]
    assert listed == [load_target(name).descriptor() for name in known_targets()]
    rows = run_cli("targets").stdout.splitlines()[2:]
    assert [row.split()[0] for row in rows] == list(known_targets())


# Probing


def test_a_probed_descriptor_is_a_target(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    done = probe("--device", 1, "-o", path, "--name", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"mine: sm_90a with 131 SMs, written to {path}\n"
    found = load_target(str(path)).descriptor()
    h200 = load_target("h200").descriptor()
    assert found == h200 | {"name": "mine", "sm_count": 131, "host_triple": this_triple()}
    again = run_cli("targets", "--engines", path, "--json")
    assert json.loads(again.stdout)["target"] == "mine"


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({"sm_count": 60, "l2": 26214400}, ("sm_90a-60", "sm_90a", 60, 26214400, 232448)),
        (
            {"major": 8, "sm_count": 108, "smem": 166912},
            ("sm_80-108", "sm_80", 108, 62914560, 166912),
        ),
        ({"major": 10, "sm_count": 148}, ("sm_100a-148", "sm_100a", 148, 62914560, 232448)),
        (
            {"major": 12, "minor": 1, "sm_count": 48},
            ("sm_121a-48", "sm_121a", 48, 62914560, 232448),
        ),
    ],
    ids=["mig", "a100", "b200", "spark"],
)
def test_what_is_asked_of_the_device(settings: dict[str, int], want: tuple) -> None:
    done = probe(**settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    name, arch, sms, l2, smem = want
    assert (found["name"], found["gpu_arch"], found["sm_count"]) == (name, arch, sms)
    assert (found["smem_optin_bytes"], found["l2_bytes"]) == (smem, l2)
    assert (found["dsl_flavor"], found["driver_min"]) == ("cu12", 12090)


def test_the_host_is_named_and_not_asked() -> None:
    levels = {None: "x86-64-v3", "x86_64-linux-gnu/x86-64-v2": "x86-64-v2", "aarch64-linux-gnu": ""}
    for host, level in levels.items():
        if host is None and this_triple() != "x86_64-linux-gnu":
            continue
        found = json.loads(probe(*(("--host", host) if host else ())).stdout)
        assert found["host_level"] == level
        assert found["host_triple"] == (host or this_triple()).partition("/")[0]


def test_an_old_driver_is_told() -> None:
    done = probe(driver=12040)
    assert done.returncode == 0
    assert done.stderr == (
        "note: the driver is for CUDA 12.4, kernels will need one for CUDA 12.9 or newer\n"
    )


def test_what_cannot_be_probed(tmp_path: Path) -> None:
    assert_one_line_error(probe("--name", "h200"), 2, "'h200', a shipped target")
    assert_one_line_error(probe("--name", "../x"), 2, "'../x', want a letter or digit")
    assert_one_line_error(probe("--host", "vax"), 2, "host_triple is 'vax'")
    assert_one_line_error(probe("--device", "9"), 1, "no such device: got cuda:9, want 0 to 1")
    assert_one_line_error(probe(major=7, minor=5), 1, "compute capability 7.5", "sm_80")
    assert_one_line_error(probe("-o", tmp_path / "no" / "file.json"), 2, "no such file")
    assert_one_line_error(probe(devices=0), 1, "no CUDA device")
    assert_one_line_error(run_cli("targets", "--json", "probe"), 2, "targets probe --json")


def test_without_a_gpu_it_is_one_line() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    assert_one_line_error(run_cli("targets", "probe"), 1, "no CUDA driver")


# Hosts


def test_the_refusal_of_a_host_imports_no_compiler(tmp_path: Path) -> None:
    """It takes a tenth of a second: neither the graph, which is none, nor the DSL is looked at."""
    (tmp_path / "bad.json").write_text("no graph")
    line = ["build", str(tmp_path / "bad.json"), "-t", "h200", "--host", OTHER_TRIPLE]
    code = (
        "import json, sys, time\n"
        "from cudnn_aot.cli.main import main\n"
        f"exit_code = main({[*line, '--store', str(tmp_path / 'store')]!r})\n"
        "print(json.dumps([exit_code, time.process_time(), sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, processor_s, modules = json.loads(done.stdout)
    assert exit_code == 1
    assert "cannot compile for the host" in done.stderr
    assert processor_s < 1
    packages = ("cudnn_aot.compiler.graph", "cudnn_aot.compiler.planning", "cudnn_aot.cache.pool")
    heavy = ("cutlass", "numpy", "cudnn_aot.compiler.build.driver", *packages)
    assert [name for name in modules if name.startswith(heavy)] == []


def test_a_builder_refuses_another_processor_before_it_does_anything(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, linear_graph("up", 64))
    store = tmp_path / "store"
    run_cli("targets")  # what the file system has to read once
    began = time.monotonic()
    done = run_cli("build", graph, "-t", "h200", "--host", OTHER_TRIPLE, "--store", store)
    took = time.monotonic() - began
    machine = OTHER_TRIPLE.partition("-")[0]
    assert_one_line_error(done, 1, f"target h200-{machine}: cannot compile for", f"{machine} mach")
    assert "pip install 'cudnn-aot[compile]'" in done.stderr
    assert not store.exists()
    began = time.monotonic()
    run_cli("targets")
    # The refusal comes with the start of the command line; no graph is planned before it.
    assert took < 1 + 3 * (time.monotonic() - began)
    assert_one_line_error(
        run_cli("build", graph, "-t", "h200", "--host", "arm64", "--store", store),
        2,
        "bad host 'arm64': host_triple is 'arm64', want one of x86_64-linux-gnu, aarch64-linux-gnu",
    )


def test_why_explains_for_hosts_that_are_built_for_elsewhere(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, linear_graph("up", 64))
    done = run_cli("why", graph, "-t", "h200", "--host", OTHER_TRIPLE, "--json")
    assert done.returncode == 0, done.stderr
    (explained,) = json.loads(done.stdout)["graphs"]
    assert explained["target"] == f"h200-{OTHER_TRIPLE.partition('-')[0]}"


@pytest.mark.skipif(this_triple() != "x86_64-linux-gnu", reason="levels of x86-64")
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v4"])
def test_the_level_is_the_one_that_was_named(tmp_path: Path, level: str) -> None:
    """Below and above what this processor may have: it is never asked."""
    graph = write_graph(tmp_path, linear_graph("up", 64))
    store = tmp_path / "store"
    host = f"x86_64-linux-gnu/{level}"
    done = run_cli("build", graph, "-t", "cpu", "--host", host, "--store", store)
    assert done.returncode == 0, done.stderr
    reader = StoreReader(store)
    assert reader.targets() == ["cpu"]
    for kernel in map(reader.kernel, reader.kernels()):
        assert kernel["spec"]["host_level"] == kernel["requirements"]["host_level"] == level


def test_gpus_that_no_engine_has_kernels_for_are_declined(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, linear_graph("up", 64))
    done = run_cli("build", graph, "-t", "b200,rtx_pro_6000", "--store", tmp_path / "store")
    assert done.returncode == 3, done.stderr
    for name, arch in (("b200", "sm_100a"), ("rtx_pro_6000", "sm_120a")):
        assert f"declined: up for {name}: gemm.sm90.persistent: arch {arch} is not" in done.stderr
    assert "0 compiled" in done.stdout and "Traceback" not in done.stderr


# A descriptor of the user's own, wherever a name goes


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("targets") / "mine.json"
    path.write_text(json.dumps(load_target("cpu").descriptor() | {"name": "my_cpu"}))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, descriptor: Path) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    graph = write_graph(folder, linear_graph("up", 64))
    done = run_cli("build", graph, "-t", descriptor, "-t", "cpu", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder / "store"


def test_plans_are_filed_under_its_name(store: Path) -> None:
    assert StoreReader(store).targets() == ["cpu", "my_cpu"]


@pytest.mark.parametrize("verb", [("ls",), ("show", "up"), ("run", "up"), ("run", "--all")])
def test_every_verb_takes_the_file(store: Path, descriptor: Path, verb: tuple[str, ...]) -> None:
    answers = []
    for target in ("my_cpu", descriptor):
        done = run_cli(*verb, "--target", target, "--store", store, "--json")
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1] and '"target": "my_cpu"' in json.dumps(answers[0])
    assert '"target": "cpu"' not in json.dumps(answers[0])
    absent = run_cli(*verb, "--target", descriptor.with_name("no.json"), "--store", store)
    assert_one_line_error(absent, 2, "cannot read target descriptor")


def test_why_takes_the_file(store: Path, descriptor: Path) -> None:
    graph = store.parent / "up.json"
    done = run_cli("why", graph, "-t", descriptor, "--store", store, "--json")
    (explained,) = json.loads(done.stdout)["graphs"]
    assert explained["target"] == "my_cpu"
    assert explained["stored"]["plans"][0]["held"] == "current"


def test_serving_takes_the_file(store: Path, descriptor: Path) -> None:
    assert runtime.open(store, target=str(descriptor)).plan("up").target == "my_cpu"
    opened = runtime.open(store)
    assert opened.plan("up", str(descriptor)).target == "my_cpu"
    assert [p.target for p in opened.plans(["up"], str(descriptor)).values()] == ["my_cpu"]
    assert opened.max_workspace(target=str(descriptor)) == opened.max_workspace(target="my_cpu")
    assert {v.ok for v in opened.validity(str(descriptor))} == {True}
    with pytest.raises(UsageError, match="cannot read target descriptor"):
        runtime.open(store, target=str(descriptor.with_name("no.json")))
