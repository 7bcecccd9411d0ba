"""The engine: pytest runs the cells, each an item, and xdist spreads them over processes.

A pytest process never imports JAX. It keeps one worker process (`worker.processes`) and hands it one
cell after another. So a cell cannot end the pytest process.
"""
