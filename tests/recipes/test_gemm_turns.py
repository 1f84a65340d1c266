"""Math warpgroups that end a tile one after the other: simulated over stages, named barrier and
multicast, in random orders. What ends in a hang or in a turn passed twice fails here, not on a GPU.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kernel_menu import params

from cudnn_aot.recipes.gemm.kernels import sm90_config

TILES, PATIENCE = 4, 3000


def configs() -> dict[int, sm90_config.Config]:
    """Of each number of stages that a tile of two warpgroups can have, one."""
    found = {}
    for tile in sm90_config.TILES[16]:
        if tile[0] == 128:
            config = sm90_config.Config.parse(params(tile))
            found[config.stages] = config
    return found


CONFIGS = configs()


@dataclass
class Blocks:
    """Blocks that load for each other: k tiles that each producer has issued, those that each math
    warpgroup has released, and who has arrived at each named barrier since it last opened.
    """

    count: int
    issued: list[int] = field(init=False)
    released: list[list[int]] = field(init=False)
    arrived: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.issued = [0] * self.count
        self.released = [[0, 0] for _ in range(self.count)]
        self.arrived = [[] for _ in range(self.count)]

    def arrive(self, block: int, group: int) -> None:
        waiting = self.arrived[block]
        assert group not in waiting, "a turn was passed twice before it was taken"
        waiting.append(group)
        if len(waiting) == 2:
            waiting.clear()


def producer(blocks: Blocks, block: int, stages: int, total: int) -> Iterator[bool]:
    """Steps, true where something was done: a k tile needs a stage that all have released."""
    for k in range(total):
        while min(map(min, blocks.released)) < k - stages + 1:
            yield False
        blocks.issued[block] += 1
        yield True


def warpgroup(
    blocks: Blocks, block: int, group: int, config: sm90_config.Config, k_tiles: int
) -> Iterator[bool]:
    """The main loop and the end of each tile: a stage is released when the next one is issued."""
    is_apart, done = config.are_apart(k_tiles), 0
    for _ in range(TILES):
        for k in range(k_tiles):
            if is_apart and group == 1 and k == k_tiles - config.last_k_tiles:
                blocks.arrive(block, group)
                while group in blocks.arrived[block]:
                    yield False
            while min(blocks.issued) <= done:
                yield False
            done += 1
            blocks.released[block][group] += k > 0
            yield True
        if is_apart and group == 0:
            blocks.arrive(block, group)
        yield True
        blocks.released[block][group] += 1
        yield True


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stages", CONFIGS)
def test_no_warpgroup_waits_for_ever_or_gets_two_turns_for_one(stages, count):
    config = CONFIGS[stages]
    assert config.last_k_tiles
    for k_tiles, seed in itertools.product(
        {1, 2, 3, stages - 1, stages, stages + 1, 2 * stages + 1}, range(20)
    ):
        order, blocks = random.Random(seed), Blocks(count)
        agents = [producer(blocks, b, stages, TILES * k_tiles) for b in range(count)]
        agents += [
            warpgroup(blocks, b, group, config, k_tiles) for b in range(count) for group in (0, 1)
        ]
        # Some are slow, so that others run ahead as far as they may.
        weights = [order.random() ** 3 + 0.01 for _ in agents]
        idle = 0
        while agents:
            at = order.choices(range(len(agents)), weights)[0]
            step = next(agents[at], None)
            if step is None:
                del agents[at], weights[at]
            idle = idle + 1 if step is False else 0
            assert idle < PATIENCE, f"{k_tiles} k tiles: nobody can go on"
        assert blocks.arrived == [[]] * count, f"{k_tiles} k tiles"
