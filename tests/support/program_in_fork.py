"""Makes a fork of a server the process that `python -W ACTION -c TEXT` or `python -W ACTION FILE` would be."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path


def main() -> None:
    action, *command = sys.argv[1:]
    sys.warnoptions[:] = [action]
    warnings.simplefilter(action)
    program = types.ModuleType("__main__")
    if command[0] == "-c":
        text, sys.argv[:] = command[1], ["-c", *command[2:]]
        code = compile(text, "<string>", "exec", dont_inherit=True)
        folder = ""
    else:
        file = Path(command[0])
        program.__file__, sys.argv[:] = str(file), command
        code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        folder = str(file.parent)
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.modules["__main__"] = program
    try:
        exec(code, vars(program))
    except Exception as error:
        # Without the frame of this function and those of the server. As in a fresh interpreter, the exception lives on,
        # with the variables of its frames, while exit functions run.
        assert error.__traceback__ is not None
        sys.last_value = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
