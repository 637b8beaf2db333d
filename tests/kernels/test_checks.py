"""What an op refuses, and in which words."""

import pytest
import torch

from kernels.checks import check_cu_seqlens, check_tensors


def check(*, T=None, **tensors):
    known = {} if T is None else {"T": T}
    return check_tensors("op", tensors, **known)


def test_sizes_of_all_letters_are_returned():
    tensors = {"q": (torch.zeros(3, 2), "T K"), "w": (None, "X"), "k": (torch.zeros(2, 5), "K V")}
    assert check(**tensors) == {"T": 3, "K": 2, "V": 5}


@pytest.mark.parametrize(
    ("tensor", "letters", "message"),
    [
        (torch.zeros(3), "T K", r"b has shape \[3\], expected \[T, K\] with T = 3, K = 2"),
        (torch.zeros(3, 4), "T K", r"b has shape \[3, 4\], expected \[T, K\] with T = 3, K = 2"),
        (torch.zeros(3, 2), "T K-1", r"b has shape \[3, 2\], expected \[T, K-1\]"),
        (torch.zeros(3, 0), "T V", r"b is empty, shape \[3, 0\]"),
        (torch.zeros(3, 2).double(), "T K", "b is torch.float64, a is torch.float32: convert one"),
        (torch.zeros(3, 2).bfloat16(), "T K", "b is torch.bfloat16, a is torch.float32"),
        (torch.zeros(3, 2).long(), "T K", "b is torch.int64, expected a floating-point dtype"),
        (torch.zeros(3, 2, device="meta"), "T K", "b is on meta, a is on cpu: move one"),
        (torch.zeros(2, 3).T, "T K", r"b has strides \[1, 3\]: its rows must be contiguous"),
        (torch.zeros(3, 4)[:, ::2], "T K", r"b has strides \[4, 2\]"),
    ],
)
def test_a_tensor_that_does_not_fit_the_first_is_refused(tensor, letters, message):
    with pytest.raises(ValueError, match=f"^op: {message}"):
        check(a=(torch.zeros(3, 2), "T K"), b=(tensor, letters))


def test_the_first_tensor_is_held_against_known_sizes():
    with pytest.raises(ValueError, match=r"^op: a has shape \[3\], expected \[T\] with T = 4"):
        check(a=(torch.zeros(3), "T"), T=4)


def test_one_less_than_a_letter_is_understood_in_any_order():
    assert check(a=(torch.zeros(3), "I-1"), b=(torch.zeros(4), "I")) == {"I": 4}
    with pytest.raises(ValueError, match=r"b has shape \[3\]"):
        check(a=(torch.zeros(3), "I-1"), b=(torch.zeros(3), "I"))


def test_rows_may_lie_apart_and_single_columns_anyhow():
    check(a=(torch.zeros(3, 4)[:, :2], "T K"), b=(torch.zeros(1, 3).T, "T X"))


def test_bounds_come_back_as_numbers():
    assert check_cu_seqlens("op", torch.tensor([0, 2, 5], dtype=torch.int32), 5) == [0, 2, 5]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (torch.tensor(5), r"cu_seqlens has shape \[\], expected one dimension"),
        (torch.tensor([0]), r"cu_seqlens has shape \[1\]"),
        (torch.tensor([[0, 5]]), r"cu_seqlens has shape \[1, 2\]"),
        (torch.tensor([0.0, 5.0]), "cu_seqlens is torch.float32, expected int32 or int64"),
        (torch.tensor([1, 5]), "runs from 1 to 5, the pack from 0 to 5"),
        (torch.tensor([0, 4]), "runs from 0 to 4, the pack from 0 to 5"),
        (torch.tensor([0, 6]), "runs from 0 to 6, the pack from 0 to 5"),
        (torch.tensor([0, 3, 3, 5]), "gives sequence 1 0 tokens"),
        (torch.tensor([0, 4, 2, 5]), "gives sequence 1 -2 tokens"),
    ],
)
def test_bounds_that_do_not_describe_the_pack_are_refused(bounds, message):
    with pytest.raises(ValueError, match=f"^op: .*{message}"):
        check_cu_seqlens("op", bounds, 5)
