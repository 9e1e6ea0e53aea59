"""What is wrong with a definition, found before Spark starts."""
