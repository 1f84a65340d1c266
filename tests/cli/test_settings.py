"""Settings: flag before environment before config file before default, and `doctor` says which."""

import base64
import json
import os
import re
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph

from cudnn_aot.cli.commands import COMMANDS, cudnn_aot_command
from cudnn_aot.cli.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def settings(*flags: str, cwd: Path, env: dict[str, str] | None = None) -> dict[str, tuple]:
    done = run_cli("doctor", *flags, "--json", cwd=cwd, env=env)
    return {s["name"]: (s["value"], s["chosen_by"]) for s in json.loads(done.stdout)["settings"]}


KEY = base64.b64encode(bytes(32)).decode()

# name: (value in the config file, its text, value of the variable)
GIVEN = {
    "target": ('["cpu", "h200"]', "cpu,h200", "h100"),
    "jobs": ("3", "3", "auto"),
    "engines": ('"native"', "native", "native,cudnn"),
    "allow-declined": ('["all"]', "all", "cpu"),
    "forbid-compile": ("true", "1", "no"),
    "executor": ('"ray"', "ray", "local"),
    "ray-address": ('"head:6379"', "head:6379", "auto"),
    "host": ('"x86_64-linux-gnu"', "x86_64-linux-gnu", "aarch64-linux-gnu"),
    "offline": ("true", "1", "no"),
    "trust": (f'"{KEY}"', KEY, f"{KEY}:{KEY}"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_each_setting_from_each_source(name: str, tmp_path: Path) -> None:
    in_file, text, in_environment = GIVEN[name]
    (row,) = (row for row in SETTINGS if row.name == name)
    assert settings(cwd=tmp_path)[name] == (row.default, "default")
    config = tmp_path / "cudnn-aot.toml"
    config.write_text(f"{name} = {in_file}\n")
    assert settings(cwd=tmp_path)[name] == (text, str(config))
    env = {row.variable: in_environment}
    assert settings(cwd=tmp_path, env=env)[name] == (in_environment, row.variable)
    assert settings(cwd=tmp_path, env={row.variable: ""})[name] == (text, str(config))


def test_the_store_from_each_source(tmp_path: Path) -> None:
    """Paths in the config file start at its folder, not at the working folder."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "cudnn-aot.toml").write_text('store = "stores/mine"\n')
    env = {"CUDNN_AOT_STORE": "elsewhere"}
    flag = ("--store", "given")
    assert settings(*flag, cwd=inner, env=env)["store"] == ("given", "--store")
    assert settings(cwd=inner, env=env)["store"] == ("elsewhere", "CUDNN_AOT_STORE")
    found = settings(cwd=inner)["store"]
    assert found == (str(tmp_path / "stores/mine"), str(tmp_path / "cudnn-aot.toml"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"one"', "{0}/one"),
        ('"one:/two"', "{0}/one:/two"),
        ('["one", "https://host:80/x"]', "{0}/one:https://host:80/x"),
        ('"s3://bucket/x:../pack"', "s3://bucket/x:{0}/../pack"),
    ],
)
def test_layers_and_urls_in_the_config_file(value: str, text: str, tmp_path: Path) -> None:
    """Relative paths start at its folder; URLs stay what they are."""
    (tmp_path / "cudnn-aot.toml").write_text(f"store = {value}")
    (tmp_path / "in").mkdir()
    done = run_cli("doctor", "--json", "--offline", cwd=tmp_path / "in")
    assert json.loads(done.stdout)["store"] == text.format(tmp_path), done.stderr


def test_keys_of_the_config_file_are_trusted(tmp_path: Path, built_store: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `trust` is not installed")
    assert run_cli("sign", "--new-key", tmp_path / "key").returncode == 0
    (tmp_path / "in").mkdir()
    (tmp_path / "cudnn-aot.toml").write_text(f'store = "{built_store}"\ntrust = "key.pub"')
    commands = {
        "why": (write_graph(tmp_path, linear_graph("up", 64)), "-t", "cpu"),
        "ls": (),
        "show": ("up",),
        "verify": (),
        "run": ("up",),
        "tune": ("up", "-o", "tuned.json"),
        "report": ("-o", "page.html"),
        "diff": (built_store, built_store),
        "merge": (built_store, "-o", "merged"),
        "pack": ("-o", "pack"),
        "push": (f"file://{tmp_path}/far",),
    }
    (trust,) = (row for row in SETTINGS if row.name == "trust")
    assert {*commands, "pull"} == set(trust.verbs)  # `pull` is tried where it pulls
    for verb, arguments in [*commands.items(), ("ls", ("--stats",)), ("ls", ("--builds",))]:
        done = run_cli(verb, *arguments, cwd=tmp_path / "in")
        assert_one_line_error(done, 1, "is not trusted", "has not signed it")
    assert list((tmp_path / "in").iterdir()) == []


def test_which_config_file_is_read(tmp_path: Path) -> None:
    """The named one; the nearest, ours before pyproject.toml; the user's. One, never two."""
    own = tmp_path / "xdg" / "cudnn-aot" / "config.toml"
    project, inner = tmp_path / "project", tmp_path / "project" / "inner"
    named = tmp_path / "named.toml"
    for path in (own, inner / "x"):
        path.parent.mkdir(parents=True)

    def chosen(**env: str) -> str:
        return settings(cwd=inner, env={"XDG_CONFIG_HOME": str(tmp_path / "xdg"), **env})["jobs"][0]

    assert chosen() == "auto"
    own.write_text("jobs = 1")
    assert chosen() == "1"
    (project / "pyproject.toml").write_text('[project]\nname = "cudnn-aot-user"\n')
    assert chosen() == "1"
    (project / "pyproject.toml").write_text("[tool.cudnn-aot]\njobs = 2\n")
    assert chosen() == "2"
    (project / "cudnn-aot.toml").write_text("")
    assert chosen() == "auto"
    (inner / "pyproject.toml").write_text('[tool."cudnn-aot"]\njobs = 4\n')
    assert chosen() == "4"
    named.write_text("jobs = 5")
    assert chosen(CUDNN_AOT_CONFIG=str(named)) == "5"
    assert chosen(CUDNN_AOT_CONFIG=os.devnull) == "auto"


@pytest.mark.parametrize(
    "content",
    ["[project\ndependencies = ['cudnn-aot']\n[tool.other]\n", "[tool.x]\ncudnn-aot = [\n"],
)
def test_a_broken_file_of_another_tool_is_passed_over(content: str, tmp_path: Path) -> None:
    (tmp_path / "cudnn-aot.toml").write_text("jobs = 3")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text(content)
    assert settings(cwd=inner)["jobs"] == ("3", str(tmp_path / "cudnn-aot.toml"))
    (inner / "pyproject.toml").write_text(content + "[tool.cudnn-aot]\njobs = 4\n")
    assert_one_line_error(run_cli("doctor", cwd=inner), 2, "inner/pyproject.toml' is not TOML")


# content of the file: what the one line says beside the file's name
WRONG = {
    'stroe = "x"': ("unknown key 'stroe'", "did you mean 'store'?", "known: store, target"),
    "allow_declined = 'x'": ("did you mean 'allow-declined'?",),
    "jobs = 1.5": ("jobs is 1.5, want a number, or a string",),
    "store = ''": ("store is '', want a string",),
    "store = 'a::b'": ("store is 'a::b', want a string, paths or URLs",),
    "trust = []": ("trust is [], want a string, paths of PEM files",),
    "forbid-compile = 'yes'": ("forbid-compile is 'yes', want true or false",),
    "target = [1]": ("target is [1], want a string, or a list of strings",),
    "store = [": ("is not TOML",),
    "\xff": ("is not TOML",),
}


@pytest.mark.parametrize("content", WRONG)
def test_a_wrong_config_file_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "cudnn-aot.toml").write_bytes(content.encode("latin-1"))
    for command in ("ls", "doctor"):
        done = run_cli(command, cwd=tmp_path)
        assert_one_line_error(done, 2, str(tmp_path / "cudnn-aot.toml"), *WRONG[content])


def test_a_config_file_that_cannot_be_read(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.toml")
    assert_one_line_error(
        run_cli("ls", env={"CUDNN_AOT_CONFIG": absent}), 2, absent, "no such file"
    )
    os.mkfifo(tmp_path / "fifo")
    env = {"CUDNN_AOT_CONFIG": str(tmp_path / "fifo")}
    assert_one_line_error(run_cli("ls", env=env), 2, "fifo", "not a regular file")


def test_commands_do_what_the_config_file_says(tmp_path: Path, built_store: Path) -> None:
    """The store, the target, what is forbidden: without one flag."""
    write_graph(tmp_path, linear_graph("up", 64))
    write_graph(tmp_path, linear_graph("new", 24, op="tanh"))
    config = tmp_path / "cudnn-aot.toml"
    config.write_text(f'store = "{built_store}"\ntarget = "cpu"\njobs = 1\nforbid-compile = true\n')
    done = run_cli("build", "up.json", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["graphs"][0]["status"] == "cached"
    assert document["store"] == str(built_store)
    done = run_cli("build", "new.json", "--store", "other", cwd=tmp_path)
    assert_one_line_error(done, 1, "CUDNN_AOT_FORBID_COMPILE")
    assert "up" in run_cli("why", "up.json", cwd=tmp_path).stdout
    config.write_text('jobs = "many"\ntarget = "cpu"\n')
    done = run_cli("build", "up.json", cwd=tmp_path)
    assert_one_line_error(done, 2, "cudnn-aot.toml: jobs: got 'many'")


def test_every_flag_is_an_option_of_the_commands_that_read_it() -> None:
    """And no command has the store's flag without being listed."""
    context = cudnn_aot_command.make_context("cudnn-aot", [])
    options = {}
    for name in COMMANDS:
        command = cudnn_aot_command.get_command(context, name)
        assert command is not None
        options[name] = {opt for parameter in command.params for opt in parameter.opts}
    for row in SETTINGS:
        assert set(row.verbs) <= set(COMMANDS)
        if row.flag:
            verbs = WITH_FLAG.get(row.name, row.verbs)
            assert set(verbs) <= set(row.verbs)
            assert all(row.flag in options[verb] for verb in verbs), row.name
        if row.name in ("store", "offline"):
            assert {verb for verb in COMMANDS if row.flag in options[verb]} == set(row.verbs)
    (store,) = (row for row in SETTINGS if row.name == "store")
    assert {name for name in COMMANDS if {"--store", "store"} & options[name]} == set(store.verbs)


WITH_FLAG = {"trust": ("verify", "pull")}  # what else trusts takes it from elsewhere


INTERNAL = {"CUDNN_AOT_RECORD_SPOOL"}  # of the recorder, to the processes that it starts


def test_every_variable_of_the_sources_is_a_setting() -> None:
    sources = [
        path
        for folder in ("compiler", "cache", "runtime", "cli", "recipes", "native/src")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".h")
    ]
    pattern = re.compile(r'"(CUDNN_AOT_[A-Z_]+)"')
    read = {name for path in sources for name in pattern.findall(path.read_text("utf-8"))}
    assert "CUDNN_AOT_TVM_FFI" in read
    assert read - INTERNAL <= {row.variable for row in SETTINGS}


def test_the_page_has_the_table_of_settings() -> None:
    """docs/cli.md lists exactly the settings, in order, as the table says them."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]

    def code(text: str) -> str:
        return f"`{text}`" if text else "-"

    want = [
        f"| {row.name} | {code(row.flag)} | {code(row.variable)} | {code(row.key)} | "
        f"{code(row.default)} | {row.meaning} | {', '.join(row.verbs) or '-'} |"
        for row in SETTINGS
    ]
    assert rows == want
