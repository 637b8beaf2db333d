"""Kernels of the hybrid model: each op is a public function, its reference and its fast forms.

The name is also a Hugging Face distribution's; `OWNER` lets `model` detect a shadowed import.
"""

OWNER = "limosa"
