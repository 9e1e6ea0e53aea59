"""Time of the event loop: turns, chores in steps, and threads for what blocks."""
