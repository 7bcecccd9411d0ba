"""What barriers wait for: callbacks on all devices, of other threads, and of programs that callbacks start."""
