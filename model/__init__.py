"""The hybrid linear-attention mixture-of-experts model."""
