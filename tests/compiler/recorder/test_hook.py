"""The hooks in real child processes: everything is recorded, and the program does not notice."""

import ast
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import counts, environment, rows_of, run_program

from cudnn_aot.compiler.recorder import hook
from cudnn_aot.compiler.recorder.launch import INJECT
from cudnn_aot.compiler.recorder.spool import read_spool

HOOK = INJECT.parent / "hook.py"


def test_a_graph_is_recorded_and_the_program_sees_no_difference(run, spool) -> None:
    script = """
    import inspect, sys
    import cudnn
    from cudnn import mm
    g = mm(16)
    print(g.validate(), g.execute({}), g.execute({}, None), g.create_execution_plans())
    print(inspect.signature(cudnn.pygraph.execute), cudnn.pygraph.validate.__doc__)
    print(cudnn.__spec__.loader, cudnn.__loader__, sys.path, sorted(vars(cudnn)))
    try:
        mm(2).execute("fail")
    except RuntimeError as error:
        print(error)
    try:
        cudnn.pygraph().validate()
    except ValueError as error:
        print(error)
    """
    plain = run(script, recording=False)
    recorded = run(script)
    address = "0x"
    assert recorded.stdout.split(address)[0] == plain.stdout.split(address)[0]
    assert recorded.stdout.splitlines()[-2:] == plain.stdout.splitlines()[-2:]
    assert "sitecustomize" not in recorded.stdout
    assert plain.stderr == recorded.stderr == ""
    assert counts(spool) == {16: (1, 2)}


def test_sys_path_is_what_it_would_be(run) -> None:
    script = "import sys; print(sys.path)"
    assert run(script).stdout == run(script, recording=False).stdout


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_children_are_recorded(run, spool, method: str) -> None:
    script = f"""
    import multiprocessing
    from cudnn import mm
    def work(m):
        g = mm(m)
        g.build()
        for _ in range(m):
            g.execute({{}})
    if __name__ == "__main__":
        work(5)
        context = multiprocessing.get_context({method!r})
        children = [context.Process(target=work, args=(m,)) for m in (7, 9, 9)]
        [child.start() for child in children]
        [child.join() for child in children]
        print([child.exitcode for child in children])
    """
    done = run(script)
    assert done.stdout == "[0, 0, 0]\n", done.stderr
    assert counts(spool) == {5: (1, 5), 7: (1, 7), 9: (2, 18)}


def test_programs_that_start_programs_are_recorded(run, spool) -> None:
    script = """
    import os, subprocess, sys
    code = "from cudnn import mm; mm({}).build()"
    subprocess.run([sys.executable, "-c", code.format(3)], check=True)
    os.system(f'{sys.executable} -c "{code.format(4)}"')
    os.execv(sys.executable, [sys.executable, "-c", code.format(6)])
    """
    assert run(script).returncode == 0
    assert counts(spool) == {3: (1, 0), 4: (1, 0), 6: (1, 0)}


def test_a_forked_child_executes_the_graph_of_its_parent(run, spool) -> None:
    script = """
    import os
    from cudnn import mm
    g = mm(8)
    g.build()
    g.execute({})
    if os.fork() == 0:
        for _ in range(10):
            g.execute({})
        os._exit(0)
    os.wait()
    g.execute({})
    """
    assert run(script).returncode == 0
    assert counts(spool) == {8: (1, 12)}
    assert len(read_spool(spool).pids) == 2


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os._exit(5)", 5),
        ("sys.exit(6)", 6),
        ("raise KeyError('mine')", 1),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
        ("ctypes.string_at(0)", -signal.SIGSEGV),
    ],
)
def test_what_was_recorded_outlives_every_ending(run, spool, ending: str, code: int) -> None:
    script = f"""
    import ctypes, os, sys
    from cudnn import mm
    for m in range(1, 30):
        g = mm(m)
        g.validate()
        for _ in range(m):
            g.execute({{}}, None, None, [1], [[1, m, 64]], [[64 * m, 64, 1]])
            g.execute({{}})
    {ending}
    """
    done = run(script)
    assert done.returncode == code
    assert counts(spool) == {m: (1, 2 * m) for m in range(1, 30)}
    assert ("KeyError: 'mine'" in done.stderr) == ("KeyError" in ending)


def test_a_kill_in_the_middle_loses_nothing_before_it(run, spool, tmp_path: Path) -> None:
    """The child is killed from outside at no particular place; it tells how far it was."""
    script = """
    import os, signal, subprocess, sys, time
    code = '''
    import sys
    from cudnn import mm
    for m in range(1, 100000):
        g = mm(m)
        g.build()
        g.execute({})
        print(m, flush=True)
    '''
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    time.sleep(0.2)
    child.kill()
    print(child.communicate()[0].split()[-1])
    """
    done = run(script)
    reached = int(done.stdout)
    found = read_spool(spool)
    assert found.failed == found.dropped == 0 and found.damaged <= 1
    recorded = {rows_of(graph): graph for graph in found.graphs}
    assert set(range(1, reached + 1)) <= recorded.keys() <= set(range(1, reached + 3))
    assert all(recorded[m].executions == 1 for m in range(1, reached + 1))


def test_threads_count_exactly(run, spool) -> None:
    script = """
    import sys, threading
    from cudnn import mm
    sys.setswitchinterval(1e-6)
    shared = mm(1000)
    shared.build()
    def work(thread):
        for m in range(1, 21):
            g = mm(m)
            g.build()
            for _ in range(50):
                shared.execute({})
                g.execute({}, override_uids=[1], override_shapes=[[1, 2, 64]],
                          override_strides=[[128, 64, 1]])
    threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    """
    done = run(script)
    assert done.returncode == 0, done.stderr
    expected = {m: (8, 400) for m in range(1, 21)} | {1000: (1, 8000)}
    assert counts(spool) == expected


def test_override_shapes_are_recorded_by_call(run, spool) -> None:
    script = """
    from cudnn import mm
    g = mm(8192)
    g.build()
    for m in (1, 1, 300):
        g.execute({}, None, None, [1, 3], [[1, m, 64], [1, m, 32]], [[64*m, 64, 1], [32*m, 32, 1]])
    g.execute({}, override_uids=None)
    """
    assert run(script).returncode == 0
    (graph,) = read_spool(spool).graphs
    found = {(call.uids, call.shapes[0][1]): count for call, count in graph.calls.items()}
    assert found == {((1, 3), 1): 2, ((1, 3), 300): 1}
    assert graph.executed == 1


def test_a_graph_that_changes_before_planning_is_one_graph(run, spool) -> None:
    script = """
    from cudnn import mm
    g = mm(4)
    g.validate()
    g._tensor_by_uid[1].dim[1] = 5
    g.build()
    """
    assert run(script).returncode == 0
    assert counts(spool) == {5: (1, 0)}


def test_a_graph_is_not_kept_alive(run) -> None:
    script = """
    import weakref
    from cudnn import mm
    g = mm(4)
    g.build()
    g.execute({})
    gone = weakref.ref(g)
    del g
    print(gone())
    """
    assert run(script).stdout == "None\n"


def test_the_sitecustomize_of_the_installation_still_runs(run, spool, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(
        "import sys, builtins\nfrom cudnn import mm\nmm(3).build()\nbuiltins.SEEN = __file__\n"
    )
    script = """
    import sys, sitecustomize
    from cudnn import mm
    mm(4).build()
    print(SEEN == sitecustomize.__file__, sitecustomize.__spec__.name)
    """
    plain = run(script, recording=False, first=str(theirs))
    done = run(script, first=str(theirs))
    assert done.stdout == plain.stdout == "True sitecustomize\n"
    assert done.stderr == plain.stderr == ""
    assert counts(spool) == {3: (1, 0), 4: (1, 0)}


def test_a_broken_sitecustomize_is_reported_as_ever(run, spool, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    script = "from cudnn import mm; mm(4).build()"
    plain = run(script, recording=False, first=str(theirs))
    done = run(script, first=str(theirs))
    assert done.stderr == plain.stderr != ""
    assert counts(spool) == {4: (1, 0)}


def test_a_usercustomize_and_an_absent_module_are_as_ever(run, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "usercustomize.py").write_text("print('user')\n")
    script = """
    import importlib.util
    try:
        import cudnn.nothing
    except ModuleNotFoundError as error:
        print(error)
    print(importlib.util.find_spec("cudnn").name)
    """
    plain = run(script, recording=False, first=str(theirs))
    assert run(script, first=str(theirs)).stdout == plain.stdout


@pytest.mark.parametrize("damage", ["removed", "read-only", "a file"])
def test_a_spool_that_cannot_be_written_costs_nothing(
    run, spool: Path, damage: str, tmp_path: Path
) -> None:
    script = """
    from cudnn import mm
    g = mm(4)
    g.build()
    print(g.execute({}))
    """
    if damage == "read-only":
        spool.chmod(0o500)
    else:
        spool.rmdir()
        if damage == "a file":
            spool.write_text("")
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "executed\n", "")


def test_a_full_disk_costs_nothing(run, spool: Path) -> None:
    """A file size limit stands for a full disk: writes fail, and so does taking space."""
    script = """
    import resource, signal
    from cudnn import mm
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    mm(1).build()
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
    for m in range(2, 40):
        g = mm(m)
        g.build()
        g.execute({})
    print("done")
    """
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    found = read_spool(spool)
    assert 1 in {rows_of(graph) for graph in found.graphs}
    assert found.failed + found.dropped > 0


def test_values_that_no_file_can_hold_are_named(run, spool) -> None:
    script = """
    import sys, types
    from cudnn import mm
    torch = types.ModuleType("torch")
    class dtype:
        def __str__(self): return "torch.bfloat16"
    dtype.__module__ = "torch"
    class Scalar:
        shape = ()
        def item(self): return 0.5
    g = mm(4, score_mod=lambda graph, score: score, scale=Scalar(), pad=(1, [2, None]),
           slices=[slice(None), slice(-3, 7, 2)])
    g._tensor_by_uid[1].data_type = dtype()
    g.validate()
    """
    done = run(script)
    assert done.returncode == 0, done.stderr
    (graph,) = read_spool(spool).graphs
    params = graph.document["nodes"][0]["params"]
    assert params["score_mod"] == {"$opaque": "builtins.function"}
    assert params["scale"] == 0.5
    assert params["pad"] == {"$tuple": [1, [2, None]]}
    assert params["slices"] == [{"$slice": [None, None, None]}, {"$slice": [-3, 7, 2]}]
    assert graph.document["tensors"][0]["data_type"]["name"] == "BFLOAT16"


def test_a_failure_of_the_recorder_is_counted_and_not_raised(run, spool) -> None:
    script = """
    from cudnn import mm
    class Broken:
        def __getattribute__(self, name): raise OSError(name)
    for _ in range(3):
        g = mm(4)
        g._tensor_by_uid[1].dim = Broken()
        g.validate()
        print(g.execute({}))
    mm(5).build()
    """
    done = run(script)
    assert (done.stdout, done.stderr) == ("executed\n" * 3, "")
    found = read_spool(spool)
    assert found.failed == 6
    assert any(text.startswith("validate: ") for text in found.failures)
    assert [rows_of(graph) for graph in found.graphs] == [5]


def test_what_stops_the_program_is_not_swallowed(run) -> None:
    """Ctrl-C while a graph is being recorded is the program's."""
    script = """
    from cudnn import mm
    class Interrupt:
        def __iter__(self): raise KeyboardInterrupt
    g = mm(4)
    g._tensor_by_uid[1].dim = Interrupt()
    try:
        g.validate()
    except KeyboardInterrupt:
        print("interrupted")
    """
    assert run(script).stdout == "interrupted\n"


def test_a_program_that_closes_every_descriptor_is_still_recorded(run, spool) -> None:
    script = """
    import os
    from cudnn import mm
    mm(3).build()
    os.closerange(3, 256)
    with open("own.txt", "w") as own:
        own.write("mine")
        g = mm(4)
        g.build()
        for _ in range(3):
            g.execute({})
    print(open("own.txt").read())
    """
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")
    assert counts(spool) == {3: (1, 0), 4: (1, 3)}


def test_a_class_of_the_c_half_is_recorded_as_it_prints_itself(tmp_path: Path, spool: Path) -> None:
    """Releases before the Python graph: no attributes, no weak references, JSON as repr."""
    package = tmp_path / "old" / "cudnn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import json\n"
        "class pygraph:\n"
        "    __slots__ = ('m',)\n"
        "    def __init__(self, m): self.m = m\n"
        "    def build(self, modes): pass\n"
        "    def execute(self, pack, workspace): return self.m\n"
        "    def __repr__(self):\n"
        "        row = {'uid': 1, 'dim': [1, self.m, 8], 'stride': [8 * self.m, 8, 1]}\n"
        "        return json.dumps({'json_version': '1.0', 'gid': id(self),\n"
        "                           'nodes': [{'tag': 'MATMUL'}], 'tensors': {'1': row}})\n"
    )
    script = """
    import cudnn
    for m in (2, 3, 3):
        g = cudnn.pygraph(m)
        g.build(0)
        assert g.execute({}, 0) == m
    """
    done = run_program(script, tmp_path, environment(spool, tmp_path / "old"))
    assert done.returncode == 0, done.stderr
    found = read_spool(spool)
    assert [(graph.form, graph.executions) for graph in found.graphs] == [
        ("lowered", 1),
        ("lowered", 2),
    ]
    assert found.graphs[0].document["tensors"]["1"]["stride"] == [16, 8, 1]


def test_another_module_named_cudnn_is_left_alone(tmp_path: Path, spool: Path) -> None:
    (tmp_path / "cudnn.py").write_text("answer = 42\n")
    done = run_program(
        "import cudnn; print(cudnn.answer, cudnn.__loader__.__class__.__name__)",
        tmp_path,
        environment(spool),
    )
    assert (done.stdout, done.stderr) == ("42 SourceFileLoader\n", "")
    assert read_spool(spool).graphs == []


def test_a_reloaded_module_records_once(run, spool) -> None:
    script = """
    import importlib, cudnn
    importlib.reload(cudnn)
    cudnn.mm(4).build()
    """
    assert run(script).returncode == 0
    assert counts(spool) == {4: (1, 0)}


def test_a_program_without_graphs_leaves_no_file(run, spool) -> None:
    assert run("print(1)").stdout == "1\n"
    assert list(spool.iterdir()) == []


def test_records_beyond_the_limit_are_counted(monkeypatch, spool: Path, fake_frontend) -> None:
    monkeypatch.syspath_prepend(str(fake_frontend))
    monkeypatch.setattr(hook, "MAX_BYTES", 5000)
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    recorder = hook.Recorder(str(spool))
    hook.install(recorder)
    try:
        import cudnn

        for m in range(1, 100):
            cudnn.mm(m).validate()
    finally:
        hook.uninstall(recorder)
        sys.modules.pop("cudnn")
    found = read_spool(spool)
    assert 1 <= len(found.graphs) < 99
    assert found.dropped == 99 - len(found.graphs)


def test_installing_and_uninstalling_restores_the_class(
    monkeypatch, tmp_path: Path, fake_frontend
) -> None:
    monkeypatch.syspath_prepend(str(fake_frontend))
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    import cudnn

    original = dict(vars(cudnn.pygraph))
    first, second = (hook.Recorder(str(tmp_path / name)) for name in ("a", "b"))
    for recorder in (first, second):
        Path(recorder.spool).mkdir()
        hook.install(recorder)
    cudnn.mm(4).validate()
    hook.uninstall(first)
    cudnn.mm(5).validate()
    hook.uninstall(second)
    cudnn.mm(6).validate()
    assert dict(vars(cudnn.pygraph)) == original
    assert hook._finder not in sys.meta_path
    rows = [sorted(map(rows_of, read_spool(Path(r.spool)).graphs)) for r in (first, second)]
    assert rows == [[4], [4, 5]]
    sys.modules.pop("cudnn")


def test_torn_and_foreign_lines_cost_only_themselves(run, spool: Path) -> None:
    assert run("from cudnn import mm\nfor m in (1, 2, 3): mm(m).build()").returncode == 0
    (path,) = spool.glob("*.jsonl")
    lines = path.read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines if line]
    assert [name for record in records for name in ("process", "module") if name in record] == [
        "process",
        "module",
    ]
    torn = [*lines[:-2], lines[-2][: len(lines[-2]) // 2]]
    path.write_bytes(b"\n".join([*torn, b"\xff\xfe", b"[1]", b'{"instance": 9, "numbers": []}']))
    found = read_spool(spool)
    assert sorted(map(rows_of, found.graphs)) == [1, 2]
    assert found.damaged == 4
    path.with_suffix(".counts").unlink()
    assert sorted(map(rows_of, read_spool(spool).graphs)) == [1, 2]


@pytest.mark.parametrize("path", [HOOK, INJECT / "sitecustomize.py"], ids=lambda path: path.name)
def test_what_is_injected_needs_the_standard_library_and_an_old_python(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    assert names <= sys.stdlib_module_names


def test_an_interpreter_too_old_to_record_notices_nothing(tmp_path: Path, spool: Path) -> None:
    """It still runs the installation's own sitecustomize."""
    old = [shutil.which(f"python{version}") for version in ("2.7", "3.6", "3.7")]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("SEEN = __file__\n")
    script = "import sys, sitecustomize as s; sys.stdout.write(str('theirs' in s.SEEN))"
    works = 0
    for python in filter(None, old):
        plain = subprocess.run([python, "-c", "pass"], capture_output=True)
        if plain.returncode or plain.stderr:  # a name without an interpreter behind it
            continue
        works += 1
        for paths, code, wanted in (([], "pass", ""), ([theirs], script, "True")):
            env = environment(spool, *paths)
            done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (0, wanted, ""), python
    assert list(spool.iterdir()) == []
    if not works:
        pytest.skip("no old interpreter is installed")


def test_the_injected_file_has_no_syntax_that_python_2_lacks() -> None:
    tree = ast.parse((INJECT / "sitecustomize.py").read_text())
    new = (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.AsyncFunctionDef, ast.Nonlocal)
    for node in ast.walk(tree):
        assert not isinstance(node, new), ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            assert node.returns is None and not arguments.kwonlyargs and not arguments.posonlyargs
            assert all(argument.annotation is None for argument in arguments.args)
        if isinstance(node, ast.Raise):
            assert node.cause is None
