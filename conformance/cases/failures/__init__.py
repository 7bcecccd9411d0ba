"""Callbacks that raise or return something wrong: the program ends with their error, and later ones run."""
