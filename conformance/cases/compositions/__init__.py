"""Programs that compose several callbacks and transformations, each for a case that such a program has shown."""
