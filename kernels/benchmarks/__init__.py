"""What the operations cost: ratios on a CPU, a table per shape on a GPU."""
