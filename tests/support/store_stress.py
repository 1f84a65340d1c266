"""Processes that build, read and prune one store at once, each by a seeded schedule.

Run as a script, ``store_stress.py STORE SOURCE SEED COUNT``, it is one of them and prints what it
did as JSON. `run` starts several and checks the store in the end. Plans are those of `many_plans`:
real ones for the CPU, here of few kernels that plans share, of which a reader loads what it asks
for. Any exception but "not in the store" ends the process with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from many_plans import put_kernel

from cudnn_aot import runtime
from cudnn_aot.cache.canonical import canonical_bytes, sha256_hex
from cudnn_aot.cache.inventory import measure, total
from cudnn_aot.cache.prune import Criteria, prune
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import NotInStoreError, StoreError

GRAPHS, KERNELS, CLASSES = 48, 16, 12
TARGET = "cpu"


def key_of(number: int) -> str:
    return hashlib.sha256(b"stress %d" % number).hexdigest()


class Plans:
    """What graph ``number`` needs, from one plan of a store."""

    def __init__(self, source: Path) -> None:
        reader = StoreReader(source)
        target, name = reader.names()[0]
        self.uids = reader.name(target, name)["uids"]
        pointer = reader.pointer(target, reader.name(target, name)["graph_key"])
        self.graph = reader.blob(pointer["graph"])
        self.record = json.loads(reader.blob(pointer["records"][0]))
        self.library = reader.blob(self.record["kernels"][0]["blob"])

    def put(self, writer: StoreWriter, number: int) -> None:
        key = key_of(number)
        library = self.library + (number % KERNELS).to_bytes(8, "little")
        kernel = put_kernel(writer, self.record["kernels"][0], library)
        record = writer.put_blob(
            canonical_bytes({**self.record, "graph_key": key, "kernels": [kernel]})
        )
        graph = writer.put_blob(self.graph)
        fields = {"status": "built", "records": [record], "graph": graph, "reasons": []}
        writer.put_pointer(TARGET, key, fields)
        bucket = sha256_hex(b"class %d" % (number % CLASSES))
        writer.put_class_member(TARGET, bucket, key)
        writer.put_name(TARGET, f"plan_{number}", key, self.uids)


def work(path: Path, source: Path, seed: int, count: int) -> Counter[str]:
    os.fsync = lambda descriptor: None  # nobody needs any of it after a crash
    chance, plans = random.Random(seed), Plans(source)
    did, pruned = Counter[str](), Counter[str]()
    kept: tuple[runtime.Plan, str] | None = None  # that was given some steps ago
    while did.total() < count:
        what = chance.random()
        if kept is not None:
            runtime.open(path).plan(kept[1], target=TARGET)
            did["loads"] += 1
        if what < 0.3:
            with StoreWriter(path) as writer:
                for number in chance.sample(range(GRAPHS), chance.randint(1, 6)):
                    plans.put(writer, number)
                    did["puts"] += 1
        elif what < 0.94:
            store = runtime.open(path)
            for number in chance.choices(range(GRAPHS), k=chance.randint(1, 6)):
                name = f"plan_{number}"
                try:
                    plan = store.plan(name, target=TARGET)
                except NotInStoreError:
                    did["misses"] += 1
                    continue
                assert plan.graph_key == key_of(number)
                did["loads"] += 1
                if chance.random() < 0.1:
                    kept = plan, name
        else:
            size = total(measure(path).values()).disk_bytes
            criteria = chance.choice(
                [
                    Criteria(max_disk_bytes=int(size * chance.random())),
                    Criteria(older_than_s=chance.random()),
                    Criteria(unreferenced=True),
                    Criteria(targets=(TARGET,)),
                ]
            )
            try:
                went = prune(path, criteria, wait_s=0.2)
            except StoreError as error:
                if "yet" not in str(error):
                    raise
                did["prunes that gave way"] += 1
            else:
                assert not went.failures, went.failures
                did["prunes"] += 1
                pruned["graphs pruned"] += len(went.graphs)
                pruned["graphs held"] += len(went.held)
    return did + pruned


def run(path: Path, source: Path, seed: int, processes: int, operations: int) -> Counter[str]:
    """What they did, all of them; the store was whole at the end, and held nothing over."""
    with StoreWriter(path) as writer:
        Plans(source).put(writer, 0)
    command = [sys.executable, __file__, str(path), str(source)]
    started = [
        subprocess.Popen(
            [*command, str(seed + number), str(operations // processes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    did = Counter[str]()
    for process in started:
        out, err = process.communicate()
        assert process.returncode == 0, err
        did.update(json.loads(out))
    assert StoreReader(path).verify() == []
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return did


def main() -> None:
    path, source, *numbers = sys.argv[1:]
    seed, count = map(int, numbers)
    did: dict[str, Any] = dict(work(Path(path), Path(source), seed, count))
    print(json.dumps(did))


if __name__ == "__main__":
    main()
