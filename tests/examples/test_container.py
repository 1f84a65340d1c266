"""The container recipes, carried out step by step as they are written, without a container engine.

What no test can do here is say which: pulling base images, `apt-get`, and pushing to a registry.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import container_stage
import numpy as np
import pytest
import yaml
from container_stage import Instruction, Stage, expand, read_dockerfile

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cli.operands import compare, make_operands
from cudnn_aot.compiler.formats import graph_json

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "container"
SERVE_PLAN = ROOT / "tests" / "support" / "serve_plan.py"
STORE = "/opt/model-store"
# What the test asks for in place of the recipe's own: no 40 MB of examples, no GPU.
ARGUMENTS = {"GRAPHS": "graphs", "TARGETS": "cpu", "CUDART": ""}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _permitted() -> None:
    if reason := container_stage.why_not_here():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def stages() -> dict[str, list[Instruction]]:
    return read_dockerfile(RECIPES / "Dockerfile")[1]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory, graph_files: list[Path]) -> Path:
    """A repository with the recipes and two small graphs."""
    folder = tmp_path_factory.mktemp("context")
    shutil.copytree(RECIPES, folder / "examples" / "container")
    (folder / "graphs").mkdir()
    for path in graph_files:
        shutil.copy2(path, folder / "graphs")
    return folder


def carry_out(
    instructions: list[Instruction],
    stage: Stage,
    context: Path,
    wheel: Path,
    others: Mapping[str, Stage],
) -> dict[str, list[str]]:
    """Do all that a stage says; the arguments of what only a running container reads are given."""
    kept: dict[str, list[str]] = {}
    for step in instructions:
        if step.name == "RUN" and step.text.startswith("apt-get"):
            assert shutil.which("cc"), "the recipe installs a compiler, so the test needs one"
        elif step.name == "RUN" and "pip wheel" in step.text:
            assert step.words[-3:] == ["--wheel-dir", "/wheels", "/src"]
            stage.copy(wheel, f"/wheels/{wheel.name}")  # built from this checkout, once for all
        elif step.name == "RUN":
            stage.run(["/bin/sh", "-c", step.text])
        elif step.name == "ARG":
            name, _, default = step.text.partition("=")
            stage.env[name] = ARGUMENTS.get(name, default)
        elif step.name == "ENV":
            pairs = [pair.partition("=") for pair in expand(step.text, stage.env).split()]
            stage.env |= {name: value for name, _, value in pairs}
        elif step.name == "COPY":
            *options, source, target = expand(step.text, stage.env).split()
            if options:
                (option,) = options
                copied = others[option.removeprefix("--from=")].inside(source)
            else:
                copied = context / source
            if (source, target) != (".", "/src"):  # the wheel's sources
                stage.copy(copied, target)
        else:
            assert step.name in ("USER", "HEALTHCHECK", "ENTRYPOINT", "CMD"), step
            kept[step.name] = (
                json.loads(step.text[step.text.index("[") :]) if "[" in step.text else step.words
            )
    return kept


@pytest.fixture(scope="module")
def build_stage(
    tmp_path_factory: pytest.TempPathFactory,
    stages: dict[str, list[Instruction]],
    context: Path,
    wheel: Path,
) -> Stage:
    """A fresh environment with `cudnn-aot[compile]`, whose dependencies are those of this one."""
    site = Path(np.__file__).parents[1]
    stage = Stage(tmp_path_factory.mktemp("image") / "build", mounts={"/dependencies": site})
    hooks = [path.read_text() for path in site.glob("nvidia_*.pth")]
    (stage.site_packages() / "dependencies.pth").write_text("\n".join(["/dependencies", *hooks]))
    carry_out(stages["build"], stage, context, wheel, {})
    return stage


@pytest.fixture(scope="module")
def serve_stage(
    stages: dict[str, list[Instruction]], build_stage: Stage, context: Path, wheel: Path
) -> tuple[Stage, dict[str, list[str]]]:
    """A fresh environment with the plain install, the store, and how the container is started."""
    stage = Stage(build_stage.root.with_name("serve"))
    return stage, carry_out(stages["serve"], stage, context, wheel, {"build": build_stage})


def layer_digest(store: Path) -> str:
    """Of the tar of a folder: its names, bytes, modes and times; owners are the image's."""

    def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(store.rglob("*")):
            name = f"opt/model-store/{path.relative_to(store)}"
            layer.add(path, name, recursive=False, filter=owned_by_root)
    return hashlib.sha256(data.getvalue()).hexdigest()


def test_two_builds_give_one_layer(build_stage: Stage, built_store: Path) -> None:
    """One built from a wheel by the recipe, one from the checkout, in another folder."""
    assert layer_digest(build_stage.inside(STORE)) == layer_digest(built_store)
    assert len(StoreReader(built_store).kernels()) == 2


def test_the_serving_image_is_the_plain_install(
    serve_stage: tuple[Stage, dict[str, list[str]]],
) -> None:
    stage, _ = serve_stage
    env = {**stage.env, "HOME": "/tmp"}  # pip makes the home
    listed = stage.run(["python", "-m", "pip", "list", "--format=json"], env=env).stdout
    names = {package["name"].lower() for package in json.loads(listed)}
    names -= {"pip", "setuptools"}  # of the base image
    assert names == {"cudnn-aot", "apache-tvm-ffi", "typing_extensions"}


def container(
    serve_stage: tuple[Stage, dict[str, list[str]]], command: list[str], **changes: str
) -> list[str]:
    """What runs a command as the container does: its user, its settings, the store on a mount."""
    stage, kept = serve_stage
    (user,) = kept["USER"]
    assert user.split(":") == ["54321", "54321"]
    env = {**stage.env, "PATH": "/venv/bin", **changes}
    assert env["HOME"] == "/nonexistent" and not stage.inside("/nonexistent").exists()
    mounted = {env["CUDNN_AOT_STORE"]: stage.inside(STORE)}
    return stage.command(command, user=user, env=env, noexec=mounted)


PROBE = """
import os, pwd, shutil
store = os.environ["CUDNN_AOT_STORE"]
assert os.getuid() == 54321 and os.getgid() == 54321 and os.getgroups() in ([], [54321])
assert not [user for user in pwd.getpwall() if user.pw_uid == 54321]
(mount,) = [line.split() for line in open("/proc/self/mounts") if line.split()[1].endswith(store)]
assert {"ro", "noexec"} <= set(mount[3].split(",")), mount
assert not [tool for tool in ("cc", "ld", "nvcc", "cuobjdump") if shutil.which(tool)]
for folder in (store, "/", "/tmp", "/app"):
    assert not os.access(folder, os.W_OK), folder
"""


def test_serving_as_nobody_from_a_read_only_noexec_mount(
    serve_stage: tuple[Stage, dict[str, list[str]]],
) -> None:
    """Every plan of the store runs right; nothing but the operands can be written."""
    stage, _ = serve_stage
    probed = subprocess.run(
        container(serve_stage, ["python", "-c", PROBE]), capture_output=True, text=True
    )
    assert probed.returncode == 0, probed.stderr
    stage.copy(SERVE_PLAN, "/app/serve_plan.py")
    for name, graph in graphs_of(stage.inside(STORE)).items():
        symbols = {"M": 17}
        operands = make_operands(graph, symbols, seed=17)
        folder = stage.inside(f"/operands/{name}")
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        for ending, buffers in (("in", operands.inputs), ("out", operands.outputs)):
            for buffer in buffers:
                path = folder / f"{buffer.uid}.{ending}"
                path.write_bytes(buffer.flat.tobytes())
                path.chmod(0o666)
        command = ["python", "/app/serve_plan.py", STORE, name, f"/operands/{name}"]
        run = container(serve_stage, [*command, json.dumps(symbols)])
        done = subprocess.run(run, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for buffer in operands.outputs:
            data = (folder / f"{buffer.uid}.out").read_bytes()
            buffer.flat[...] = np.frombuffer(data, buffer.flat.dtype)
        worst, correct = compare(graph, operands, symbols)
        assert correct, worst


def graphs_of(store: Path) -> dict[str, Any]:
    reader = StoreReader(store)
    found = {}
    for target, name in reader.names():
        pointer = reader.pointer(target, reader.name(target, name)["graph_key"])
        found[name] = graph_json.loads(reader.blob(pointer["graph"]).decode())
    assert sorted(found) == ["down", "up"]
    return found


def answered(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the example server says of itself, once it is ready."""
    assert process.stdout is not None
    ready = process.stdout.readline()
    found = re.fullmatch(r"2 plans ready, port (\d+)\n", ready)
    if not found:
        process.kill()
        raise AssertionError(ready + process.communicate()[1])
    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/healthz", timeout=60) as answer:
        assert answer.status == 200
        return json.load(answer)


@pytest.fixture
def serving() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate(timeout=60)


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_entry_point_loads_every_plan(
    serve_stage: tuple[Stage, dict[str, list[str]]], serving: list[subprocess.Popen[str]]
) -> None:
    stage, kept = serve_stage
    assert kept["CMD"] == ["--target", "h200"]
    command = [*kept["ENTRYPOINT"], "--target", "cpu", "--port", "0"]
    pin = StoreReader(stage.inside(STORE)).root_digest()
    serving.append(start(container(serve_stage, command, CUDNN_AOT_PIN=pin)))
    assert answered(serving[0])["plans"] == 2


@pytest.mark.parametrize("fault", ["none", "a byte", "another pin"])
def test_the_health_check_reads_every_byte(
    serve_stage: tuple[Stage, dict[str, list[str]]], tmp_path: Path, fault: str
) -> None:
    stage, kept = serve_stage
    store = tmp_path / "store"
    shutil.copytree(stage.inside(STORE), store, copy_function=shutil.copy2)
    pin = StoreReader(store).root_digest()
    if fault == "a byte":
        blob = max((store / "blobs").rglob("?" * 64), key=lambda path: path.stat().st_size)
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        blob.chmod(0o644)
        blob.write_bytes(data)
    (user,) = kept["USER"]
    env = {**stage.env, "CUDNN_AOT_PIN": pin if fault != "another pin" else "0" * 64}
    command = stage.command(kept["HEALTHCHECK"], user=user, env=env, noexec={STORE: store})
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == (0 if fault == "none" else 1), done.stderr
    said = {
        "none": "every byte as recorded",
        "a byte": "its bytes hash to",
        "another pin": "root digest",
    }
    assert said[fault] in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_kubernetes_recipe(
    serve_stage: tuple[Stage, dict[str, list[str]]], serving: list[subprocess.Popen[str]]
) -> None:
    """Every pod mounts the store's image read-only and runs as nobody; the server's probes pass."""
    documents = list(yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Deployment", "DaemonSet"]
    for document in documents:
        pod = document["spec"]["template"]["spec"]
        selected = document["spec"]["selector"]["matchLabels"]
        assert selected == document["spec"]["template"]["metadata"]["labels"]
        assert "initContainers" not in pod
        (volume,) = pod["volumes"]
        assert volume["image"]["reference"] == "ghcr.io/team/model-store:v3"
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 54321
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            (mount,) = each["volumeMounts"]
            assert mount == {"name": volume["name"], "mountPath": "/plans", "readOnly": True}
    pod = documents[0]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    env = {item["name"]: item["value"] for item in server["env"]}
    # The image that `push` makes has the store at /cudnn-aot/store.
    assert env["CUDNN_AOT_STORE"] == "/plans/cudnn-aot/store"
    probe = container(serve_stage, server["startupProbe"]["exec"]["command"], **env)
    done = subprocess.run(probe, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert server["args"] == ["--target", "h200"]
    _, kept = serve_stage
    command = [*kept["ENTRYPOINT"], "--target", "cpu", "--port", "0"]
    serving.append(start(container(serve_stage, command, **env)))
    said = answered(serving[0])
    assert (said["store"], said["plans"]) == (env["CUDNN_AOT_STORE"], 2)
    stored = runtime.open(serve_stage[0].inside(STORE), target="cpu")
    assert said["closure"] == stored.closure_digest()


def test_the_ci_recipe(build_stage: Stage, context: Path) -> None:
    """Its steps, job after job: what is merged from the shards is what one build makes."""
    workflow = yaml.safe_load((RECIPES / "github-actions.yaml").read_text())
    jobs = workflow["jobs"]
    assert list(jobs) == ["build", "merge", "image"] and jobs["merge"]["needs"] == "build"
    env = {**build_stage.env, **workflow["env"], "TARGETS": "cpu"}
    shards = jobs["build"]["strategy"]["matrix"]["shard"]
    packs: list[Path] = []
    for shard in shards:
        folder = checkout(build_stage, context, f"/ci/build-{shard}")
        for step in jobs["build"]["steps"]:
            step = json.loads(json.dumps(step).replace("${{ matrix.shard }}", str(shard)))
            run_step(build_stage, step, folder, env)
            if "upload-artifact" in step.get("uses", ""):
                packs.append(build_stage.inside(f"{folder}/{step['with']['path']}"))
    folder = checkout(build_stage, context, "/ci/merge")
    for step in jobs["merge"]["steps"]:
        if "download-artifact" in step.get("uses", ""):
            for pack in packs:
                shutil.copy2(pack, build_stage.inside(folder))
        run_step(build_stage, step, folder, env)
    merged, whole = build_stage.inside(f"{folder}/store"), build_stage.inside(STORE)
    assert StoreReader(merged).root_digest() == StoreReader(whole).root_digest()
    assert build_stage.inside(f"{folder}/store.pack").is_file()


def checkout(stage: Stage, context: Path, folder: str) -> str:
    shutil.copytree(context, stage.inside(folder))
    return folder


def run_step(stage: Stage, step: Mapping[str, Any], folder: str, env: Mapping[str, str]) -> None:
    """A step of a job; GitHub's own actions are for checking out, keeping and handing on files."""
    if "run" in step:
        assert "${{" not in step["run"], step
        stage.run(["/bin/bash", "-e", "-c", step["run"]], env=env, cwd=folder)
    else:
        assert step["uses"].startswith("actions/"), step
