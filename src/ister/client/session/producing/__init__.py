"""The sending half: messages become batches, numbered so that each is stored once."""
