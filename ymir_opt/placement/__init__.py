"""GPUs to nodes: exact tests, packing, and the search behind them."""
