"""Tiles cover their rows, and shares of tiles cover all tiles once."""

import itertools

import pytest

from kernels.row_tiles import (
    MAX_WARPS,
    SUMMING_PROGRAMS,
    divide_tiles,
    next_power_of_two,
    tile_columns,
    tile_rows,
)


@pytest.mark.parametrize(
    ("number", "power"), [(1, 1), (2, 2), (3, 4), (96, 128), (128, 128), (7168, 8192)]
)
def test_the_next_power_of_two_is_not_below(number, power):
    assert next_power_of_two(number) == power


@pytest.mark.parametrize("num_tiles", [1, 2, 511, 512, 513, 1000, 100_000])
@pytest.mark.parametrize("num_columns", [1, 3, 288, 5000])
def test_shares_cover_every_tile_and_no_program_is_idle(num_tiles, num_columns):
    programs, share = divide_tiles(num_tiles, num_columns)
    assert programs * share >= num_tiles
    assert (programs - 1) * share < num_tiles
    allowed = max(1, SUMMING_PROGRAMS // num_columns)
    assert programs <= allowed
    assert (share - 1) * allowed < num_tiles, "a smaller share would do"


@pytest.mark.parametrize("width", [1, 24, 128, 7168, 16384])
def test_a_tile_of_rows_holds_whole_rows(width):
    tile = tile_rows(width, 4096, 16)
    assert tile.columns >= width
    assert tile.rows * tile.columns >= 4096
    assert 1 <= tile.num_warps <= MAX_WARPS


def test_a_tile_of_columns_is_no_wider_than_asked():
    for width, elements in itertools.product((1, 96, 5000), (1, 1024, 4096)):
        tile = tile_columns(width, elements, 1024, 4)
        assert tile.columns <= 1024
        assert tile.rows * tile.columns >= min(elements, tile.columns)
