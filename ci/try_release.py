"""Tries the files of a release on a machine that may have Python alone: `python ci/try_release.py DIST REQUIREMENT...`.

pip chooses among the wheels of the folder, as for a user, and installs the requirements from its index. Then it builds
and installs the sdist, with the C compiler that the machine has, or without one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from check_wheels import WrongWheelError, native, the_only
from try_wheel import Environment, try_hand_over, try_out, try_source, unpacked


def main() -> None:
    dist, *requirements = sys.argv[1:]
    sdist = the_only(Path(dist), "*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        # The index may have this version as well; pip shall not look there.
        environment.install("--no-index", "--find-links", dist, "--only-binary", "hostcb", "--no-deps", "hostcb")
        environment.install("hostcb[conformance]", *requirements)
        try_out(environment)
        # Of all the machines on which this runs, each has a wheel with the library.
        try_hand_over(environment, in_c=True)
        print(f"a wheel of {dist} works where it is installed")
        try_source(environment, unpacked(sdist, folder), native.lacks())


if __name__ == "__main__":
    try:
        main()
    except WrongWheelError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(2)
