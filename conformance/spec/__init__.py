"""The lowest layer, with the suite's vocabulary: callbacks, data, topologies, configurations, the table of support."""
