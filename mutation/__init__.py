"""A campaign of mutants: changes of hostcb's source, one at a time, and the tests and conformance cells that notice."""
