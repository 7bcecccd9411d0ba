"""A soak: threads run programs with callbacks for a given time, and every callback is checked.

`specs` draws the programs, `programs` and `doing` run them, `record` lets the oracle judge them, `growth` says whether
memory, threads or descriptors grow. `watching` starts the process that does all this, and watches it.
"""
