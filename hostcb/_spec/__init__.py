"""The specification of a host callback: its kind, function, effects, placement and result shapes."""
