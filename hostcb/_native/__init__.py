"""The hand-over of tapped values in C, and the side of Python that loads it; without it hostcb works as well."""
