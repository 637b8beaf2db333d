"""Weights of four bits unpack to what vLLM's own library for them says."""

import pytest
import torch

from model.mxfp4 import unpack


def test_every_number_and_scale_by_hand():
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, *[0] * 8]]).byte()
    scale = torch.tensor([[128]], dtype=torch.uint8)
    expected = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert unpack(packed, scale)[0, :16].tolist() == [2 * x for x in expected]
    assert not unpack(packed, scale)[0, 16:].any()


@pytest.mark.filterwarnings("ignore")
def test_it_equals_the_library_that_packs_published_checkpoints():
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (6, 48), generator=generator, dtype=torch.uint8)
    scale = torch.randint(100, 140, (6, 3), generator=generator, dtype=torch.uint8)
    numbers = unpack_fp4_from_uint8(packed, 6, 96, torch.float32)
    factors = decompress_mx_scale(scale).float().repeat_interleave(32, dim=1)
    assert torch.equal(unpack(packed, scale), numbers * factors)
