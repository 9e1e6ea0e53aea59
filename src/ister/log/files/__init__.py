"""What the files of a log are: names, bytes, entries, encryption, and the ports behind them."""
