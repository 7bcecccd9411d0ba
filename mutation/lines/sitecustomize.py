"""Python imports this at its start, in each process that finds it: victims of faults, and members of a gang."""

from mutation.lines import hostcb_lines

hostcb_lines.start()
