"""Run the blocks of Python of a page one after another in one namespace, and print the output of each as JSON.

The arguments are a folder to run in, the name of the page, and its blocks as JSON: pairs of a line number and a text.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any


def run(name: str, blocks: list[tuple[int, str]]) -> list[str]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for line, text in blocks:
        # An error says the line of the page.
        code = compile("\n" * (line - 1) + text, name, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, namespace)
        outputs.append(output.getvalue())
    return outputs


if __name__ == "__main__":
    folder, page, blocks = sys.argv[1:]
    os.chdir(folder)
    print(json.dumps(run(page, json.loads(blocks))))
