"""The name of this package is also a Hugging Face distribution's."""

from transformers.utils.import_utils import is_kernels_available

import kernels


def test_transformers_does_not_take_our_kernels_for_its_own():
    assert kernels.OWNER == "limosa"
    assert not is_kernels_available()
