"""Cases: callbacks that misbehave, and their effects on the program and the process.

`docs/extending.md` has a table of the folders, and docs/contract.md the promises that a case names, such as `H5 X3`.
"""
