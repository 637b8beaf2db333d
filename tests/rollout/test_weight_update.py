import pytest
import torch

from rollout.weight_update import (
    PublishError,
    WeightManifest,
    combine_checksums,
    tensor_checksum,
    write_weights,
)


def test_a_checksum_sees_every_bit_and_the_shape():
    tensor = torch.arange(6.0).view(2, 3)
    flipped = tensor.clone()
    flipped[1, 2] = torch.nextafter(flipped[1, 2], torch.tensor(10.0))
    same = {tensor_checksum(tensor), tensor_checksum(tensor.t().contiguous().t())}
    assert len(same) == 1
    assert tensor_checksum(flipped) not in same
    assert tensor_checksum(tensor.view(3, 2)) not in same
    assert tensor_checksum(torch.tensor(1.0)) != tensor_checksum(torch.tensor(-1.0))


def test_the_order_of_tensors_does_not_matter_but_their_names_do():
    assert combine_checksums({"a": "1", "b": "2"}) == combine_checksums({"b": "2", "a": "1"})
    assert combine_checksums({"a": "1", "b": "2"}) != combine_checksums({"a": "2", "b": "1"})


def test_written_weights_match_their_manifest_until_they_are_removed(tmp_path):
    from safetensors.torch import load_file

    tensors = {"a": torch.randn(3, 4), "b": torch.randn(5).view(5, 1).t()}
    manifest = write_weights(tensors, version=3, folder=tmp_path)
    read = load_file(str(manifest.path))
    assert {name: tensor_checksum(tensor) for name, tensor in read.items()} == manifest.checksums
    assert manifest.total_bytes == 17 * 4
    manifest.remove()
    manifest.remove()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(PublishError, match="cannot write weights to"):
        write_weights({"a": torch.zeros(1)}, version=0, folder=tmp_path / "absent")


def test_a_manifest_without_tensors_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tensor"):
        WeightManifest(version=1, path=tmp_path, checksums={}, total_bytes=0)
