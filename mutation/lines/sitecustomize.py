"""Python imports this at its start in each process that finds it: what a test or a case starts, members of a group."""

from mutation.lines import hostcb_lines

hostcb_lines.start()
