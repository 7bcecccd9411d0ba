"""The queue of a device: the values of taps, the ring that C fills, and the thread that runs them."""
