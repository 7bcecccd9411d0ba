"""Cases: callbacks that misbehave, and their effects on the program and the process."""
