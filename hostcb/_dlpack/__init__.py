"""DLPack: device memory that is lent to a callback, and results that come back by DLPack."""
