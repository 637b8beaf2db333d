"""Matrix products whose rows do not depend on how many rows there are.

A float32 product on the CPU (MKL) sums the terms of a row in an order that depends on the number of
rows while they are few, so its bits do too. Measured with AVX-512: a row has the same bits from 3
rows on (64 terms) to 16 (384 terms and more). With at least 16 rows a token's result does not
depend on how many tokens share its batch.

Measured with AVX2: up to 55 rows and more, those beyond a multiple of 6 may differ. There
`MKL_CBWR=AUTO,STRICT`, in the environment before the first product, makes MKL give each row the
same bits whatever the number of rows, with AVX-512 as well.

PyTorch's element-wise functions compute the last numbers of a tensor, those beyond a multiple of
32, in another way. With a multiple of 32 rows there are none.

No torch is imported here: the environment has to be set before its first product.
"""

MIN_ROWS = 16
"""Rows from which on a product gives each row the same bits."""
ROW_STEP = 32
"""Rows of a forward are filled up to a multiple of this, in the engine and in the learner."""
SAME_ROWS = {"MKL_CBWR": "AUTO,STRICT"}
"""Environment under which a row of a product has the same bits whatever the number of rows. MKL
reads it at the first product; measured, it costs nothing."""
