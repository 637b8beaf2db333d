"""Matrix products whose rows do not depend on how many rows there are.

A float32 product on the CPU (MKL) sums the terms of a row in an order that depends on the number of
rows while they are few, so its bits do too. Measured: with AVX2 from 4 rows on each row has the
same bits, with AVX-512 from 3 (64 terms) to 16 (384 terms and more). With at least 16 rows a
token's result does not depend on how many tokens share its batch.

MKL gives the same promise for any number of rows where `MKL_CBWR=AVX2,STRICT` (or `AVX512,STRICT`)
is in the environment before its first product. Enough rows need no environment.
"""

MIN_ROWS = 16
"""Rows from which on a product gives each row the same bits."""
