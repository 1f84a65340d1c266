"""Dividing a build: every graph once, kernels once where they can be, the parts make the whole."""

from pathlib import Path

import pytest
from cli_process import declined_graph, linear_graph, run_cli, tree_digest, write_graph

from cudnn_aot.cache.merge import merge
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.build.shards import Shard, parse_shard, partition
from cudnn_aot.errors import UsageError


@pytest.mark.parametrize(
    "text",
    ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1 /2", "١/٢", "1/10000", "1/2\n"],
)
def test_what_is_no_part_of_a_whole(text: str) -> None:
    with pytest.raises(UsageError, match="--shard: got .*, want i/N with 1 <= i <= N"):
        parse_shard(text)


def test_a_part_of_a_whole() -> None:
    assert parse_shard("2/8") == Shard(2, 8)
    assert parse_shard("9999/9999") == Shard(9999, 9999)


def compiled_by(graphs: dict[str, list[str]], parts: dict[str, int]) -> dict[int, set[str]]:
    kernels: dict[int, set[str]] = {}
    for graph, part in parts.items():
        kernels.setdefault(part, set()).update(graphs[graph])
    return kernels


def test_graphs_that_share_kernels_stay_together() -> None:
    graphs = {f"g{n}": [f"k{n // 3}", f"own{n}"] for n in range(12)}
    seconds = dict.fromkeys([f"k{n}" for n in range(4)] + [f"own{n}" for n in range(12)], 1.0)
    parts = partition(graphs, seconds, 2)
    assert sorted(parts) == sorted(graphs)
    one, two = (compiled_by(graphs, parts)[part] for part in (1, 2))
    assert not one & two
    assert len(one) == len(two) == 8
    again = partition({g: graphs[g][::-1] for g in reversed(graphs)}, seconds, 2)
    assert again == parts


def test_a_kernel_of_every_graph_is_no_reason_to_let_one_machine_do_all() -> None:
    graphs = {f"g{n}": ["shared", f"own{n}"] for n in range(8)}
    seconds = {"shared": 1.0} | {f"own{n}": 1.0 for n in range(8)}
    kernels = compiled_by(graphs, partition(graphs, seconds, 4))
    assert [len(kernels[part]) for part in (1, 2, 3, 4)] == [3, 3, 3, 3]


def test_long_kernels_are_divided_by_time() -> None:
    graphs = {"long": ["a"], "s1": ["b"], "s2": ["c"], "s3": ["d"]}
    parts = partition(graphs, {"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.0}, 2)
    assert parts["s1"] == parts["s2"] == parts["s3"] != parts["long"]


def test_graphs_without_kernels_and_more_machines_than_graphs() -> None:
    parts = partition({"a": [], "b": [], "c": []}, {}, 3)
    assert sorted(parts.values()) == [1, 2, 3]
    assert len(set(partition({"a": ["k"], "b": ["l"]}, {"k": 1.0, "l": 1.0}, 5).values())) == 2
    assert partition({}, {}, 2) == {}


@pytest.mark.slow
def test_the_parts_of_a_build_are_the_whole(tmp_path: Path) -> None:
    """Two stores of their own: whole alone, no kernel in both, together the undivided build."""
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    for n, op in ((40, "relu"), (48, "relu"), (56, "swish")):
        write_graph(graphs, linear_graph(f"g{n}", n, op=op))
    write_graph(graphs, declined_graph("odd"))
    whole, parts = tmp_path / "whole", [tmp_path / "one", tmp_path / "two"]
    built = ("build", graphs, "-t", "cpu", "--allow-declined", "cpu", "-j", "1", "-o")
    assert run_cli(*built, whole).returncode == 0
    for number, part in enumerate(parts, start=1):
        done = run_cli(*built, part, "--shard", f"{number}/2")
        assert done.returncode == 0, done.stderr
        assert StoreReader(part).verify() == []
        repeated = run_cli(*built, part, "--shard", f"{number}/2", "--executor", "local")
        assert "0 files written" in repeated.stdout, repeated.stdout
    one, two = map(StoreReader, parts)
    assert len(one.kernels()) == len(two.kernels()) == 1
    assert set(one.kernels()) | set(two.kernels()) == set(StoreReader(whole).kernels())
    assert not set(one.pointers()) & set(two.pointers())
    assert one.builds() == two.builds() == StoreReader(whole).builds()
    for order in (parts, parts[::-1]):
        together = tmp_path / f"of-{order[0].name}"
        done = merge([StoreReader(part) for part in order], together)
        assert (done.conflicts, done.failures, done.builds) == ([], [], 1)
        assert tree_digest(together) == tree_digest(whole)
