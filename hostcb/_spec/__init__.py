"""The specification of a host callback: its kind, function, effects, placement, result shapes and result checks."""
