"""A soak: threads run programs with callbacks for as long as one likes, and every callback is checked when it comes.

`drawing` says which thread does what, `programs` and `doing` do it, `record` lets the oracle judge it, `slopes`
says whether memory, threads or descriptors grow. `watching` starts the process that does all this, and watches it.
"""
