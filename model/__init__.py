"""The hybrid linear-attention mixture-of-experts model."""

import kernels

if getattr(kernels, "OWNER", None) != "limosa":
    raise ImportError(
        f"`kernels` is {kernels.__file__}, not Limosa's package: a distribution called `kernels` "
        "(Hugging Face) shadows it. Uninstall that one, or put Limosa's checkout first on the path."
    )
