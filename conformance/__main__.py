"""`python -m conformance`."""

from __future__ import annotations

import sys

from conformance.reports import command as reports

if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in reports.COMMANDS:
        # Reading results takes no JAX, and where a CI system makes its reports there may be none.
        sys.exit(reports.main())
    from conformance.cli import main

    sys.exit(main())
