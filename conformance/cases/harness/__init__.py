"""What cases share: the layouts, the registry of cases, their children, and how a worker runs one."""
