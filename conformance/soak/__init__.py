"""A soak: threads run programs with callbacks for a given time, and every callback is checked.

`specs` draws the programs, `programs` and `doing` run them, `record` lets the oracle judge them, `growth` says what
they have found, and whether memory, threads or descriptors grow. `cli.soak` is the command.
"""
