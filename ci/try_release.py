"""Tries the files of a release on a machine that may have Python alone: `python ci/try_release.py DIST REQUIREMENT...`.

pip chooses among the wheels of the folder, as for a user, and installs the requirements from its index. Then it builds
and installs the sdist, with the C compiler that the machine has, or without one.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

from check_wheels import LIBRARY_SDIST, WrongWheelError, native, the_only
from try_wheel import Environment, try_hand_over, try_source, try_suite, try_without_suite, unpacked


def main() -> None:
    dist, *requirements = sys.argv[1:]
    sdist = the_only(Path(dist), LIBRARY_SDIST)
    # The index may have this version as well; pip shall not look there.
    files = ("--no-index", "--find-links", dist, "--only-binary", ":all:", "--no-deps")
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        environment.install(*files, "hostcb")
        environment.install("hostcb", *requirements)
        try_without_suite(environment)
        try_hand_over(environment, in_c=(platform.system(), platform.machine()) in native.TESTED)
        # The suite has run on Linux alone.
        if platform.system() == "Linux":
            environment.install(*files, "hostcb-conformance")
            environment.install("hostcb-conformance")
            try_suite(environment)
        print(f"the wheels of {dist} work where they are installed")
        try_source(environment, unpacked(sdist, folder), native.lacks())


if __name__ == "__main__":
    try:
        main()
    except WrongWheelError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(2)
