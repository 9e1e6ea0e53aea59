"""What all commands share: the terminal, access to a broker, values, rows and words."""
