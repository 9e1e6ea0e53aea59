"""What a replay of the journal restores: topics, subscriptions, cursors, producers, answers."""
