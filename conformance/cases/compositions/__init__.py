"""Programs that compose several callbacks and transformations, each for a fault that such a program has shown."""
