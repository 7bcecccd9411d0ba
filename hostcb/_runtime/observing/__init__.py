"""What observes callbacks: statistics, traces and the spans of a profile."""
