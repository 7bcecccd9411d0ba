"""A campaign of mutants: changes of hostcb's source, one at a time, and the conformance cells that notice them."""
