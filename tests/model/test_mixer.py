"""Packing: padded rows and back."""

import torch

from model.mixer import PackedMixer


def test_pad_and_unpad_are_inverse_and_keep_sequences_apart():
    mixer = PackedMixer(torch.tensor([0, 3, 4, 9]))
    x = torch.arange(1.0, 19.0).view(9, 2)
    rows = mixer.pad(x)
    assert rows.shape == (3, 5, 2)
    assert torch.equal(rows[1, 0], x[3])
    assert not rows[0, 3:].any()
    assert not rows[1, 1:].any()
    assert torch.equal(mixer.unpad(rows), x)


def test_gradients_pass_through_packing():
    mixer = PackedMixer(torch.tensor([0, 3, 4]))
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer.unpad(mixer.pad(x) * 2), (x,))
